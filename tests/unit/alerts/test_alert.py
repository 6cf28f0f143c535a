"""What an alert says, and that its runbook is there."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError

import pytest

from tidemark.alerts import Alert, AlertKind, Severity
from tidemark.settings import project_root


def test_should_have_a_section_that_says_what_to_do_for_every_kind():
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
        (AlertKind.DRILL_TOO_OLD, Severity.WARNING),
        (AlertKind.PLAN_WAITS, Severity.WARNING),
    ],
)
def test_should_be_as_urgent_as_its_kind(what, severity):
    assert Alert.of(what, "app", "x", 5).severity is severity


def test_should_say_it_in_one_line_and_stay_as_it_is():
    alert = Alert.of(AlertKind.CHECK_FAILED, "app", "two\n  lines", 5)
    assert (alert.message, alert.application_id, alert.time_ms) == ("two lines", "app", 5)
    with pytest.raises(FrozenInstanceError):
        alert.message = "another"
