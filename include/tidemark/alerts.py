"""Alerts: what a person must know at once. `docs/alerts.md` has a section per kind; a test compares them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tidemark.errors import InvalidSettings, InvalidTopology
from tidemark.settings import Settings
from tidemark.tasks.code import load_code

log = logging.getLogger(__name__)
_CALLBACK_S = 30.0


class Severity(StrEnum):
    """Severity of an alert, from least to most urgent."""

    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class AlertKind(StrEnum):
    """The kind of an alert."""

    STREAM_FAILED = "stream failed"
    RESTARTS_SPENT = "restarts spent"
    RTO_MISSED = "RTO missed"
    CHECK_FAILED = "check failed"
    DRILL_TOO_OLD = "drill too old"
    OPERATION_FAILED = "operation failed"
    PLAN_WAITS = "plan waits"
    STANDBY_FAILED = "standby failed"

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


AlertCallback = Callable[[Alert], object]


def load_callback(settings: Settings) -> AlertCallback | None:
    """Return the function that the setting `alert_callback` names; None if the setting is empty.

    Raises `InvalidSettings` with the import path if it cannot be imported or called.
    """
    if not settings.alert_callback:
        return None
    try:
        found: AlertCallback = load_code(settings.alert_callback, "setting alert_callback")
    except InvalidTopology as error:
        raise InvalidSettings(str(error)) from error
    return found


def raise_alert(settings: Settings, alert: Alert) -> None:
    """Log the alert and pass it to the callback. Blocks for at most 30 seconds. Never raises."""
    log.error(
        "alert: what=%s application=%s severity=%s runbook=%s: %s",
        alert.what, alert.application_id or "-", alert.severity, alert.runbook, alert.message,
    )  # fmt: skip
    if not settings.alert_callback:
        return
    # A daemon thread: a callback that hangs must not keep the process alive.
    thread = threading.Thread(target=_call, args=(settings, alert), name="alert callback", daemon=True)
    thread.start()
    thread.join(_CALLBACK_S)
    if thread.is_alive():
        log.error(
            "alert callback %s did not return within %.0f s; it is abandoned", settings.alert_callback, _CALLBACK_S
        )


def _call(settings: Settings, alert: Alert) -> None:
    try:
        callback = load_callback(settings)
        if callback is not None:
            callback(alert)
    except (Exception, SystemExit):
        log.exception("alert callback %s failed; the alert is only in this log", settings.alert_callback)
