"""The steps that `restore_oncall` and the DAGs of changes share: stop the instances, relaunch them, report.

A *case* is the folder of one run of such a DAG: what was requested, the plan, the answer, the time line and the report. Tasks
import this module when they run, because it loads clients. A refusal fails the task without a retry, and so does its time
limit; after any other failure the task is retried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from tidemark.clock import wall_clock_ms
from tidemark.errors import ApplicationIdTaken, OutcomeUnknown, PreflightFailed, StartRefused
from tidemark.failpoint import Probe, probe_from_environment
from tidemark.operations.case.approval import PlanApproval
from tidemark.operations.case.case import DONE, FAILED, KEPT_FORWARD, RESTORE, SAID, Case, CaseFolder, case_id_of
from tidemark.operations.case.drain import drain as await_drained
from tidemark.operations.case.report import CaseOutcome, make_report
from tidemark.operations.clients import Clients
from tidemark.operations.context import OperationContext
from tidemark.operations.unfinished_work import unfinished_work
from tidemark.settings import Settings
from tidemark.supervision.hold import read_hold, release_hold
from tidemark.supervision.live_instances import live_instances
from tidemark.supervision.stop_under_hold import await_running, stop_under_hold
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load, load_all
from tidemark_airflow.operations import CASE_PARAMS

log = logging.getLogger(__name__)

Context = Mapping[str, Any]

_HELD = "held.json"
_ONLY_WAIT = frozenset({"relaunch", "drain"})
"""Steps that change nothing: a retry goes on waiting for what the step before has brought about."""


@dataclass(frozen=True)
class OpenCase:
    """The case that a task works on, with its folder, the settings and the deployed topology."""

    case: Case
    folder: CaseFolder
    settings: Settings
    topology: TopologyPlan


@dataclass(frozen=True)
class Step:
    """A running step. `report` writes a line to the log and to the time line."""

    opened: OpenCase
    probe: Probe
    report: Callable[[str], None]


def case_of(context: Context) -> OpenCase:
    """Return the case of a run. It is the same for each task and each try of the run.

    Raises `AirflowFailException` if another run with the same `run_after` has opened the case.
    """
    params, run = context["params"], context["dag_run"]
    settings, topology = Settings.load(), load(params["topology"])
    case = Case(
        case_id=case_id_of(run.run_after),
        kind=run.dag_id,
        topology=params["topology"],
        application_id=topology.application_id,
        asked={name: value for name, value in params.items() if name not in CASE_PARAMS},
        dry_run=bool(params["dry_run"]),
        reason=params["reason"],
        asked_ms=int(run.run_after.timestamp() * 1000),
        run_id=run.run_id,
    )
    folder = CaseFolder.of(settings.var_dir, case.application_id, case.case_id, wall_clock_ms)
    try:
        folder.require_same_run(case)
    except StartRefused as error:
        raise AirflowFailException(str(error)) from error
    return OpenCase(case, folder, settings, topology.plan())


def approval_of(context: Context) -> PlanApproval:
    """Return the approval of a run's case."""
    opened = case_of(context)
    return PlanApproval(opened.folder, opened.settings)


def is_done(context: Context) -> bool:
    """Return whether the requested work is done, so that a task that is cleared has nothing to do.

    Such a task writes no line to the time line: RTO and outcome are those of the work itself.
    """
    done = approval_of(context).is_done
    if done:
        log.info("the work of this case is done: nothing is changed")
    return done


def kept_plan(context: Context) -> str:
    """Return the text of the plan as it was shown to the approver."""
    return str(case_of(context).folder.read("plan.json")["summary"])


def write_down(context: Context) -> None:
    """Record what was requested, and by whom.

    Raises `AirflowFailException` if the application id of the topology belongs to another module: the stream runs that one.
    """
    opened = case_of(context)
    opened.folder.open(opened.case)
    opened.folder.note("preflight", "figures", asked_by=context["dag_run"].triggering_user_name)
    if isinstance(taken := load_all()[opened.case.topology], ApplicationIdTaken):
        opened.folder.note("preflight", FAILED, str(taken))
        raise AirflowFailException(str(taken))


@contextmanager
def step(context: Context, name: str) -> Iterator[Step]:
    """Run one step and write its beginning and end to the time line.

    Raises `AirflowFailException` if the step is refused or exceeds the time limit of its task.
    """
    opened = case_of(context)
    try:
        with opened.folder.step(name) as note:

            def report(line: str) -> None:
                log.info("%s", line)
                note(line)

            probe = probe_from_environment()
            probe(f"oncall-{name}")
            with nullcontext() if name in _ONLY_WAIT else _failing_at_time_limit(opened.case, name):
                yield Step(opened, probe, report)
            probe(f"oncall-{name}-done")
    except (StartRefused, PreflightFailed) as error:
        raise AirflowFailException(str(error)) from error


@contextmanager
def _failing_at_time_limit(case: Case, name: str) -> Iterator[None]:
    """Raise `AirflowFailException` if Airflow ends the block at the task's time limit, so that it is not retried.

    A retry would begin the step again with the application stopped, and reach the limit again.
    """
    try:
        yield
    except AirflowTaskTimeout as error:
        command = "restore" if case.kind == RESTORE else case.kind
        raise AirflowFailException(
            f"the step {name} took longer than the time limit of its task, and a retry would begin it again. It may have "
            f"committed all the same: see `tidemark {command} plan {case.topology}` first. `tidemark {command} run "
            f"{case.topology}` in a terminal has no time limit"
        ) from error


