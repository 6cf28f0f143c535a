"""The DAG of a change to an application: planned, approved by a person, done with every instance stopped, relaunched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.settings import Settings
from tidemark_airflow.approval import KeptApproval, approvers, no_unless_answered
from tidemark_airflow.operations import operations_dag, topology_param

_OFFSETS = "offsets"
"""The XCom that holds where the plan goes: what is approved is what is done."""


def change_dag(kind: str, *, description: str, runbook: str, params: dict[str, Param]) -> DAG:
    """`kind`: its id, and what `tidemark_airflow.changes` does. A dry run, the default, ends behind the plan.

    Where the plan is refused, the first task fails with the reasons, and nothing was stopped.
    """
    dry_run = Param(
        True,
        type="boolean",
        title="Dry run",
        description="Only show the plan. Switched off, somebody has to approve it, and it is done.",
    )
    dag = operations_dag(
        kind,
        description=description,
        runbook=runbook,
        schedule=None,
        params={"topology": topology_param(), **params, "dry_run": dry_run},
        tags=["change"],
        timeout=timedelta(hours=6),
        task_timeout=timedelta(hours=2),
    )
    with dag:

        @task
        def plan(params: dict[str, Any] | None = None, ti: Any = None) -> str:
            """What it would do now; the application runs on."""
            from tidemark_airflow import changes

            told, offsets = changes.plan(kind, params or {})
            ti.xcom_push(key=_OFFSETS, value=offsets)
            return told

        @task
        def wanted(params: dict[str, Any] | None = None) -> None:
            """Skipped in a dry run, and with it all that follows."""
            if (params or {})["dry_run"]:
                raise AirflowSkipException("a dry run: the plan is in the log and the XCom of the task plan")

        approval = KeptApproval(
            task_id="approval",
            subject=f"{kind}: do as planned?",
            body="{{ ti.xcom_pull(task_ids='plan') }}",
            assigned_users=approvers(Settings.load()),
            **no_unless_answered(timedelta(hours=1)),
        )

        @task(retries=3)
        def fence(params: dict[str, Any] | None = None, run_id: str | None = None) -> None:
            """Every instance stopped, and held."""
            from tidemark_airflow import changes

            changes.fence(kind, run_id or "", params or {})

        @task(retries=3)
        def change(params: dict[str, Any] | None = None, ti: Any = None) -> None:
            """In one transaction; tried again it finds what is done."""
            from tidemark_airflow import changes

            changes.change(kind, params or {}, ti.xcom_pull(task_ids="plan", key=_OFFSETS))

        @task(trigger_rule="all_done")
        def release(params: dict[str, Any] | None = None, run_id: str | None = None) -> bool:
            """The stream DAG relaunches what was stopped, whatever became of the change."""
            from tidemark_airflow import changes

            return changes.release(kind, run_id or "", params or {})

        @task
        def done() -> None:
            """Failed or skipped where the change was: the run ends as it did, also though the hold is released."""

        changed = change()
        released = release()
        plan() >> wanted() >> approval >> fence() >> changed >> released
        [changed, released] >> done()
    return dag
