"""The DAG of a change to an application: plan, approval by a person, change with every instance stopped, and report."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, chain, task

from tidemark.operations.case.response_time import CHANGE_RESPONSE_MS
from tidemark_airflow.approval import PlanApprovalOperator
from tidemark_airflow.case_tasks import RETRIES, drain, fence, relaunch, release, report, set_run_limit, unless_dry_run
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import case_params, operations_dag


def change_dag(kind: str, *, description: str, use_when: str, runbook: str, params: dict[str, Param]) -> DAG:
    """Return the DAG of one kind of change.

    `kind` is the DAG's id and the change that `tidemark.operations.case.change_steps` makes. A dry run, which is the default,
    ends after the plan. If the plan is refused, its task fails with the reasons before anything is stopped.
    """
    dag = operations_dag(
        kind,
        kind=DagKind.OPERATION,
        description=description,
        use_when=use_when,
        runbook=runbook,
        schedule=None,
        params=case_params(
            dry_run="Only show the plan. If this is off, the plan waits for an approval and is then carried out.",
            relaunch_timeout="If they do not run by then, the DAG run fails; what is committed stays.",
            own=params,
        ),
        tags=["change"],
        task_timeout=timedelta(hours=2),
    )
    with dag:

        @task(retries=RETRIES)
        def preflight(**context: Any) -> None:
            """Check whether the change is possible."""
            from tidemark_airflow import changes

            changes.preflight(context)

        @task(retries=RETRIES)
        def plan(**context: Any) -> str:
            """Make the plan. The application keeps running."""
            from tidemark_airflow import changes

            return changes.plan(context)

        approval = PlanApprovalOperator(
            task_id="approval",
            subject=f"{kind} of {{{{ params.topology }}}}: carry out this plan?",
            response_timeout=timedelta(milliseconds=CHANGE_RESPONSE_MS),
        )

        @task(retries=RETRIES)
        def change(**context: Any) -> None:
            """Make the change in one transaction. A retry finds what is done."""
            from tidemark_airflow import changes

            changes.change(context)

        relaunched, reported = relaunch(), report()
        chain(preflight(), plan(), unless_dry_run(), approval, fence(), change(), relaunched, drain(), reported)
        chain(relaunched, release(), reported)
    set_run_limit(dag)
    return dag
