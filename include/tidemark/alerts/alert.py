"""What a person has to know at once. `docs/alerts.md` has a section per kind; a test compares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """From least to most urgent."""

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
        """A stream stands still (critical), something is not as it must be (error), or a person should look (warning)."""
        if self in (AlertKind.STREAM_FAILED, AlertKind.RESTARTS_SPENT, AlertKind.RTO_MISSED):
            return Severity.CRITICAL
        return Severity.WARNING if self in (AlertKind.DRILL_TOO_OLD, AlertKind.PLAN_WAITS) else Severity.ERROR

    @property
    def runbook(self) -> str:
        """The section that says what to do."""
        return f"docs/alerts.md#{self.lower().replace(' ', '-')}"


@dataclass(frozen=True)
class Alert:
    """One alert. `application_id` is empty where it is about no single application; `message` is one line.

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
        """With the severity and the runbook of its kind."""
        return cls(what, application_id, what.severity, " ".join(message.split()), what.runbook, time_ms)
