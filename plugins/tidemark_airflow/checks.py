"""The DAG of one check: a mapped task per application, whose result is the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, task

from tidemark.names import MAINTENANCE_POOL
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import MAINTENANCE_PRIORITY, chosen, conclude, operations_dag, topologies_param

if TYPE_CHECKING:
    from tidemark.verdict import Finding

Judge = Callable[[str, Mapping[str, Any]], "list[Finding]"]
"""Judges an application, given the topology's name and the run's parameters.

The function imports what it needs inside its body, so that the DAG file loads fast.
"""


def check_dag(
    check: str,
    judge: Judge,
    *,
    description: str,
    use_when: str,
    runbook: str,
    schedule: str,
    params: Mapping[str, Param] | None = None,
    timeout: timedelta = timedelta(minutes=30),
) -> DAG:
    """Return the DAG `<check>_check`, which calls `judge` for each chosen application.

    `params` are the parameters that only this check has.
    """
    with operations_dag(
        f"{check}_check",
        kind=DagKind.CHECK,
        description=description,
        use_when=use_when,
        runbook=runbook,
        schedule=schedule,
        params={"topologies": topologies_param(), **(params or {})},
        timeout=timeout,
        task_timeout=timedelta(minutes=10),
        pool=MAINTENANCE_POOL,
        priority=MAINTENANCE_PRIORITY,
    ) as dag:

        @task
        def topologies(params: dict[str, Any] | None = None) -> list[str]:
            """Return the topologies to check."""
            return chosen(params or {})

        @task(task_id=check, map_index_template="{{ task.op_kwargs['topology'] }}")
        def judged(topology: str, params: dict[str, Any] | None = None) -> str:
            """Judge one application and write the verdicts to their history."""
            return conclude(check, topology, judge(topology, params or {}))

        judged.expand(topology=topologies())
    return dag
