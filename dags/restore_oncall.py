"""`restore_oncall`: a restore as on-call runs it, with a plan that a person approves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, chain, task

from tidemark.settings import Settings
from tidemark_airflow.approval import PlanApprovalOperator
from tidemark_airflow.case_tasks import RETRIES, drain, fence, relaunch, release, report, unless_dry_run
from tidemark_airflow.operations import case_params, operations_dag

RUNBOOK = """\
### At three in the morning
1. `tidemark status`. If an instance runs and says RESTORING, it is rebuilding its state by itself: wait.
2. Trigger this DAG with **dry run** on. Read the task `plan`: what is rebuilt from where, for how long the application stands.
3. Trigger it with dry run off, and say why. The plan waits under *Required actions* for somebody who may approve it. No answer
   in time means no. The answer is for this plan alone: where another topology is deployed by then, nothing is stopped.
4. After the approval everything is done by itself: the instances are stopped under a hold (the stream's own DAG waits), the
   state is built beside the old one, every key is compared with its changelog, the new state is swapped in, the instances come
   back, and the lag is watched until what waited is committed.
5. The task `report` names the page with the time line, RTO, RPO, and who approved.

### When it fails
Up to the swap it rolls back by itself: the old state folders are put back, the hold is released, the instances come back.
`report` says what failed. Once the new state is in place it is kept, also when the instances are late: a person is needed for
them alone, and whatever is cleared and run again changes nothing. A rewind that is committed cannot be rolled back: clear the
task `fence` with all behind it, which finishes it.

`report` says that a person is needed: `tidemark restore status NAME`, `tidemark restore rollback NAME`. An application that
stays held (`var/instances/<application>.hold.json`) although nothing works on it: clear the task `release`.

No instance ran before: this DAG starts none. Unpause `stream__<name>`. `docs/oncall.md` says more.
"""

_SETTINGS = Settings.load()
# Until somebody has answered, and from then on as long as a stream may stand still.
_ALLOWED = timedelta(milliseconds=_SETTINGS.oncall_response_timeout_ms) + timedelta(seconds=_SETTINGS.rto_s)
_DEADLINE = _ALLOWED if _SETTINGS.rto_s > 0 else None

with operations_dag(
    "restore_oncall",
    description="Restores an application's state, or rewinds it, after a person has approved the plan",
    runbook=RUNBOOK,
    schedule=None,
    params=case_params(
        dry_run="Only make and show the plan: nobody is asked and nothing is changed.",
        relaunch_timeout="If they are not back by then, the run fails; the state that was restored stays.",
        own={
            "source": Param(
                "fastest",
                type="string",
                enum=["fastest", "local", "standby", "savepoint", "changelog", "source"],
                title="Source of state",
                description="Where the state is to come from. The fastest one that will do is chosen unless you know better.",
            ),
            "tasks": Param(
                [],
                type="array",
                items={"type": "string", "pattern": r"^\d+_\d+$"},
                title="Tasks",
                description="Restore only these, such as `0_1`; none named is all of them. A rewind takes all.",
            ),
            "stores": Param(
                [],
                type="array",
                items={"type": "string", "minLength": 1},
                title="Stores",
                description="Restore only these, in the tasks above; everything else of these tasks stays as it is. "
                "None named is all of them. A rewind takes all.",
            ),
            "target": Param(
                "latest",
                type="string",
                minLength=1,
                title="Target",
                description="`latest`; or back to a time (`2026-08-01T12:00:00Z`, `-10m`) or to source offsets "
                "(`topic[0]=120`).",
            ),
        },
    ),
    tags=["restore"],
    timeout=timedelta(hours=24),
    task_timeout=timedelta(hours=8),
    deadline=_DEADLINE,
):

    @task(**RETRIES)
    def preflight(**context: Any) -> None:
        """Can it be done at all?"""
        from tidemark_airflow import oncall

        oncall.preflight(context)

    @task(**RETRIES)
    def plan(**context: Any) -> str:
        """What would be done, and what it touches."""
        from tidemark_airflow import oncall

        return oncall.plan(context)

    approval = PlanApprovalOperator(
        task_id="approval",
        subject="Restore {{ params.topology }}?",
        response_timeout=timedelta(milliseconds=_SETTINGS.oncall_response_timeout_ms),
    )

    @task(**RETRIES)
    def restore(**context: Any) -> None:
        """Build the state beside the old one, and compare every key with its changelog."""
        from tidemark_airflow import oncall

        oncall.restore(context)

    @task(**RETRIES)
    def verify(**context: Any) -> None:
        """Is every store there, equal, and where Kafka stands?"""
        from tidemark_airflow import oncall

        oncall.verify(context)

    @task(**RETRIES)
    def swap(**context: Any) -> None:
        """Put the new state in place; the old one is kept aside."""
        from tidemark_airflow import oncall

        oncall.swap(context)

    @task(trigger_rule="one_failed", **RETRIES)
    def roll_back(**context: Any) -> None:
        """Bring the old state back, unless the new one is in place."""
        from tidemark_airflow import oncall

        oncall.roll_back(context)

    steps = [fence(), restore(), verify(), swap()]
    relaunched, rolled_back, released, reported = relaunch(), roll_back(), release(), report()
    chain(preflight(), plan(), unless_dry_run(), approval, *steps, relaunched, drain(), reported)
    # What fails after the swap is no fault of the state, which is kept.
    steps >> rolled_back >> released >> reported
    relaunched >> released
