"""The arguments that Airflow passes to the callbacks of a DAG, and the alerts that they raise."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from tests.support.alert_notes import NOTE, NOTES_FILE, noted

from tidemark.alerts import AlertKind
from tidemark.audit.expectations import CHECKS
from tidemark.audit.suites import ExpectationOutcome, finding
from tidemark.checks.verdict_table import past_verdicts
from tidemark.database import FactsDatabase
from tidemark.operations.drill_history.report import RebuildMethod, StoreDrill
from tidemark.settings import Settings
from tidemark.verdict import Finding, Verdict
from tidemark_airflow import dag as dag_module
from tidemark_airflow.alerting import Alarm, AlertOnFailure, PlanWaits, alert_on_time_out
from tidemark_airflow.operations import DRILL_AGE, conclude

TI = SimpleNamespace(dag_id="lag_check", task_id="lag")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "notes"
    monkeypatch.setenv("TIDEMARK_ALERT_CALLBACK", NOTE)
    monkeypatch.setenv(NOTES_FILE, str(path))
    return path


def summary(notes: Path) -> list[tuple[str, str, str]]:
    return [(alert["what"], alert["application_id"], alert["message"]) for alert in noted(notes)]


def test_should_repeat_the_kind_and_message_of_an_alarm(notes: Path) -> None:
    error = Alarm(AlertKind.DRILL_TOO_OLD, "shopping", "none passed")
    AlertOnFailure(AlertKind.OPERATION_FAILED)({"ti": TI, "exception": error})
    assert summary(notes) == [("drill too old", "shopping", "lag_check.lag: none passed")]


@pytest.mark.parametrize(
    ("context", "application_id", "said"),
    [
        ({"exception": ValueError("no\nbroker")}, "", "ValueError: no broker"),
        ({"exception": "as text"}, "", "as text"),
        ({}, "", "its worker died; see the log of the task"),
        (
            {"params": {"topology": "patient_monitoring"}},
            "patient-monitoring",
            "its worker died; see the log of the task",
        ),
        (
            {"params": {"topology": None}, "task": SimpleNamespace(op_kwargs={"topology": "shopping"})},
            "shopping",
            "its worker died; see the log of the task",
        ),
        ({"params": {"topology": "no_such"}}, "no_such", "its worker died; see the log of the task"),
    ],
)
def test_should_name_the_failed_task_and_its_application(
    notes: Path, context: dict[str, Any], application_id: str, said: str
) -> None:
    AlertOnFailure(AlertKind.OPERATION_FAILED)({"ti": TI, **context})
    assert summary(notes) == [("operation failed", application_id, f"lag_check.lag: {said}")]


@pytest.mark.parametrize(("check", "what"), [("lag", AlertKind.CHECK_FAILED), (DRILL_AGE, AlertKind.DRILL_TOO_OLD)])
def test_should_end_a_task_with_an_alarm_when_a_verdict_is_failed(
    check: str, what: AlertKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    bad = Finding("drill", Verdict.FAILED, "none ever passed")
    with pytest.raises(Alarm, match=f"{check} of shopping: drill: none ever passed") as ended:
        conclude(check, "shopping", [bad, Finding("x", Verdict.OK, "fine")])
    assert (ended.value.what, ended.value.application_id) == (what, "shopping")


def test_should_name_no_key_and_no_value_in_the_alarm_and_in_the_log_of_an_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    check = next(check for check in CHECKS if check.name == "outputs_are_not_lost")
    row = {"topic": "bills", "partition": 1, "offset": 17, "key": "ada@example.org", "found": None, "expected": "flu"}
    bad = finding(check, ExpectationOutcome(check.name, False, 3, 40, None), [row])
    assert "ada@example.org" in bad.message
    with pytest.raises(Alarm) as ended:
        conclude("audit", "shopping", [bad])
    assert str(ended.value) == (
        f"audit of shopping: outputs_are_not_lost: 3 rows break this expectation: {check.says}; first topic=bills, "
        f"partition=1, offset=17; {check.remedy}; the rows are on the page of the audit, and in its folder `quarantine`"
    )
    assert "failed: outputs_are_not_lost: 3 rows" in caplog.text
    assert "ada@example.org" not in caplog.text
    (kept,) = past_verdicts(FactsDatabase(Settings.load()), "shopping", "audit")
    assert kept.finding == bad, "the history has the records"


def test_should_name_no_key_and_no_value_in_the_alarm_and_in_the_log_of_a_drill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    first = ("altered ada@example.org: 'flu', but rebuilt 'cold'",)
    way, failed = RebuildMethod.CHANGELOG, Verdict.FAILED
    differs = StoreDrill(
        "0_1", "n", way, "s1", failed, f"1 keys differ: {first[0]}", differing=1, first=first,
        message_without_records="1 keys differ: ask somebody",
    )  # fmt: skip
    broken = StoreDrill("0_2", "n", way, "s1", Verdict.FAILED, "it cannot be rebuilt: too short")
    with pytest.raises(Alarm) as ended:
        conclude("restore_drill", "shopping", [differs.finding, broken.finding])
    assert "ada@example.org" not in caplog.text
    assert str(ended.value) == (
        "restore_drill of shopping: 0_1/n by whole changelog: 1 keys differ: ask somebody; 0_2/n by whole changelog: it cannot "
        "be rebuilt: too short"
    )


@pytest.mark.parametrize(
    ("users", "told_users"), [([{"id": "7", "name": "ada"}], "ada"), (None, "any user who may run the DAG")]
)
def test_should_name_the_plan_that_waits_its_approvers_and_the_time_left(
    notes: Path, users: list[dict[str, str]] | None, told_users: str
) -> None:
    link = "http://airflow/dags/rescale/runs/r1/tasks/approval/required_actions"
    task = SimpleNamespace(assigned_users=users, generate_link_to_ui=lambda task_instance: link)
    run = SimpleNamespace(dag_id="rescale", run_id="r1")
    context = {"task": task, "ti": TI, "dag_run": run, "params": {"topology": "shopping"}}
    PlanWaits(timedelta(minutes=30))(context)
    waits = f"rescale: the plan of run r1 waits for an answer from {told_users} within 0:30:00: {link}"
    assert summary(notes) == [("plan waits", "shopping", waits)]


def test_should_name_the_application_of_a_failed_stream(notes: Path) -> None:
    AlertOnFailure(AlertKind.STREAM_FAILED, "clicks")({"ti": TI})
    assert [alert["application_id"] for alert in noted(notes)] == ["clicks"]


@pytest.mark.parametrize("reason", ["task_failure", "all_tasks_deadlocked", None])
def test_should_not_alert_for_a_failed_run_because_its_tasks_do(notes: Path, reason: str | None) -> None:
    alert_on_time_out({"dag": TI, "run_id": "r", "reason": reason})
    assert summary(notes) == []


def test_should_alert_when_a_run_took_too_long(notes: Path) -> None:
    alert_on_time_out({"dag": TI, "run_id": "r7", "reason": "timed_out", "params": {"topology": "shopping"}})
    (alert,) = summary(notes)
    assert alert[:2] == ("operation failed", "shopping")
    assert alert[2].startswith("lag_check: Airflow ended run r7: it took longer than its dagrun_timeout")
    assert "no worker serves its queue" in alert[2]


def test_should_refuse_to_start_when_the_callback_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = dag_module._instances.function
    assert begin({"instances": 2}) == [0, 1]
    monkeypatch.setenv("TIDEMARK_ALERT_CALLBACK", "nowhere.at_all:page")
    with pytest.raises(
        AirflowFailException, match=r"setting alert_callback: nowhere\.at_all:page: module nowhere\.at_all"
    ):
        begin({"instances": 2})
