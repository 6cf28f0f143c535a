"""Tasks that `restore_oncall` and the DAGs of changes share. Call them within a DAG; `cases` does their work."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from tidemark_airflow.approval import PlanApprovalOperator

RETRIES = 3
"""The number of retries of a task that may be retried when its worker has died."""


def set_run_limit(dag: DAG) -> None:
    """Let a run last as long as its answer and all its tasks may take one after another, with `RETRIES` more tries in between.

    Airflow skips all remaining tasks of a run that exceeds its limit. Without `release`, the application would stay held.
    Call this once the DAG has all its tasks.
    """
    limits = [each.execution_timeout for each in dag.tasks if each.execution_timeout is not None]
    approvals = [each for each in dag.tasks if isinstance(each, PlanApprovalOperator)]
    answers = [each.response_timeout for each in approvals if each.response_timeout is not None]
    dag.dagrun_timeout = sum([*limits, *answers], RETRIES * max(limits))


@task.short_circuit(ignore_downstream_trigger_rules=False)
def unless_dry_run(params: dict[str, Any] | None = None) -> bool:
    """End the run here if it is a dry run."""
    return not (params or {})["dry_run"]


@task(retries=RETRIES)
def fence(**context: Any) -> None:
    """Stop the instances. The stream's DAG waits until the hold is released."""
    from tidemark_airflow import cases

    cases.fence(context)


@task(retries=RETRIES)
def relaunch(**context: Any) -> None:
    """Release the hold and wait until the instances run again."""
    from tidemark_airflow import cases

    cases.relaunch(context)


@task
def drain(**context: Any) -> None:
    """Watch the lag until the records that waited are committed."""
    from tidemark_airflow import cases

    cases.drain(context)


@task(trigger_rule="all_done", retries=RETRIES)
def release(**context: Any) -> None:
    """Release the hold on the application, unless a restore or a rewind is left unfinished."""
    from tidemark_airflow import cases

    cases.release(context)


@task(trigger_rule="all_done", retries=RETRIES)
def report(**context: Any) -> str:
    """Write the page with the time line. Fails if the case did not end as requested."""
    from tidemark_airflow import cases

    return cases.report(context)
