"""The concerns about an application: what needs an operator, the worst first, each with the action that helps. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tidemark.checks.liveness import CHECK as RTO_CHECK
from tidemark.clock import duration
from tidemark.overview.application import Application, ApplicationState
from tidemark.overview.history import CheckView
from tidemark.stores.directory import STANDBY_PREFIX
from tidemark.supervision.hold import stale_remedy
from tidemark.supervision.local_instances import LocalInstance
from tidemark.supervision.run_file import LOST
from tidemark.supervision.state import InstanceState
from tidemark.verdict import Verdict

STALLED_S = 12.0
"""An instance that commits nothing for this long while input waits is a concern. A commit that takes longer allows for more."""
STANDBY_WAITS_S = 120.0
"""A standby that can follow nothing for this long beside a stream that runs is a concern. It must be less than the ten minutes
after which such a standby ends and is launched again, as its state then begins again."""
_LONG_COMMITS = 5
_CHECK_DAGS = {
    "audit": "exactly_once_audit",
    "compaction": "compaction_check",
    "drill": "restore_drill",
    "drill_age": "restore_drill",
    "durability": "durability_check",
    "lag": "lag_check",
    "restore_drill": "restore_drill",
    "retention": "retention_check",
    "savepoint": "savepoint",
}
"""The DAG that runs each check again."""
_OF_MANY = frozenset(_CHECK_DAGS.values())
"""These take a list of topologies, the others a single one."""
_CLEAR_TASK = "Read the last lines of the task's log, remove the cause, and clear the failed task."
_STARTS_AGAIN = "Airflow starts it again by itself. If it stays down, read why in the task's log."


class Severity(StrEnum):
    """How urgent a concern is."""

    CRITICAL = "critical"
    WARNING = "warning"


_RANK = {severity: rank for rank, severity in enumerate(Severity)}


class ActionKind(StrEnum):
    """What a user can do with a DAG: trigger a run, unpause it, answer its request for approval, or only look at it.

    The Streams page shows `LOOK` as a link to every user who may read the DAG. It shows each other action as a button to
    users with the right to it.
    """

    TRIGGER = "trigger"
    UNPAUSE = "unpause"
    ANSWER = "answer"
    LOOK = "look"


@dataclass(frozen=True)
class Action:
    """A button or a link. One that triggers opens the DAG's form, filled in with `params`; others open the DAG in Airflow."""

    kind: ActionKind
    label: str
    dag_id: str
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Concern:
    """Something that needs a person. `remedy` is a sentence for what no button does."""

    severity: Severity
    message: str
    remedy: str = ""
    action: Action | None = None


def stream_dag_id(topology: str) -> str:
    """Return the id of the DAG that keeps a topology running."""
    return f"stream__{topology}"


def trigger(app: Application, dag_id: str, label: str, **params: str) -> Action:
    """Return the button that opens an operation's form, filled in for this application."""
    topology = {"topologies": app.topology} if dag_id in _OF_MANY else {"topology": app.topology}
    return Action(ActionKind.TRIGGER, label, dag_id, {**topology, **params})


def operations(app: Application) -> list[Action]:
    """Return the buttons that every application has."""
    return [
        trigger(app, "savepoint", "Take a savepoint"),
        trigger(app, "restore_drill", "Drill a restore"),
        trigger(app, "exactly_once_audit", "Audit"),
        trigger(app, "restore_oncall", "Restore…"),
        trigger(app, "upgrade", "Upgrade…"),
        trigger(app, "rescale", "Rescale…"),
    ]


def concerns(app: Application) -> list[Concern]:
    """Return everything that needs a person, the worst first. Empty if all is well."""
    found = [*_of_cases(app), *_of_processes(app), *_of_progress(app), *_of_checks(app), *_of_dead_letters(app)]
    return sorted(found, key=lambda concern: _RANK[concern.severity])


def _of_cases(app: Application) -> Iterator[Concern]:
    for case in app.files.cases:
        if case.answer_until_ms is not None:
            left = duration(max(0.0, (case.answer_until_ms - app.now_ms) / 1000))
            who = ", ".join(case.approvers) or "anybody who may run this DAG"
            kind = case.kind.replace("_", " ")
            yield Concern(
                Severity.WARNING,
                f"The plan of {kind} waits for an answer for another {left}. It can be given by {who}.",
                action=Action(ActionKind.ANSWER, "Read the plan and answer", case.kind),
            )


