"""The kinds of DAGs, by which Airflow's list is ordered and tagged, and the first section of their documentation."""

from __future__ import annotations

from enum import StrEnum


class DagKind(StrEnum):
    """What a DAG is for. The value is its tag. Airflow lists DAGs by their display names, so in this order."""

    STREAM = "stream"
    OPERATION = "operation"
    CHECK = "check"

    def display_name(self, dag_id: str) -> str:
        """Return the name in Airflow's list. It contains the id, by which commands and pages name the DAG."""
        return f"{list(DagKind).index(self) + 1} {self}: {dag_id}"

    def tags(self, *more: str) -> list[str]:
        """Return the tags of a DAG of this kind."""
        return ["tidemark", self.value, *more]


def documented(use_when: str, runbook: str) -> str:
    """Return the documentation of a DAG: when to use it, then its runbook."""
    return f"### When to use it\n{use_when.strip()}\n\n{runbook}"
