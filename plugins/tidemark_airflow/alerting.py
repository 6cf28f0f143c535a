"""From a failed task, or a deadline that has passed, to an alert: the callbacks that DAGs and their tasks have."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import AsyncCallback, BaseDeadlineReference, DeadlineAlert
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException

from tidemark.alerts.alert import Alert, AlertKind
from tidemark.alerts.raising import raise_alert
from tidemark.clock import wall_clock_ms
from tidemark.errors import TidemarkError
from tidemark.settings import Settings
from tidemark.topology.load import load
from tidemark_airflow.threads import own_thread

log = logging.getLogger(__name__)


class Alarm(AirflowFailException):
    """Ends a task for good, and says which alert that is."""

    def __init__(self, what: AlertKind, application_id: str, message: str) -> None:
        super().__init__(message)
        self.what = what
        self.application_id = application_id


@dataclass(frozen=True)
class AlertOnFailure:
    """Airflow calls it once when a task has failed for good, in its worker, or where that died in the DAG processor.

    A person who marks a task or a run failed knows it, and gets no alert. `what` is the alert unless the task ended by an
    `Alarm`; `application_id` None: the one that the task is about.
    """

    what: AlertKind
    application_id: str | None = None

    def __call__(self, context: Mapping[str, Any]) -> None:
        """`context` is the task's; of a worker that died it lacks the exception."""
        error = context.get("exception")
        where = f"{context['ti'].dag_id}.{context['ti'].task_id}"
        if isinstance(error, Alarm):
            _raise(error.what, error.application_id, f"{where}: {error}")
            return
        said = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
        application_id = _application(context) if self.application_id is None else self.application_id
        _raise(self.what, application_id, f"{where}: {said or 'its worker died; see the log of the task'}")


def alert_on_time_out(context: Mapping[str, Any]) -> None:
    """Airflow calls it when a run has failed. Its tasks have told why, unless the run's own time was over."""
    if context.get("reason") != "timed_out":
        return
    message = f"{context['dag'].dag_id}: run {context['run_id']} was ended: it took longer than its dagrun_timeout"
    _raise(AlertKind.OPERATION_FAILED, _application(context), message)


class PlanWaits(BaseNotifier):
    """Raises an alert when a plan begins to wait for the answer of a person."""

    def __init__(self, response_timeout: timedelta) -> None:
        super().__init__()
        self.response_timeout = response_timeout

    def notify(self, context: Mapping[str, Any]) -> None:
        """The approval calls it before it waits; `context` is its own."""
        task, run = context["task"], context["dag_run"]
        users = ", ".join(user["name"] for user in task.assigned_users or []) or "anybody who may run the DAG"
        try:
            place = task.generate_link_to_ui(task_instance=context["ti"])
        except ValueError:
            place = "Required actions of the run"
        waits = f"the plan of run {run.run_id} waits for an answer of {users} within {self.response_timeout}"
        _raise(AlertKind.PLAN_WAITS, _application(context), f"{run.dag_id}: {waits}: {place}")


class SinceCreated(BaseDeadlineReference):
    """Deadlines of a run count from when it was created, which is when somebody triggered it.

    Airflow's own `DAGRUN_QUEUED_AT` is the same moment, but a run that has such a deadline before it cannot be cleared:
    Airflow 3.3.2 then computes with an interval that it has not read back from its database (`TypeError`). Airflow
    knows a reference of ours by `plugins/tidemark_plugin.py`.
    """

    def _evaluate_with(self, *, session: Any, **_run: Any) -> datetime:
        """Airflow calls it in the step that creates the run."""
        return datetime.now(UTC)


def alert_on_deadline(allowed: timedelta) -> DeadlineAlert:
    """A run of an operation that has not ended this long after it was created; the waiting for an approval counts."""
    return DeadlineAlert(reference=SinceCreated(), interval=allowed, callback=AsyncCallback(missed_deadline))


async def missed_deadline(context: Mapping[str, Any]) -> None:
    """Airflow calls it in the triggerer; `context` holds the run as it stood then, which may have failed before."""
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
    """The application that a task of an operation is about; empty where it is about several, or none."""
    arguments = getattr(context.get("task"), "op_kwargs", None)
    name = arguments.get("topology") if isinstance(arguments, Mapping) else None
    name = name or (context.get("params") or {}).get("topology")
    if not isinstance(name, str):
        return ""
    try:
        return load(name).application_id
    except TidemarkError as error:
        log.info("the application of %s is not known: %s", name, error)
        return name
