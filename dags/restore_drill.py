"""`restore_drill` runs a weekly drill of each application; `drill_age_check` fails if the last passing one is too old."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, task

from tidemark.names import MAINTENANCE_POOL
from tidemark_airflow.checks import check_dag
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import DRILL_AGE, MAINTENANCE_PRIORITY, chosen, operations_dag, topologies_param

if TYPE_CHECKING:
    from tidemark.verdict import Finding

_DRILL_RUNBOOK = """\
Takes a savepoint of each running application. Rebuilds all of its tasks in another folder, once from the changelogs alone and
once from an older savepoint and the changelogs' tails, and compares every key. Then the rebuilt tasks follow the changelogs
for some batches and are compared with a second savepoint. The stream keeps running and is not changed.

- *Success*: nothing to do. RTO, RPO, keys, bytes and rates are in the log and in `tidemark drill history NAME`.
- *Skipped*, not enough evidence: the log says what was missing. No new input arrived to follow; or nothing (or not
  everything) could be compared because a changelog has lost its beginning; or `min.compaction.lag.ms` of a changelog is
  shorter than the drill.
- *Skipped*, although keys differ: reading took longer than `min.compaction.lag.ms`, so the difference may be compaction.
  Raise that setting, take a savepoint, and drill again. Until then do **not** restore from the changelog alone.
- *Failed*, keys differ: `tidemark drill history NAME --json` has the first ones. The store or its changelog is wrong, and
  a drill cannot tell which.
  Run `tidemark savepoint take NAME` and keep the savepoint. Do **not** restore from the changelog alone. Find out which
  program wrote to it.
- *Failed*, cannot be rebuilt: a restore would fail in the same way.
- *Skipped*, nothing to rebuild: the application has never run, or no savepoint holds any of its stores.

`docs/drill.md` explains more.
"""

_AGE_RUNBOOK = """\
### What it does
Looks up the last restore drill that each application passed, in the history of drills.

### When it fails
The last passing drill is older than allowed, or no drill has ever passed. One from before an upgrade, a rescale or a reset
gives a warning. Trigger `restore_drill` for the application, and read why the last drills did not pass: `tidemark drill history
<name> --json`.
"""


def judge_age(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """Judge the age of the last drill that passed."""
    from tidemark_airflow.drills import judge_age as judged

    return judged(topology, float(params["max_age_days"]))


with operations_dag(
    "restore_drill",
    kind=DagKind.CHECK,
    description="Rebuilds the state of running applications elsewhere and compares every key",
    use_when="Keep it unpaused: it runs every Sunday. Trigger it before you rely on a restore: after an upgrade, a repair "
    "or a change of topics.",
    runbook=_DRILL_RUNBOOK,
    schedule="0 3 * * 0",
    params={
        "topologies": topologies_param(),
        "follow_batches": Param(
            3,
            type="integer",
            minimum=0,
            title="Batches to follow",
            description="How many batches the rebuilt tasks follow before they are compared again.",
        ),
        "follow_timeout_s": Param(
            120,
            type="integer",
            minimum=1,
            title="Longest wait for batches (seconds)",
            description="If fewer batches have arrived by then, the verdict is: not enough evidence.",
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
        """Return the topologies to drill."""
        return chosen(params or {})

    # One at a time, because a drill takes disk space.
    @task(task_id="drill", max_active_tis_per_dagrun=1, map_index_template="{{ task.op_kwargs['topology'] }}")
    def drill(topology: str, **context: Any) -> str:
        """Drill one application. Fails with the number of keys that differ; the XCom `figures` has those of each store."""
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
    use_when="Keep it unpaused: it runs daily. Trigger it after a drill, to end its alert.",
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
