"""The callbacks of DAGs and tasks that raise an alert: on a failed task, a missed deadline, or a plan that waits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import BaseDeadlineReference, DeadlineAlert
from airflow.sdk.exceptions import AirflowFailException

from tidemark.alerts import Alert, AlertKind, raise_alert
from tidemark.clock import wall_clock_ms
from tidemark.errors import TidemarkError
from tidemark.settings import Settings
from tidemark.topology_loader import load
from tidemark_airflow.threads import own_thread

log = logging.getLogger(__name__)


class Alarm(AirflowFailException):
    """Fails a task without a retry, and names the alert to raise."""

    def __init__(self, what: AlertKind, application_id: str, message: str) -> None:
        super().__init__(message)
        self.what = what
        self.application_id = application_id


@dataclass(frozen=True)
class AlertOnFailure:
    """The failure callback of a task: raises an alert when the task has failed for good.

    Airflow calls it once, in the task's worker, or in the DAG processor if the worker died. There is no alert when a person
    marks a task or a run as failed. `what` is the alert to raise, unless the task ended with an `Alarm`. If `application_id`
    is None, the application is taken from the task's arguments or parameters.
    """

    what: AlertKind
    application_id: str | None = None

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Raise the alert. `context` is that of the task; it has no exception if the worker died."""
        error = context.get("exception")
        where = f"{context['ti'].dag_id}.{context['ti'].task_id}"
        if isinstance(error, Alarm):
            _raise(error.what, error.application_id, f"{where}: {error}")
            return
        said = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
        application_id = _application(context) if self.application_id is None else self.application_id
        _raise(self.what, application_id, f"{where}: {said or 'its worker died; see the log of the task'}")


def alert_on_time_out(context: Mapping[str, Any]) -> None:
    """The failure callback of a run: raises an alert if the run exceeded its `dagrun_timeout`.

    In every other case the failed task has raised an alert already.
    """
    if context.get("reason") != "timed_out":
        return
    message = (
        f"{context['dag'].dag_id}: Airflow ended run {context['run_id']}: it took longer than its dagrun_timeout; look which "
        "task had not ended: if it never started, no worker serves its queue, so start one"
    )
    _raise(AlertKind.OPERATION_FAILED, _application(context), message)


class PlanWaits(BaseNotifier):
    """Raises an alert when a plan begins to wait for a person's answer."""

    def __init__(self, response_timeout: timedelta) -> None:
        super().__init__()
        self.response_timeout = response_timeout

    def notify(self, context: Mapping[str, Any]) -> None:
        """Raise the alert. The approval task calls this before it waits; `context` is that of the approval task."""
        task, run = context["task"], context["dag_run"]
        users = ", ".join(user["name"] for user in task.assigned_users or []) or "any user who may run the DAG"
        try:
            place = task.generate_link_to_ui(task_instance=context["ti"])
        except ValueError:
            place = "Required actions of the run"
        waits = f"the plan of run {run.run_id} waits for an answer from {users} within {self.response_timeout}"
        _raise(AlertKind.PLAN_WAITS, _application(context), f"{run.dag_id}: {waits}: {place}")


class SinceCreated(BaseDeadlineReference):
    """A deadline reference: the time at which a run was created, which is when it was triggered.

    Airflow's own `DAGRUN_QUEUED_AT` is the same time, but a run with such a deadline cannot be cleared: Airflow 3.3.2 then
    computes with an interval that it has not read back from its database (`TypeError`). `plugins/tidemark_plugin.py`
    registers this class with Airflow.
    """

    def _evaluate_with(self, *, session: Any, **_run: Any) -> datetime:
        """Return the current time. Airflow calls this in the step that creates the run."""
        return datetime.now(UTC)


def alert_on_deadline(allowed: timedelta) -> DeadlineAlert:
    """Return a deadline that raises an alert if a run has not ended `allowed` after its creation.

    The time spent waiting for an approval counts.
    """
    return DeadlineAlert(reference=SinceCreated(), interval=allowed, callback=AsyncCallback(missed_deadline))


async def missed_deadline(context: Mapping[str, Any]) -> None:
    """The callback of a missed deadline: raises an alert, unless the run has ended already.

    Airflow calls it in the triggerer. `context` holds the run as it was when the deadline passed.
    """
    run = context["dag_run"]
    if run["state"] in ("success", "failed"):
        return
    message = f"{run['dag_id']}: run {run['dag_run_id']} has not ended by {context['deadline']['deadline_time']}"
    application_id = _application({"params": run["conf"]})
    with own_thread("missed deadline") as in_thread:
        await in_thread(lambda: _raise(AlertKind.RTO_MISSED, application_id, message))


def _raise(what: AlertKind, application_id: str, message: str) -> None:
    raise_alert(Settings.load(), Alert.of(what, application_id, message, wall_clock_ms()))


def _application(context: Mapping[str, Any]) -> str:
    """Return the id of the application that a task works on, or an empty string if there are several or none."""
    arguments = getattr(context.get("task"), "op_kwargs", None)
    name = arguments.get("topology") if isinstance(arguments, Mapping) else None
    name = name or (context.get("params") or {}).get("topology")
    if not isinstance(name, str):
        return ""
    try:
        return load(name).application_id
    except TidemarkError as error:
        log.info("failed to find the application of topology %s: %s", name, error)
        return name
