"""The only way to raise an alert: a log line at ERROR, then the user's own callback, which cannot stop or delay the caller."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidemark.alerts.alert import Alert
from tidemark.errors import InvalidSettings, InvalidTopology
from tidemark.settings import Settings
from tidemark.tasks.code import load_code

log = logging.getLogger(__name__)

_CALLBACK_S = 30.0

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
            "alert callback %s has not come back after %.0f s; it is abandoned", settings.alert_callback, _CALLBACK_S
        )


def _call(settings: Settings, alert: Alert) -> None:
    try:
        callback = load_callback(settings)
        if callback is not None:
            callback(alert)
    except (Exception, SystemExit):
        log.exception("alert callback %s failed; the alert is only in this log", settings.alert_callback)
