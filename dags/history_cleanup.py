"""`history_cleanup`: what is kept of the past for some time only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, task
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.names import MAINTENANCE_POOL
from tidemark_airflow.operations import MAINTENANCE_PRIORITY, operations_dag

RUNBOOK = """\
### What it does
`plan` says in its log what is older than the settings allow: rows of events, verdicts and audited ranges (`facts_kept_days`),
pages, quarantined rows and lineage of audits (`pages_kept_days`), logs of instances and tasks, and Airflow's records of runs
(`logs_kept_days`, by `airflow db clean`). `remove` removes that. With **Dry run** nothing is removed.

Never removed: state, savepoints, topics, drills, reports of restores and changes, the newest audited range of each task, and
what Airflow knows of the DAGs of streams, whose runs last as long as the streams.

### When it fails
*The database of facts does not answer*: start it, or set `facts_url`. *airflow db clean ended with …*: the last line it said is
in the message, all of them in the log; nothing else depends on it.
"""

with operations_dag(
    "history_cleanup",
    description="Removes events, verdicts, audits, pages, logs and Airflow's records that are older than the settings allow",
    runbook=RUNBOOK,
    schedule="47 4 * * *",
    params={
        "dry_run": Param(False, type="boolean", title="Dry run", description="Only say what would be removed."),
    },
    pool=MAINTENANCE_POOL,
    priority=MAINTENANCE_PRIORITY,
    timeout=timedelta(hours=2),
    task_timeout=timedelta(hours=1),
):

    @task
    def plan() -> list[str]:
        """Say which rows, files and runs are older than the settings allow."""
        from tidemark_airflow import cleanup

        return cleanup.plan()

    @task
    def remove(params: dict[str, Any] | None = None) -> None:
        """Remove what is too old."""
        if (params or {})["dry_run"]:
            raise AirflowSkipException("asked only to say what would be removed")
        from tidemark_airflow import cleanup

        cleanup.remove()

    plan() >> remove()
