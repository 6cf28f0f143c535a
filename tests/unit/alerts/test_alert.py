"""The contents of an alert, and that its runbook exists."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError

import pytest

from tidemark.alerts import Alert, AlertKind, Severity
from tidemark.settings import project_root


def test_should_document_what_to_do_for_every_kind_of_alert():
    page = project_root() / "docs" / "alerts.md"
    headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    for what in AlertKind:
        file, _, anchor = what.runbook.partition("#")
        assert (file, anchor in anchors) == ("docs/alerts.md", True), what


@pytest.mark.parametrize(
    ("what", "severity"),
    [
        (AlertKind.STREAM_FAILED, Severity.CRITICAL),
        (AlertKind.RESTARTS_SPENT, Severity.CRITICAL),
        (AlertKind.RTO_MISSED, Severity.CRITICAL),
        (AlertKind.CHECK_FAILED, Severity.ERROR),
        (AlertKind.OPERATION_FAILED, Severity.ERROR),
        (AlertKind.STANDBY_FAILED, Severity.ERROR),
        (AlertKind.DRILL_TOO_OLD, Severity.WARNING),
        (AlertKind.PLAN_WAITS, Severity.WARNING),
    ],
)
def test_should_have_the_severity_of_its_kind(what, severity):
    assert Alert.of(what, "app", "x", 5).severity is severity


def test_should_hold_one_line_and_be_immutable():
    alert = Alert.of(AlertKind.CHECK_FAILED, "app", "two\n  lines", 5)
    assert (alert.message, alert.application_id, alert.time_ms) == ("two lines", "app", 5)
    with pytest.raises(FrozenInstanceError):
        alert.message = "another"
