"""The DAG of a change to an application: planned, approved by a person, done with every instance stopped, and reported."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, chain, task

from tidemark_airflow.approval import PlanApprovalOperator
from tidemark_airflow.case_tasks import RETRIES, drain, fence, relaunch, release, report, unless_dry_run
from tidemark_airflow.operations import case_params, operations_dag


def change_dag(kind: str, *, description: str, runbook: str, params: dict[str, Param]) -> DAG:
    """`kind`: its id, and what `tidemark.oncall.changing` does. A dry run, the default, ends behind the plan.

    Where the plan is refused, its task fails with the reasons, and nothing was stopped.
    """
    dag = operations_dag(
        kind,
        description=description,
        runbook=runbook,
        schedule=None,
        params=case_params(
            dry_run="Only show the plan. Switched off, somebody has to approve it, and it is done.",
            relaunch_timeout="If they are not back by then, the run fails; what is committed stays.",
            own=params,
        ),
        tags=["change"],
        timeout=timedelta(hours=6),
        task_timeout=timedelta(hours=2),
    )
    with dag:

        @task(**RETRIES)
        def preflight(**context: Any) -> None:
            """Can it be done at all?"""
            from tidemark_airflow import changes

            changes.preflight(context)

        @task(**RETRIES)
        def plan(**context: Any) -> str:
            """What it would do now; the application runs on."""
            from tidemark_airflow import changes

            return changes.plan(context)

        approval = PlanApprovalOperator(
            task_id="approval",
            subject=f"{kind} of {{{{ params.topology }}}}: do as planned?",
            response_timeout=timedelta(hours=1),
        )

        @task(**RETRIES)
        def change(**context: Any) -> None:
            """In one transaction; tried again it finds what is done."""
            from tidemark_airflow import changes

            changes.change(context)

        relaunched, reported = relaunch(), report()
        chain(preflight(), plan(), unless_dry_run(), approval, fence(), change(), relaunched, drain(), reported)
        chain(relaunched, release(), reported)
    return dag
