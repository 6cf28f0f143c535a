"""Tasks that `restore_oncall` and the DAGs of changes share. Call them within a DAG; `cases` does their work."""

from __future__ import annotations

from typing import Any

from airflow.sdk import task

RETRIES = 3
"""The number of retries of a task that may be retried when its worker has died."""


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
    """Release the hold on the application, whatever happened."""
    from tidemark_airflow import cases

    cases.release(context)


@task(trigger_rule="all_done", retries=RETRIES)
def report(**context: Any) -> str:
    """Write the page with the time line. Fails if the case did not end as requested."""
    from tidemark_airflow import cases

    return cases.report(context)
