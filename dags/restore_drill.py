"""DAGs of restore drills: one drill a week of each application that is asked for, and an alert when the last is too old."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, task

from tidemark.names import MAINTENANCE_POOL
from tidemark_airflow.checks import check_dag
from tidemark_airflow.operations import DRILL_AGE, MAINTENANCE_PRIORITY, chosen, operations_dag, topologies_param

if TYPE_CHECKING:
    from tidemark.checks.verdict import Finding

_DRILL_RUNBOOK = """\
Takes a savepoint of each running application, rebuilds all of its tasks elsewhere from the changelogs, and from an older
savepoint and the changelogs' tails, and compares every key. Then the rebuilt tasks follow the changelogs for some batches, and
are compared with a second savepoint. The stream runs on; nothing of it is touched.

- *Success*: nothing to do. RTO, RPO, keys, bytes and rates are in the log and in `tidemark drill NAME --history`.
- *Skipped*, not enough evidence: the log says what lacked. No input came to follow, nothing (or not everything) could be
  compared as a changelog has lost its beginning, or `min.compaction.lag.ms` of a changelog is shorter than the drill takes.
- *Failed*, keys differ: the first are named. `tidemark savepoint take NAME` and keep it; do **not** restore from the changelog
  alone; find out who wrote to it.
- *Failed*, cannot be rebuilt: a restore would fail the same way.
- *Skipped*, nothing to rebuild: it has never run, or no savepoint holds any of its stores.

`docs/drill.md` says more.
"""

_AGE_RUNBOOK = """\
### What it does
Looks into the history of restore drills for the last one that passed, of each application.

### When it fails
The last passing drill is older than allowed, or none ever passed. Trigger `restore_drill` for the application, and read why the
last ones did not pass: `tidemark drill <name> --history --json`.
"""


def judge_age(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """Whether the last drill that passed is young enough."""
    from tidemark_airflow.drills import judge_age as judged

    return judged(topology, float(params["max_age_days"]))


with operations_dag(
    "restore_drill",
    description="Rebuilds the state of running applications elsewhere and compares every key",
    runbook=_DRILL_RUNBOOK,
    schedule="0 3 * * 0",
    params={
        "topologies": topologies_param(),
        "follow_batches": Param(
            3,
            type="integer",
            minimum=0,
            title="Batches to follow",
            description="How many batches the rebuilt tasks follow before they are compared once more.",
        ),
        "follow_timeout_s": Param(
            120,
            type="integer",
            minimum=1,
            title="Longest wait for batches (seconds)",
            description="With fewer batches by then the verdict is: not enough evidence.",
        ),
    },
    tags=["drill"],
    timeout=timedelta(hours=12),
    task_timeout=timedelta(hours=4),
    pool=MAINTENANCE_POOL,
    priority=MAINTENANCE_PRIORITY,
):

    @task(task_id="topologies")
    def drilled(params: dict[str, Any] | None = None) -> list[str]:
        """The applications to drill."""
        return chosen(params or {})

    # One at a time: a drill takes room on the disk.
    @task(task_id="drill", max_active_tis_per_dagrun=1, map_index_template="{{ task.op_kwargs['topology'] }}")
    def drill(topology: str, **context: Any) -> str:
        """Drill one application; fails with the first keys that differ. Its XCom `figures` has those of each store."""
        from tidemark_airflow.drills import drill_and_conclude

        given = context["params"]
        return drill_and_conclude(
            topology,
            int(given["follow_batches"]),
            float(given["follow_timeout_s"]),
            lambda figures: context["ti"].xcom_push("figures", figures),
        )

    drill.expand(topology=drilled())


age_dag = check_dag(
    DRILL_AGE,
    judge_age,
    description="Alerts when an application's last passing restore drill is too old",
    runbook=_AGE_RUNBOOK,
    schedule="@daily",
    params={
        "max_age_days": Param(
            8,
            type="number",
            exclusiveMinimum=0,
            title="Oldest passing drill (days)",
            description="An application whose last drill that passed is older than this fails the check.",
        ),
    },
)
