"""`restore_oncall`: the restore that an on-call engineer runs, from a plan that a person approves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, chain, task

from tidemark.settings import Settings
from tidemark_airflow.approval import PlanApprovalOperator
from tidemark_airflow.case_tasks import RETRIES, drain, fence, relaunch, release, report, set_run_limit, unless_dry_run
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import case_params, operations_dag

RUNBOOK = """\
### At three in the morning
1. Run `tidemark status`. If an instance runs with the state RESTORING, it is rebuilding its state by itself: wait.
2. Trigger this DAG with **dry run** on. Read the task `plan`: what is rebuilt, from where, and how long the application
   stops.
3. Trigger it with dry run off and a reason. The plan waits under *Required actions* for a person who may approve it. No
   answer in time means no. The answer is valid for this plan only: if another topology is deployed by then, or another
   restore or a rewind was left unfinished, nothing is stopped. The message names the command that finishes it.
4. After the approval the rest runs without you. The instances are stopped under a *hold*, which makes the stream's own DAG
   wait. The state is built beside the old one, every key is compared with its changelog, and the new state is put in place.
   The instances start again, and the lag is watched until everything that waited is committed.
5. The task `report` names the page with the time line, RTO, RPO, and who approved.

### When it fails
Before the task `swap` is done, the DAG rolls back by itself: it puts the old state folders back, releases the hold, and waits
for the instances to start. `report` says what failed. Once the new state is in place it is kept, also if the instances start
late: then a person must look after the instances, and clearing tasks changes nothing more. A committed rewind cannot be
rolled back: clear the task `fence` and all tasks after it, which completes the rewind.

If the beginning of a changelog was deleted, too few keys may be compared to prove the new state right: it is in place, the
instances run on it, and `report` fails and says so. Run a drill, or compare the state with a savepoint.

If `report` says that a person is needed: `tidemark restore status NAME`, `tidemark restore rollback NAME`. If an application
stays held (`var/instances/<application>.hold.json`), a restore or a rewind may be unfinished: finish it, as `release` says. If
nothing is, clear the task `release`.

If no instance ran before, this DAG starts none. Unpause `stream__<name>`. `docs/oncall.md` explains more.
"""

_SETTINGS = Settings.load()
# The time for the answer, plus the longest time for which a stream may be stopped.
_ALLOWED = timedelta(milliseconds=_SETTINGS.oncall_response_timeout_ms) + timedelta(seconds=_SETTINGS.rto_s)
_DEADLINE = _ALLOWED if _SETTINGS.rto_s > 0 else None

with operations_dag(
    "restore_oncall",
    kind=DagKind.OPERATION,
    description="Restores an application's state, or rewinds it, after a person has approved the plan",
    use_when="State is lost or wrong: stores are missing, differ from their changelog, or must go back to an earlier time."
    " An instance that is RESTORING needs nothing.",
    runbook=RUNBOOK,
    schedule=None,
    params=case_params(
        dry_run="Only make and show the plan. No approval is requested and nothing is changed.",
        relaunch_timeout="If they do not run by then, the DAG run fails; the restored state stays.",
        own={
            "source": Param(
                "fastest",
                type="string",
                enum=["fastest", "local", "standby", "savepoint", "changelog", "source"],
                title="Source of state",
                description="Where to restore the state from. fastest: the fastest source that can restore all of it.",
            ),
            "tasks": Param(
                [],
                type="array",
                items={"type": "string", "pattern": r"^\d+_\d+$"},
                title="Tasks",
                description="Restore only these, such as `0_1`. Empty: all of them. A rewind always covers all.",
            ),
            "stores": Param(
                [],
                type="array",
                items={"type": "string", "minLength": 1},
                title="Stores",
                description="Restore only these, in the tasks above; the other stores of these tasks stay unchanged. "
                "Empty: all of them. A rewind always covers all.",
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
    task_timeout=timedelta(hours=8),
    deadline=_DEADLINE,
) as dag:

    @task(retries=RETRIES)
    def preflight(**context: Any) -> None:
        """Check whether the restore is possible."""
        from tidemark_airflow import oncall

        oncall.preflight(context)

    @task(retries=RETRIES)
    def plan(**context: Any) -> str:
        """Make the plan: what would be done, and what it affects."""
        from tidemark_airflow import oncall

        return oncall.plan(context)

    approval = PlanApprovalOperator(
        task_id="approval",
        subject="Restore {{ params.topology }}?",
        response_timeout=timedelta(milliseconds=_SETTINGS.oncall_response_timeout_ms),
    )

    @task(retries=RETRIES)
    def restore(**context: Any) -> None:
        """Build the state beside the old one and compare every key with its changelog."""
        from tidemark_airflow import oncall

        oncall.restore(context)

    @task(retries=RETRIES)
    def verify(**context: Any) -> None:
        """Check that every store is there, is equal to its changelog, and matches the committed offsets."""
        from tidemark_airflow import oncall

        oncall.verify(context)

    @task(retries=RETRIES)
    def swap(**context: Any) -> None:
        """Put the new state in place and keep the old one aside."""
        from tidemark_airflow import oncall

        oncall.swap(context)

    @task(trigger_rule="one_failed", retries=RETRIES)
    def roll_back(**context: Any) -> None:
        """Put the old state back, unless the new one is in place."""
        from tidemark_airflow import oncall

        oncall.roll_back(context)

    steps = [fence(), restore(), verify(), swap()]
    relaunched, rolled_back, released, reported = relaunch(), roll_back(), release(), report()
    chain(preflight(), plan(), unless_dry_run(), approval, *steps, relaunched, drain(), reported)
    # A failure after the swap is no fault of the restored state, so that state is kept.
    steps >> rolled_back >> released >> reported
    relaunched >> released

set_run_limit(dag)
