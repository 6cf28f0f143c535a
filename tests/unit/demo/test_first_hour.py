"""The steps of the demo against an Airflow that behaves as told: one after another, nothing twice, every wait explained."""

from __future__ import annotations

import pytest
from tests.support.overview import instance

from demo import first_hour
from demo.capacity import Capacity, capacity
from demo.first_hour import AUDIT, OPERATIONS, FirstHour, Pace, why_waiting
from demo.steps import StepRunner, StepState, StepView
from tidemark.devstack.airflow import AirflowRefused
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.supervision.outage_file import RecordedOutage

BEGAN_MS = 1_000_000
SMALL = capacity(2, 16 << 30)
PACE = Pace(run_begins_s=0.05, stream_s=0.2, run_s=0.2, every_s=0.001)


@pytest.fixture(autouse=True)
def _looks(monkeypatch):
    """A step looks as often as its pace allows, however long a look takes on a busy machine."""

    def looked(condition, timeout_s, every_s):
        return any(condition() for _ in range(round(timeout_s / every_s) + 1))

    monkeypatch.setattr(first_hour, "wait_until", looked)


class Airflow:
    """Starts a run when a DAG is unpaused, unless it is one of `slow`; each ends at the second look, as `results` says."""

    def __init__(self, results=None, slow=(), known=None):
        self.calls, self.results, self.slow = [], results or {}, slow
        self.states = dict(known or {})

    def wait_for_dag(self, dag_id):
        self.calls.append(("wait", dag_id))

    def unpause(self, dag_id):
        self.calls.append(("unpause", dag_id))
        assert not self._live(), "one run at a time"
        if dag_id not in self.slow:
            self.states.setdefault(dag_id, []).insert(0, "queued")

    def pause(self, dag_id):
        self.calls.append(("pause", dag_id))

    def trigger(self, dag_id):
        self.calls.append(("trigger", dag_id))
        self.states.setdefault(dag_id, []).insert(0, "queued")
        return "run"

    def runs(self, dag_id):
        found = self.states.get(dag_id, [])
        answer = [{"state": state} for state in found]
        if found and not dag_id.startswith("stream__"):
            following = {"queued": "running", "running": self.results.get(dag_id, "success")}
            found[0] = following.get(found[0], found[0])
        return answer

    def _live(self):
        return [d for d, s in self.states.items() if not d.startswith("stream__") and {"queued", "running"} & set(s)]


def running(_topology):
    return [instance(last_commit_ms=BEGAN_MS, stream_time_ms=0)]


def run(airflow, able=SMALL, instances=running, services=lambda: None):
    runner = StepRunner(FirstHour(airflow, able, instances, services, BEGAN_MS, PACE).steps())
    runner.run()
    return {view.name: view for view in runner.views()}


def order(airflow, what):
    return [dag_id for call, dag_id in airflow.calls if call == what]


def test_should_start_streams_and_then_operations_one_after_another():
    airflow, started = Airflow(), []
    found = run(airflow, services=lambda: started.append(len(order(airflow, "unpause"))))
    assert {view.state for view in found.values()} == {StepState.DONE}
    assert order(airflow, "unpause") == [
        "stream__patient_monitoring", "stream__clicks", "stream__shopping", *OPERATIONS,
    ]  # fmt: skip
    assert order(airflow, "trigger") == []
    assert started == [1], "heartbeats begin when their stream was launched, once"


def test_should_trigger_a_run_if_unpausing_starts_none():
    airflow = Airflow(slow={"stream__clicks", "restore_drill"})
    found = run(airflow)
    assert order(airflow, "trigger") == ["stream__clicks", "restore_drill"]
    assert found["restore_drill"].text == "its run succeeded"


@pytest.mark.parametrize(("cores", "paused"), [(2, [AUDIT]), (4, [])])
def test_the_audit_should_stay_on_only_where_the_machine_bears_it(cores, paused):
    airflow = Airflow()
    found = run(airflow, capacity(cores, 16 << 30))
    assert order(airflow, "pause") == paused
    assert found[AUDIT].text == "its run succeeded"


def test_what_has_run_before_should_not_run_again():
    airflow = Airflow(known={"restore_drill": ["success", "failed"], AUDIT: ["success"]})
    found = run(airflow)
    assert {"restore_drill", AUDIT}.isdisjoint(order(airflow, "unpause"))
    assert found["restore_drill"].text == found[AUDIT].text == "it has run before"


