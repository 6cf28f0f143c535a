"""`savepoint`: a copy of every store elsewhere, read back, and old ones let go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, task, task_group

from tidemark.names import MAINTENANCE_POOL
from tidemark_airflow.operations import MAINTENANCE_PRIORITY, chosen, operations_dag, topologies_param

RUNBOOK = """\
### What it does
Takes a savepoint of each application without stopping its stream, reads every file of it back and compares checksums, then
removes the oldest beyond the number that is kept. What was taken is only counted on once it was verified: with a fault in the
new one nothing is removed.

### When it fails
| task | do |
|---|---|
| take | the message names the instance and the reason; `tidemark savepoint take <name>` tries again |
| verify | remove the file that the message names: the next savepoint copies it anew; see `tidemark savepoint list <name>` |
| expire | the location cannot be written: see the setting `savepoint_location` |

*Skipped*: the application has never run. docs/savepoints.md says what a savepoint is for.
"""

with operations_dag(
    "savepoint",
    description="Takes, verifies and expires savepoints of every application",
    runbook=RUNBOOK,
    schedule="27 */6 * * *",
    params={
        "topologies": topologies_param(),
        "keep": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Savepoints to keep",
            description="How many whole savepoints stay; none given: the setting savepoints_kept.",
        ),
        "max_age": Param(
            "",
            type="string",
            pattern="^(\\d+(ms|s|m|h|d))?$",
            title="Longest age",
            description="Such as 36h or 7d: older savepoints go, too. Empty: none goes by its age.",
        ),
    },
    tags=["savepoint"],
    timeout=timedelta(hours=12),
    task_timeout=timedelta(hours=4),
    pool=MAINTENANCE_POOL,
    priority=MAINTENANCE_PRIORITY,
):

    @task
    def topologies(params: dict[str, Any] | None = None) -> list[str]:
        """The applications to save."""
        return chosen(params or {})

    @task
    def take(topology: str) -> str:
        """Take one; the id goes on."""
        from tidemark_airflow import savepoints

        return savepoints.take(topology)

    @task
    def verify(topology: str, savepoint_id: str) -> str:
        """Read it back."""
        from tidemark_airflow import savepoints

        return savepoints.verify(topology, savepoint_id)

    @task
    def expire(topology: str, params: dict[str, Any] | None = None) -> int:
        """Let old ones go, now that there is a new one."""
        from tidemark_airflow import savepoints

        asked = params or {}
        return savepoints.expire(topology, asked["keep"], asked["max_age"])

    @task_group
    def saved(topology: str) -> None:
        """One application."""
        verify(topology, take(topology)) >> expire(topology)

    saved.expand(topology=topologies())
