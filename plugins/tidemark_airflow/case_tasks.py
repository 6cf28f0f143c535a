"""Tasks that `restore_oncall` and the DAGs of changes have alike, to be called within a DAG. What they do is in `cases`."""

from __future__ import annotations

from typing import Any

from airflow.sdk import task

RETRIES = {"retries": 3}
"""Of every task that may be tried again after its worker died."""


@task.short_circuit(ignore_downstream_trigger_rules=False)
def unless_dry_run(params: dict[str, Any] | None = None) -> bool:
    """A dry run ends here."""
    return not (params or {})["dry_run"]


@task(**RETRIES)
def fence(**context: Any) -> None:
    """Stop the instances; their DAG waits until the hold is released."""
    from tidemark_airflow import cases

    cases.fence(context)


@task(**RETRIES)
def relaunch(**context: Any) -> None:
    """Release the hold, and wait until the instances run again."""
    from tidemark_airflow import cases

    cases.relaunch(context)


@task
def drain(**context: Any) -> None:
    """Watch the lag until what waited is committed."""
    from tidemark_airflow import cases

    cases.drain(context)


@task(trigger_rule="all_done", **RETRIES)
def release(**context: Any) -> None:
    """Whatever happened, the application is held no longer."""
    from tidemark_airflow import cases

    cases.release(context)


@task(trigger_rule="all_done", **RETRIES)
def report(**context: Any) -> str:
    """The page with the time line; fails where it did not end as somebody chose."""
    from tidemark_airflow import cases

    return cases.report(context)
