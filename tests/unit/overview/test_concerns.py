"""What needs an operator, and with which button; and the state of an application from its instances."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.overview import NOW, PLAN, application, checked, instance, live

from tidemark.checks.liveness import CHECK as RTO_CHECK
from tidemark.overview.application import ApplicationState, ProcessFiles
from tidemark.overview.cases import CaseView
from tidemark.overview.concerns import STALLED_S, STANDBY_WAITS_S, ActionKind, Severity, concerns, operations
from tidemark.overview.rights import Rights
from tidemark.supervision.hold import Hold
from tidemark.supervision.outage_file import RecordedOutage
from tidemark.supervision.run_file import LOST
from tidemark.supervision.standstill_file import Standstill
from tidemark.verdict import Verdict

OUTAGE = RecordedOutage(NOW - 95_000, "no broker leads clicks[0]", ())
STOOD = Standstill(NOW - 240_000, "it commits nothing while 12 offsets wait")
ID = "20261122T031500000000Z"
KILLED = instance(state=LOST, is_alive=False, exit_code=137, ended_ms=NOW - 604_800_000)
HOLD = Hold("c1", "a restore", NOW - 5000)
CASE = CaseView(
    "20231114T221000000000Z",
    "restore_oncall",
    "clicks",
    "a new disk",
    False,
    NOW,
    None,
    False,
    None,
    NOW + 60_000,
    ("ann",),
    (),
    False,
)


@pytest.mark.parametrize(
    ("instances", "is_wanted", "state"),
    [
        ([instance()], True, ApplicationState.RUNNING),
        ([instance(), instance(instance=1, state="RESTORING")], True, ApplicationState.RESTORING),
        ([instance(state="REBALANCING")], True, ApplicationState.STARTING),
        ([instance(state="CREATED")], True, ApplicationState.STARTING),
        ([instance(state="PENDING_SHUTDOWN")], False, ApplicationState.STOPPING),
        ([instance(standstill=STOOD)], True, ApplicationState.STALLED),
        ([instance(outage=OUTAGE)], True, ApplicationState.WAITING),
        ([instance(state="ERROR", is_alive=False, outage=OUTAGE)], True, ApplicationState.WAITING),
        ([instance(state="NOT_RUNNING", is_alive=False, outage=OUTAGE)], False, ApplicationState.STOPPED),
        ([instance(state="ERROR", is_alive=False)], False, ApplicationState.FAILED),
        ([instance(state=LOST, is_alive=False, exit_code=137)], False, ApplicationState.FAILED),
        (
            [instance(state=LOST, is_alive=False, exit_code=137, was_stopped_by_pause=True)],
            False,
            ApplicationState.STOPPED,
        ),
        (
            [instance(state="ERROR", is_alive=False, exit_code=10, outage=OUTAGE)],
            False,
            ApplicationState.STOPPED,
        ),
        ([instance(state="ERROR", is_alive=False, exit_code=10)], False, ApplicationState.FAILED),
        (
            [KILLED, instance(instance=1, state="NOT_RUNNING", is_alive=False, ended_ms=NOW)],
            False,
            ApplicationState.STOPPED,
        ),
        ([KILLED, instance(instance=1, state="ERROR", is_alive=False, ended_ms=NOW)], False, ApplicationState.FAILED),
        (
            [KILLED, instance(instance=1, state="NOT_RUNNING", is_alive=False, ended_ms=NOW - 604_800_001)],
            False,
            ApplicationState.FAILED,
        ),
        ([instance(state="NOT_RUNNING", is_alive=False, exit_code=0)], False, ApplicationState.STOPPED),
        ([instance(state=LOST, is_alive=False)], True, ApplicationState.DOWN),
        ([instance(state="ERROR", is_alive=False, exit_code=30)], True, ApplicationState.FAILED),
        ([instance(state=LOST, is_alive=False, exit_code=2)], True, ApplicationState.FAILED),
        ([instance(state="ERROR", is_alive=False, exit_code=10)], True, ApplicationState.DOWN),
        (
            [
                instance(state="ERROR", is_alive=False, exit_code=30),
                instance(instance=1, state="ERROR", is_alive=False, exit_code=1),
            ],
            True,
            ApplicationState.DOWN,
        ),
        (
            [
                instance(state="ERROR", is_alive=False, exit_code=30),
                instance(instance=1, state="NOT_RUNNING", is_alive=False, exit_code=0),
            ],
            True,
            ApplicationState.FAILED,
        ),
        ([instance(state=LOST, is_alive=False)], False, ApplicationState.STOPPED),
        ([instance(state="NOT_RUNNING", is_alive=False)], None, ApplicationState.STOPPED),
        ([], True, ApplicationState.STARTING),
        ([], False, ApplicationState.NEVER_RAN),
    ],
)
def test_the_state_should_be_that_of_the_worst_instance(instances, is_wanted, state):
    assert application(*instances, is_wanted=is_wanted).state is state


def test_a_hold_should_come_before_the_state_of_the_instances():
    files = ProcessFiles(instances=(instance(state=LOST, is_alive=False),), hold=HOLD)
    assert application(files=files).state is ApplicationState.HELD


def test_nothing_should_need_anybody_if_all_is_well():
    well = application(instance(), live=live(lag=12), history=checked("lag", Verdict.OK, Verdict.WARNING))
    assert concerns(well) == []


@pytest.mark.parametrize(
    ("app", "says"),
    [
        (application(instance(is_watched=False)), "Instance 0 runs, but no trigger"),
        (
            application(
                files=ProcessFiles((instance(is_watched=True),), (instance(instance="standby-1", is_watched=False),))
            ),
            "Standby 1 runs, but no trigger",
        ),
    ],
)
def test_what_nothing_watches_should_be_a_warning(app, says):
    (found,) = concerns(app)
    assert (found.severity, found.action.dag_id) == (Severity.WARNING, "stream__clicks")
    assert found.message.startswith(says)
    assert concerns(replace(app, is_wanted=False)) == []


def test_a_paused_stream_should_need_nobody():
    assert concerns(application(instance(state=LOST, is_alive=False), is_wanted=False)) == []


@pytest.mark.parametrize(
    ("app", "says", "dag_id"),
    [
        (application(instance(state=LOST, is_alive=False)), "No instance runs", "stream__clicks"),
        (
            application(instance(state="ERROR", is_alive=False, exit_code=30), is_wanted=False),
            "The stream has failed: instance 0 ended with exit code 30",
            "stream__clicks",
        ),
        (application(instance(outage=OUTAGE)), "no broker leads clicks[0]", "durability_check"),
        (application(instance(standstill=STOOD)), "no progress for 4:00", "restore_oncall"),
        (
            application(instance(), history=checked("lag", Verdict.FAILED)),
            "check lag failed. store-0: the disk",
            "lag_check",
        ),
        (application(instance(), history=checked("drill_age", Verdict.FAILED)), "check drill age", "restore_drill"),
        (application(instance(), history=checked("audit", Verdict.FAILED)), "check audit failed", "exactly_once_audit"),
    ],
)
def test_what_stops_a_stream_should_be_critical_and_name_what_to_press(app, says, dag_id):
    (found,) = concerns(app)
    assert found.severity is Severity.CRITICAL
    assert says in found.message
    assert found.action is not None
    assert found.action.dag_id == dag_id


@pytest.mark.parametrize(
    ("quiet_s", "commit_s", "lag", "is_stalled"),
    [
        (STALLED_S, 0.25, 5, False),
        (STALLED_S + 1, 0.25, 5, True),
        (STALLED_S + 1, 0.25, 0, False),
        (STALLED_S + 1, 4.0, 5, False),
        (21, 4.0, 5, True),
    ],
)
def test_a_stream_that_commits_nothing_while_records_wait_should_be_a_concern(quiet_s, commit_s, lag, is_stalled):
    last_ms = NOW - int(quiet_s * 1000)
    running = instance(last_commit_ms=last_ms, last_commit_s=commit_s)
    found = concerns(application(running, live=live(lag, committed_ms=last_ms)))
    assert [concern.action.dag_id for concern in found if concern.action] == (["lag_check"] if is_stalled else [])
    # Of the offsets, some may be transaction markers.
    assert all(f"while up to {lag} records wait" in concern.message for concern in found)


def test_an_instance_that_died_beside_others_should_be_a_warning():
    app = application(instance(), instance(instance=1, state=LOST, is_alive=False, exit_code=137))
    (found,) = concerns(app)
    assert found.severity is Severity.WARNING
    assert "Instance 1 was killed (exit code 137)" in found.message


def test_an_instance_that_refused_beside_others_should_need_its_task_cleared():
    app = application(instance(), instance(instance=1, state="ERROR", is_alive=False, exit_code=30))
    (found,) = concerns(app)
    assert "clear the failed task" in found.remedy


def test_a_failed_stream_whose_run_a_standby_keeps_alive_should_say_to_clear_the_task():
    ended = instance(state="ERROR", is_alive=False, exit_code=30)
    files = ProcessFiles(instances=(ended,), standbys=(instance(instance="standby-0"),))
    (found,) = concerns(application(files=files))
    assert "instance 0 ended with exit code 30, and its task has failed" in found.message
    assert "clear the failed task" in found.remedy


def test_a_failed_stream_whose_dag_airflow_does_not_have_should_need_somebody_and_have_no_link_to_it():
    (found,) = concerns(application(instance(state="ERROR", is_alive=False, exit_code=1), is_wanted=None))
    assert found.severity is Severity.CRITICAL
    assert "instance 0 ended with exit code 1, and Airflow does not have its DAG" in found.message
    assert found.action is None


def with_standby(standby, *, replicas=1, **given):
    files = ProcessFiles(instances=(instance(),), standbys=(standby,))
    return application(files=files, plan=replace(PLAN, num_standby_replicas=replicas), **given)


@pytest.mark.parametrize(
    ("standby", "message", "remedy"),
    [
        ({"state": LOST, "exit_code": 137}, "Standby 0 was killed (exit code 137)", "starts it again by itself"),
        ({"state": "NOT_RUNNING", "exit_code": 0}, "Standby 0 was stopped (exit code 0)", "starts it again by itself"),
        ({"state": LOST, "exit_code": 2}, "Standby 0 ended with an error (exit code 2)", "clear the failed task"),
        ({"state": "ERROR", "exit_code": 30}, "ended with an error (exit code 30)", "clear the failed task"),
    ],
)
def test_a_standby_that_does_not_run_should_be_a_warning(standby, message, remedy):
    (found,) = concerns(with_standby(instance(instance="standby-0", is_alive=False, **standby)))
    assert found.severity is Severity.WARNING
    assert message in found.message
    assert remedy in found.remedy
    assert found.action is not None
    assert found.action.dag_id == "stream__clicks"


@pytest.mark.parametrize(("replicas", "is_wanted"), [(0, True), (1, False), (1, None)])
def test_a_standby_that_nobody_wants_should_need_nobody(replicas, is_wanted):
    ended = instance(instance="standby-0", state=LOST, is_alive=False)
    assert concerns(with_standby(ended, replicas=replicas, is_wanted=is_wanted)) == []


@pytest.mark.parametrize(("waited_s", "is_concern"), [(STANDBY_WAITS_S, False), (STANDBY_WAITS_S + 1, True)])
def test_a_standby_that_follows_nothing_should_be_a_warning_with_its_reason(waited_s, is_concern):
    waits = instance(
        instance="standby-0", state="CREATED", since_ms=NOW - int(waited_s * 1000), useless_because="another version"
    )
    found = concerns(with_standby(waits))
    assert ["for 2:01: another version" in concern.message for concern in found] == ([True] if is_concern else [])


def test_a_standby_may_wait_for_a_stream_that_does_not_run():
    waits = instance(instance="standby-0", state="CREATED", since_ms=0)
    files = ProcessFiles(instances=(instance(state=LOST, is_alive=False),), standbys=(waits,))
    assert [concern.severity for concern in concerns(application(files=files))] == [Severity.CRITICAL]


def test_a_plan_that_waits_should_say_who_answers_and_until_when():
    (found,) = concerns(application(files=ProcessFiles(instances=(instance(),), cases=(CASE,))))
    assert "waits for an answer for another 1:00. It can be given by ann." in found.message
    assert found.action is not None
    assert (found.action.kind, found.action.dag_id) == (ActionKind.ANSWER, "restore_oncall")
    answered = replace(CASE, answer_until_ms=None)
    assert concerns(application(files=ProcessFiles(instances=(instance(),), cases=(answered,)))) == []


def test_only_a_stale_hold_should_need_somebody():
    held = ProcessFiles(instances=(instance(state=LOST, is_alive=False),), hold=HOLD)
    assert concerns(application(files=held)) == []
    (found,) = concerns(application(files=replace(held, stale="case c1 is over")))
    assert "case c1 is over" in found.message
    assert found.remedy == "Run `tidemark clean run clicks`, which removes the hold if nothing is left unfinished."
    killed = replace(HOLD, continued_by=f"tidemark restore run NAME --resume {ID}")
    (found,) = concerns(application(files=replace(held, hold=killed, stale="process 7 was killed")))
    assert found.remedy.startswith(f"Run `tidemark restore run clicks --resume {ID}`; if nothing is left unfinished, ")


def test_new_dead_letters_should_be_a_warning_that_names_the_commands():
    (found,) = concerns(application(instance(), live=live(bad=3)))
    assert found.message.startswith("3 records could not be processed in the last 15 minutes")
    assert "`tidemark dlq list clicks`" in found.remedy


def test_the_verdict_of_a_standstill_that_is_over_should_not_be_a_concern():
    assert concerns(application(instance(), history=checked(RTO_CHECK, Verdict.FAILED))) == []


def test_the_worst_should_come_first():
    app = application(instance(outage=OUTAGE), live=live(bad=3))
    assert [concern.severity for concern in concerns(app)] == [Severity.CRITICAL, Severity.WARNING]


def test_buttons_should_be_shown_only_to_whom_the_dag_obeys():
    actions = operations(application(instance()))
    ids = frozenset(action.dag_id for action in actions)
    assert Rights(ids).allowed(actions) == []
    assert [action.dag_id for action in Rights(ids, frozenset({"savepoint"})).allowed(actions)] == ["savepoint"]


def test_buttons_should_name_the_parameter_that_the_dag_has():
    params = {action.dag_id: dict(action.params) for action in operations(application(instance()))}
    assert params["restore_drill"] == {"topologies": "clicks"}
    assert params["restore_oncall"] == {"topology": "clicks"}