def _of_processes(app: Application) -> Iterator[Concern]:
    if app.files_fault is not None:
        yield Concern(
            Severity.CRITICAL,
            f"Whether the stream runs is not known, because its files cannot be read: {app.files_fault}.",
            "Let the user of the API server read the file, or look after the disk. `tidemark status` shows what runs.",
        )
    hold, dag_id = app.files.hold, stream_dag_id(app.topology)
    if hold is not None:
        if app.files.stale is not None:
            remedy = stale_remedy(hold, app.topology)
            yield Concern(
                Severity.CRITICAL,
                f"A hold keeps the stream stopped, and nothing works under it any more: {app.files.stale}.",
                f"{remedy[0].upper()}{remedy[1:]}.",
            )
        return
    if app.state is ApplicationState.FAILED:
        yield _of_failure(app)
    if app.is_wanted is False:
        return
    for instance in app.files.instances:
        yield from _of_instance(app, instance)
    for process in (*app.files.instances, *app.files.standbys):
        if process.is_watched is False:
            yield _of_unwatched(app, process)
    for standby in app.files.standbys:
        yield from _of_standby(app, standby)
    if app.state is ApplicationState.DOWN and not any(one.outage for one in app.files.instances):
        yield Concern(
            Severity.CRITICAL,
            "No instance runs, although the stream's DAG is on.",
            "Airflow starts it again by itself within its restart budget. If it stays down, read why in the task's log.",
            Action(ActionKind.LOOK, "Open the stream's DAG", dag_id),
        )


def _of_failure(app: Application) -> Concern:
    given_up = (one for one in app.files.instances if one.has_given_up)
    failed = next(given_up) if app.is_wanted else app.files.ended[0]
    code = "" if failed.exit_code is None else f" with exit code {failed.exit_code}"
    then, remedy = "its DAG is paused", "Read the last lines of the task's log, remove the cause, and unpause the DAG."
    look: Action | None = Action(ActionKind.LOOK, "Open the stream's DAG", stream_dag_id(app.topology))
    if app.is_wanted:
        then, remedy = "its task has failed", _CLEAR_TASK
    elif app.is_wanted is None:
        then, look = "Airflow does not have its DAG", None
        remedy = "Read the last lines of the instance's log, and remove the cause. Deploy its topology if Airflow is to run it."
    return Concern(
        Severity.CRITICAL,
        f"The stream has failed: instance {failed.instance} ended{code}, and {then}.",
        remedy,
        look,
    )


def _of_instance(app: Application, instance: LocalInstance) -> Iterator[Concern]:
    name, dag_id = f"Instance {instance.instance}", stream_dag_id(app.topology)
    if instance.outage is not None:
        waited = duration(max(0.0, (app.now_ms - instance.outage.since_ms) / 1000))
        yield Concern(
            Severity.CRITICAL,
            f"{name} has waited for brokers for {waited}: {instance.outage.why}.",
            "Start the broker that is named. The stream continues by itself.",
            trigger(app, "durability_check", "Check replicas and leaders"),
        )
    elif instance.standstill is not None:
        stood = duration(max(0.0, (app.now_ms - instance.standstill.since_ms) / 1000))
        yield Concern(
            Severity.CRITICAL,
            f"{name} has made no progress for {stood}: {instance.standstill.why}.",
            "If it is restoring, wait. Otherwise make a plan to restore its state; a dry run changes nothing.",
            trigger(app, "restore_oncall", "Plan a restore", dry_run="true"),
        )
    if instance.state in (LOST, InstanceState.ERROR) and app.running:
        yield Concern(
            Severity.WARNING,
            f"{name} {_ended(instance)}, and the other instances have its work.",
            _CLEAR_TASK if instance.has_given_up else _STARTS_AGAIN,
            Action(ActionKind.LOOK, "Open the stream's DAG", dag_id),
        )


