"""Alerts: what a person must know at once. `docs/alerts.md` has a section per kind; a test compares them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Severity of an alert, from least to most urgent."""

    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class AlertKind(StrEnum):
    """What happened."""

    STREAM_FAILED = "stream failed"
    RESTARTS_SPENT = "restarts spent"
    RTO_MISSED = "RTO missed"
    CHECK_FAILED = "check failed"
    DRILL_TOO_OLD = "drill too old"
    OPERATION_FAILED = "operation failed"
    PLAN_WAITS = "plan waits"

    @property
    def severity(self) -> Severity:
        """Return critical if a stream has stopped, error if something is wrong, warning if a person should look."""
        if self in (AlertKind.STREAM_FAILED, AlertKind.RESTARTS_SPENT, AlertKind.RTO_MISSED):
            return Severity.CRITICAL
        return Severity.WARNING if self in (AlertKind.DRILL_TOO_OLD, AlertKind.PLAN_WAITS) else Severity.ERROR

    @property
    def runbook(self) -> str:
        """Return the section of the docs that says what to do."""
        return f"docs/alerts.md#{self.lower().replace(' ', '-')}"


@dataclass(frozen=True)
class Alert:
    """One alert. `application_id` is empty if the alert is about no single application; `message` is one line.

    `time_ms` is when it was raised, in epoch milliseconds.
    """

    what: AlertKind
    application_id: str
    severity: Severity
    message: str
    runbook: str
    time_ms: int

    @classmethod
    def of(cls, what: AlertKind, application_id: str, message: str, time_ms: int) -> Alert:
        """Build an alert with the severity and the runbook of its kind."""
        return cls(what, application_id, what.severity, " ".join(message.split()), what.runbook, time_ms)
