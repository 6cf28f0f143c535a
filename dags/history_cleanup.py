"""`history_cleanup`: removes history, reports and logs that are older than the settings allow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, task
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.names import MAINTENANCE_POOL
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import MAINTENANCE_PRIORITY, operations_dag

RUNBOOK = """\
### What it does
`plan` lists in its log what is older than the settings allow: rows of events, verdicts and audited ranges, and samples of
the sizes of stores (`facts_kept_days`); pages, quarantined rows and lineage of audits (`pages_kept_days`); logs of instances
and tasks, and Airflow's records of runs (`logs_kept_days`, by `airflow db clean`). `remove` removes them. With **Dry run**
nothing is removed.

Never removed: state, savepoints, topics, drills, reports of restores and changes, the newest audited range of each task, and
Airflow's records of the streams' DAGs, because a run of such a DAG lasts as long as its stream.

### When it fails
*The database of facts does not answer*: start it, or set `facts_url`. *airflow db clean ended with …*: the message has the
last line that the command printed, the log has all of them. Nothing else depends on this command.
"""

with operations_dag(
    "history_cleanup",
    kind=DagKind.OPERATION,
    description="Removes events, verdicts, audits, pages, logs and Airflow's records that are older than the settings allow",
    use_when="Keep it unpaused: it runs every night. Trigger it with a dry run to see what would go, or when the disk is "
    "nearly full.",
    runbook=RUNBOOK,
    schedule="47 4 * * *",
    params={
        "dry_run": Param(False, type="boolean", title="Dry run", description="Only list what would be removed."),
    },
    tags=["maintenance"],
    pool=MAINTENANCE_POOL,
    priority=MAINTENANCE_PRIORITY,
    timeout=timedelta(hours=2),
    task_timeout=timedelta(hours=1),
):

    @task
    def plan() -> list[str]:
        """List the rows, files and runs that are older than the settings allow."""
        from tidemark_airflow import cleanup

        return cleanup.plan()

    @task
    def remove(params: dict[str, Any] | None = None) -> None:
        """Remove what `plan` listed."""
        if (params or {})["dry_run"]:
            raise AirflowSkipException("dry run: nothing is removed")
        from tidemark_airflow import cleanup

        cleanup.remove()

    plan() >> remove()