def fence(context: Context) -> None:
    """Stop every instance and keep the stream's DAG from relaunching them.

    Stops nothing, and takes no hold, unless the plan is approved and no other restore or rewind is unfinished: the hold of one
    that was killed protects folders that are half swapped. Does nothing if the task is cleared after the work is done.
    """
    if is_done(context):
        return
    with step(context, "fence") as at:
        case, folder, approval = at.opened.case, at.opened.folder, approval_of(context)
        approval.require()
        approval.require_topology(_planned_for(at.opened))
        if (left := _unfinished_work(at.opened, but=case.case_id)) is not None:
            raise StartRefused(f"{left}; no instance was stopped")
        hold = stop_under_hold(at.opened.settings.var_dir, case.application_id, case.case_id, case.reason, at.report)
        # When this task runs a second time, the instances that ran before are stopped already.
        if not folder.holds(_HELD):
            folder.write(_HELD, {"instances": list(hold.instances)})


def _planned_for(opened: OpenCase) -> TopologyPlan:
    """Return the deployed topology in the form for which plans of this kind of case are made."""
    if opened.case.kind != RESTORE:
        return opened.topology
    return OperationContext.of(opened.topology, opened.settings, (), wall_clock_ms).plan


def _unfinished_work(opened: OpenCase, but: str | None = None) -> str | None:
    """Return which restore or rewind is unfinished, without the one of the case `but`. See `unfinished_work`."""
    clients = Clients.of(opened.settings, wall_clock_ms)
    return unfinished_work(clients, opened.case.application_id, opened.case.topology, but)


def relaunch(context: Context) -> None:
    """Release the hold and wait until the instances that ran before run again. If they are late, the work is kept."""
    if _was_done(context, "relaunch"):
        return
    with step(context, "relaunch") as at:
        case, var_dir = at.opened.case, at.opened.settings.var_dir
        release_hold(var_dir, case.application_id, case.case_id)
        wanted = tuple(at.opened.folder.read(_HELD)["instances"])
        if not wanted:
            at.report(f"no instance ran before: unpause stream__{case.topology} to start it")
            return
        try:
            await_running(var_dir, case.application_id, wanted, float(context["params"]["relaunch_timeout_s"]))
        except OutcomeUnknown as error:
            # Not retried: the longest wait is over.
            if not approval_of(context).is_done:
                raise AirflowFailException(str(error)) from error
            summary = f"it is in place and stays; when the cause is removed, unpause stream__{case.topology}"
            at.opened.folder.note("relaunch", KEPT_FORWARD, summary)
            raise AirflowFailException(f"{error}; what was approved is done: {summary}") from error
        at.report(f"{', '.join(f'{case.application_id}-{number}' for number in wanted)} run again")


def drain(context: Context) -> None:
    """Watch the lag until the records that waited are committed."""
    if _was_done(context, "drain"):
        return
    with step(context, "drain") as at:
        settings = at.opened.settings
        if not live_instances(settings.var_dir, at.opened.case.application_id):
            at.report("no instance runs on this machine, so the lag is not watched")
            return
        evidence = OperationContext.of(at.opened.topology, settings, (), wall_clock_ms).evidence
        await_drained(evidence, float(context["params"]["drain_timeout_s"]), at.report)


def _was_done(context: Context, name: str) -> bool:
    """Return whether the work of the case and the step `name` after it are both done."""
    return is_done(context) and case_of(context).folder.has(name, DONE)


def release(context: Context) -> None:
    """Release the hold of this case, unless a restore or a rewind is unfinished.

    An instance that was launched then could begin with an empty store, because its folder is in a workspace. After a roll-back,
    also wait until the instances run again.
    """
    probe_from_environment()("oncall-release")
    opened = case_of(context)
    case, folder, var_dir = opened.case, opened.folder, opened.settings.var_dir
    hold, left = read_hold(var_dir, case.application_id), None
    if hold is not None and hold.by == case.case_id:
        left = _unfinished_work(opened)
        if left is None and release_hold(var_dir, case.application_id, case.case_id):
            folder.note("release", SAID, "the stream DAG may launch the instances again")
    approval = approval_of(context)
    if case.kind != RESTORE and not approval.is_done:
        # The instances continue from here, so a failed change needs a new plan and must not use the old answer.
        approval.close()
    if left is not None:
        summary = f"{left}; until then the hold of this case keeps every instance from starting"
        log.error("%s", summary)
        folder.note("release", FAILED, summary)
        return
    if not folder.has("roll_back", DONE):
        return
    wanted = tuple(folder.read(_HELD)["instances"])
    try:
        await_running(var_dir, case.application_id, wanted, float(context["params"]["relaunch_timeout_s"]))
    except OutcomeUnknown as error:
        summary = f"{error}; when the cause is removed, unpause stream__{case.topology}"
        log.error("%s", summary)
        folder.note("release", FAILED, summary)


def report(context: Context) -> str:
    """Write the report and return the path of its page.

    Raises `AirflowFailException` if the case did not end as requested.
    """
    probe_from_environment()("oncall-report")
    folder = case_of(context).folder
    made = make_report(folder, approval_of(context).answer)
    path = str(folder.folder / "report.html")
    log.info("%s; report: %s", made["outcome"], path)
    if not made["is_as_wanted"]:
        # An unproven state is not the failure of a step: the failure of an earlier try would look like its cause.
        causes = [] if made["outcome"] == CaseOutcome.RESTORED_UNPROVEN else made["failures"][-1:]
        raise AirflowFailException(f"{': '.join([made['outcome'], *causes])}; the report is {path}")
    return path