def _of_unwatched(app: Application, process: LocalInstance) -> Concern:
    name = f"Instance {process.instance}" if isinstance(process.instance, int) else _standby_name(process)
    return Concern(
        Severity.WARNING,
        f"{name} runs, but no trigger of Airflow watches it: it is not launched again when it ends.",
        "Start a triggerer if none runs. Otherwise clear its task, which adopts it, or pause the DAG, which stops it.",
        Action(ActionKind.LOOK, "Open the stream's DAG", stream_dag_id(app.topology)),
    )


def _standby_name(standby: LocalInstance) -> str:
    return str(standby.instance).replace("-", " ").capitalize()


def _of_standby(app: Application, standby: LocalInstance) -> Iterator[Concern]:
    name = _standby_name(standby)
    look = Action(ActionKind.LOOK, "Open the stream's DAG", stream_dag_id(app.topology))
    waited_s = 0.0 if standby.since_ms is None else (app.now_ms - standby.since_ms) / 1000
    wanted = {f"{STANDBY_PREFIX}{number}" for number in range(app.plan.num_standby_replicas)}
    if not standby.is_alive and app.is_wanted and standby.instance in wanted:
        yield Concern(
            Severity.WARNING,
            f"{name} {_ended(standby)}: its copies age, and no query is answered from them.",
            _CLEAR_TASK if standby.has_given_up else _STARTS_AGAIN,
            look,
        )
    elif standby.is_alive and standby.state == InstanceState.CREATED and app.running and waited_s > STANDBY_WAITS_S:
        yield Concern(
            Severity.WARNING,
            f"{name} has followed nothing for {duration(waited_s)}: {standby.useless_because or 'it gives no reason'}.",
            "If the topology was upgraded, wait: the standby ends after ten minutes, and Airflow starts it with the new one. "
            "Otherwise remove the cause.",
            look,
        )


def _ended(process: LocalInstance) -> str:
    code = process.exit_code
    if process.state == InstanceState.NOT_RUNNING:
        how = "was stopped"
    else:
        # A process that ended before it wrote its run file is `LOST`, too.
        how = "was killed" if process.state == LOST and (code is None or code > 128) else "ended with an error"
    return how if code is None else f"{how} (exit code {code})"


def _of_progress(app: Application) -> Iterator[Concern]:
    if app.state is not ApplicationState.RUNNING or not app.lag or app.last_commit_ms is None:
        return
    quiet_s = (app.now_ms - app.last_commit_ms) / 1000
    if quiet_s > max(STALLED_S, _LONG_COMMITS * (app.commit_s or 0.0)):
        yield Concern(
            Severity.CRITICAL,
            f"Nothing has been committed for {duration(quiet_s)} while up to {app.lag:,} records wait.",
            "The check finds open transactions and partitions without a leader, and names the remedy.",
            trigger(app, "lag_check", "Check the lag"),
        )


def _of_checks(app: Application) -> Iterator[Concern]:
    for check in app.history.checks if app.history is not None else ():
        failed = check.of(Verdict.FAILED)
        # A standstill that lasts is a concern of its instance, and its last verdict stays in the history.
        if failed and check.check != RTO_CHECK:
            yield _of_failed_check(app, check)


def _of_failed_check(app: Application, check: CheckView) -> Concern:
    failed = check.of(Verdict.FAILED)
    more = f" And {len(failed) - 1} more." if len(failed) > 1 else ""
    dag_id = _CHECK_DAGS.get(check.check)
    return Concern(
        Severity.CRITICAL,
        f"The check {check.check.replace('_', ' ')} failed. {failed[0].subject}: {failed[0].message}.{more}",
        action=None if dag_id is None else trigger(app, dag_id, "Check again"),
    )


def _of_dead_letters(app: Application) -> Iterator[Concern]:
    figures = app.live.figures if app.live is not None else None
    if figures is not None and figures.bad:
        yield Concern(
            Severity.WARNING,
            f"{figures.bad:,} records could not be processed in the last 15 minutes and became dead letters.",
            f"See them with `tidemark dlq list {app.topology}`. When the cause is removed, `tidemark dlq replay "
            f"{app.topology}` sends them again.",
        )
