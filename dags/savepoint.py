"""`savepoint`: copies every store to the savepoint location, reads the copy back, and removes old savepoints."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, task, task_group

from tidemark.names import MAINTENANCE_POOL
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import MAINTENANCE_PRIORITY, chosen, operations_dag, topologies_param

RUNBOOK = """\
### What it does
Takes a savepoint of each application without stopping its stream, reads every file of it back and compares checksums, then
removes the oldest savepoints beyond the number to keep. If the new savepoint has a fault, nothing is removed.

### When it fails
| task | what to do |
|---|---|
| take | The message names the instance and the reason. `tidemark savepoint take <name>` tries again. |
| verify | Remove the file that the message names; the next savepoint copies it again. See `tidemark savepoint list <name>`. |
| expire | The location cannot be written to. See the setting `savepoint_location`. |

*Skipped* means that the application has never run. docs/savepoints.md explains what a savepoint is for.
"""

with operations_dag(
    "savepoint",
    kind=DagKind.OPERATION,
    description="Takes, verifies and expires savepoints of every application",
    use_when="Keep it unpaused: it runs every 6 hours. Trigger it before a change that you may want to undo, such as an "
    "upgrade.",
    runbook=RUNBOOK,
    schedule="27 */6 * * *",
    params={
        "topologies": topologies_param(),
        "keep": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Savepoints to keep",
            description="How many complete savepoints to keep. Empty: the setting savepoints_kept.",
        ),
        "max_age": Param(
            "",
            type="string",
            pattern="^(\\d+(ms|s|m|h|d))?$",
            title="Longest age",
            description="Such as 36h or 7d: older savepoints are removed, too. Empty: none is removed by its age.",
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
        """Return the topologies to take savepoints of."""
        return chosen(params or {})

    @task
    def take(topology: str) -> str:
        """Take a savepoint and return its id."""
        from tidemark_airflow import savepoints

        return savepoints.take(topology)

    @task
    def verify(topology: str, savepoint_id: str) -> str:
        """Read the savepoint back and return its id."""
        from tidemark_airflow import savepoints

        return savepoints.verify(topology, savepoint_id)

    @task
    def expire(topology: str, params: dict[str, Any] | None = None) -> int:
        """Remove old savepoints, now that the new one is verified."""
        from tidemark_airflow import savepoints

        asked = params or {}
        return savepoints.expire(topology, asked["keep"], asked["max_age"])

    @task_group
    def saved(topology: str) -> None:
        """The tasks of one application."""
        verify(topology, take(topology)) >> expire(topology)  # type: ignore[arg-type]

    saved.expand(topology=topologies())