@pytest.mark.parametrize(("cores", "paused"), [(2, [AUDIT]), (4, [])])
def test_an_audit_whose_demo_was_stopped_meanwhile_should_be_paused_by_the_next(cores, paused):
    airflow = Airflow(known={AUDIT: ["success"]})
    run(airflow, capacity(cores, 16 << 30))
    assert order(airflow, "pause") == paused


def test_what_failed_when_it_ran_before_should_be_a_failed_step():
    airflow = Airflow(known={"restore_drill": ["failed", "success"]})
    found = run(airflow)
    assert found["restore_drill"].state is StepState.FAILED
    assert "its run failed" in found["restore_drill"].text
    assert "restore_drill" not in order(airflow, "unpause")


def test_a_failed_run_should_be_a_failed_step_and_the_next_one_runs():
    found = run(Airflow(results={"savepoint": "failed"}))
    assert found["savepoint"].state is StepState.FAILED
    assert "its run failed: the log of its task says" in found["savepoint"].text
    assert found["lag_check"].state is StepState.DONE


def test_a_run_that_does_not_end_should_be_a_failed_step_with_where_to_look():
    found = run(Airflow(results={AUDIT: "running"}))
    assert "its run has not ended in 0 min" in found[AUDIT].text


@pytest.mark.parametrize(
    ("committed_ms", "stream_time_ms"), [(None, 5), (BEGAN_MS - 1, 5), (BEGAN_MS, NO_STREAM_TIME), (BEGAN_MS, None)]
)
def test_a_stream_should_be_done_only_with_records_committed_since_the_demo_began(committed_ms, stream_time_ms):
    able = Capacity(("clicks",), keeps_audit=True, reasons=())
    one = instance(last_commit_ms=committed_ms, stream_time_ms=stream_time_ms)
    found = run(Airflow(), able, lambda _topology: [one])
    assert found["stream clicks"].state is StepState.FAILED
    assert "no batch was committed in 0 s" in found["stream clicks"].text
    assert "task `instance` of stream__clicks" in found["stream clicks"].text


def test_an_airflow_that_does_not_answer_at_once_should_be_asked_again():
    airflow, answers = Airflow(), iter([AirflowRefused("no answer"), AirflowRefused("no answer")])

    def wait_for_dag(_dag_id):
        if (error := next(answers, None)) is not None:
            raise error

    airflow.wait_for_dag = wait_for_dag
    able = Capacity(("clicks",), keeps_audit=True, reasons=())
    assert run(airflow, able)["stream clicks"].state is StepState.DONE


def test_an_airflow_that_refuses_should_not_be_asked_again():
    airflow, asked = Airflow(), []

    def wait_for_dag(dag_id):
        asked.append(dag_id)
        raise AirflowRefused("no such DAG", 404)

    airflow.wait_for_dag = wait_for_dag
    able = Capacity(("clicks",), keeps_audit=True, reasons=())
    found = run(airflow, able)
    assert found["stream clicks"] == StepView(
        "stream clicks", StepState.FAILED, "no such DAG", found["stream clicks"].seconds
    )
    assert asked.count("stream__clicks") == 1


@pytest.mark.parametrize(
    ("instances", "says"),
    [
        ([], "Airflow launches its instance"),
        ([instance(is_alive=False, state="LOST")], "its instance ended, and Airflow launches it again"),
        ([instance(state="CREATED")], "Spark starts"),
        ([instance(state="RESTORING")], "it rebuilds its state"),
        ([instance()], "has not committed a batch yet"),
        ([instance(state="NEW_STATE")], "it is NEW_STATE"),
        ([instance(is_alive=False, outage=RecordedOutage(1, "no leader", ()))], "it waits for brokers: no leader"),
    ],
)
def test_should_say_what_a_stream_waits_for(instances, says):
    assert says in why_waiting(instances)


def test_every_wait_of_a_step_should_have_a_reason():
    said = {}
    for step in FirstHour(Airflow(), SMALL, running, lambda: None, BEGAN_MS, PACE).steps():
        reports = []
        step.work(reports.append)
        said[step.name] = reports
    assert all(reports and all(reports) for reports in said.values())
