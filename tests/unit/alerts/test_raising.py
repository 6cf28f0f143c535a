"""An alert reaches the log and the user's callback, and a failing callback changes nothing."""

from __future__ import annotations

import logging
import sys
import threading
import time

import pytest
from tests.support.alert_notes import NOTE, NOTES_FILE, noted
from tests.support.logged import logged_by

from tidemark import alerts
from tidemark.alerts import Alert, AlertKind, load_callback, raise_alert
from tidemark.errors import InvalidSettings
from tidemark.settings import Settings

ALERT = Alert.of(AlertKind.CHECK_FAILED, "app", "the message", 1_800_000_000_000)
HERE = __name__
hung = threading.Event()


def fails(alert):
    raise RuntimeError(f"no way to tell {alert.application_id}")


def leaves(alert):
    sys.exit(3)


def hangs(alert):
    hung.wait(60)


def raised(callback, caplog, **changes):
    caplog.set_level(logging.ERROR)
    raise_alert(Settings.load(alert_callback=callback, **changes), ALERT)
    return logged_by(caplog, "tidemark.alerts", logging.ERROR)


def test_should_log_a_line_at_level_error_by_default(caplog):
    (line,) = raised("", caplog)
    assert line.getMessage() == (
        "alert: what=check failed application=app severity=error runbook=docs/alerts.md#check-failed: the message"
    )


def test_should_call_the_callback_once_and_write_to_the_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(NOTES_FILE, str(tmp_path / "notes"))
    (line,) = raised(NOTE, caplog)
    assert "the message" in line.getMessage()
    assert noted(tmp_path / "notes") == [
        {
            "what": "check failed",
            "application_id": "app",
            "severity": "error",
            "message": "the message",
            "runbook": "docs/alerts.md#check-failed",
            "time_ms": 1_800_000_000_000,
        }
    ]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"{HERE}:fails", "no way to tell app"),
        (f"{HERE}:leaves", "3"),
        ("nowhere.at_all:note", "module nowhere.at_all cannot be imported"),
    ],
)
def test_should_only_log_errors_of_the_callback(path, said, caplog):
    alert, failure = raised(path, caplog)
    assert "the message" in alert.getMessage()
    assert failure.getMessage() == f"alert callback {path} failed; the alert is only in this log"
    assert said in str(failure.exc_info[1])


def test_should_not_wait_for_a_callback_that_hangs(caplog, monkeypatch):
    monkeypatch.setattr(alerts, "_CALLBACK_S", 0.2)
    started = time.monotonic()
    _, said = raised(f"{HERE}:hangs", caplog)
    hung.set()
    assert time.monotonic() - started < 30
    assert "did not return" in said.getMessage()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no-path", "'no-path' is not an import path; write 'package.module:name'"),
        ("nowhere.at_all:note", "module nowhere.at_all cannot be imported"),
        (f"{HERE}:absent", "has no such name"),
        (f"{HERE}:HERE", "has it as str, which cannot be called"),
    ],
)
def test_should_refuse_a_path_that_names_no_function(path, said):
    with pytest.raises(InvalidSettings, match=r"^setting alert_callback: ") as refused:
        load_callback(Settings.load(alert_callback=path))
    assert said in str(refused.value)


def test_should_load_the_named_callback_and_none_when_none_is_named():
    assert load_callback(Settings.load(alert_callback=f"{HERE}:fails")) is fails
    assert load_callback(Settings.load(alert_callback="")) is None
