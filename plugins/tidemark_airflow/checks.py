"""A DAG of one check: a mapped task per application, which ends as its verdict says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, task

from tidemark.names import MAINTENANCE_POOL
from tidemark_airflow.operations import MAINTENANCE_PRIORITY, chosen, conclude, operations_dag, topologies_param

if TYPE_CHECKING:
    from tidemark.checks.verdict import Finding

Judge = Callable[[str, Mapping[str, Any]], "list[Finding]"]
"""Takes a topology's name and the run's parameters. Imports what it needs inside, so that the DAG file stays light."""


def check_dag(
    check: str,
    judge: Judge,
    *,
    description: str,
    runbook: str,
    schedule: str,
    params: Mapping[str, Param] | None = None,
    timeout: timedelta = timedelta(minutes=30),
) -> DAG:
    """`<check>_check`: `judge` for each application chosen; `params` are those of this check alone."""
    with operations_dag(
        f"{check}_check",
        description=description,
        runbook=runbook,
        schedule=schedule,
        params={"topologies": topologies_param(), **(params or {})},
        tags=["check"],
        timeout=timeout,
        task_timeout=timedelta(minutes=10),
        pool=MAINTENANCE_POOL,
        priority=MAINTENANCE_PRIORITY,
    ) as dag:

        @task
        def topologies(params: dict[str, Any] | None = None) -> list[str]:
            """The applications to look at."""
            return chosen(params or {})

        @task(task_id=check, map_index_template="{{ task.op_kwargs['topology'] }}")
        def judged(topology: str, params: dict[str, Any] | None = None) -> str:
            """Look, judge, write the verdict into the history."""
            return conclude(check, topology, judge(topology, params or {}))

        judged.expand(topology=topologies())
    return dag
