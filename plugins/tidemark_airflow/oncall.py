"""The tasks of `restore_oncall`: each calls a step of `tidemark.operations.case.restore_steps`.

Tasks import this module when they run, because it loads clients and stores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowSkipException

from tidemark.clock import wall_clock_ms
from tidemark.failpoint import Probe, probe_from_environment
from tidemark.kafka.operator_acls import Command
from tidemark.operations.case.case import BEGUN
from tidemark.operations.case.restore_steps import OnCall
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources, past_sources
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.supervision.stop_under_hold import stop_under_hold
from tidemark_airflow.cases import Context, OpenCase, Step, approval_of, case_of, is_done, kept_plan, step, write_down

log = logging.getLogger(__name__)


def preflight(context: Context) -> None:
    """Record what was requested and check whether it is possible."""
    if is_done(context):
        return
    write_down(context)
    with _restoring(context, "preflight") as (call, _):
        call.preflight()


def plan(context: Context) -> str:
    """Make the plan and return its Markdown text, which is shown to the approver."""
    if is_done(context):
        return kept_plan(context)
    with _restoring(context, "plan") as (call, at):
        planned = call.plan()
        at.report(f"a {planned.kind}, about {planned.eta_s:.0f} s")
        return planned.summary


def restore(context: Context) -> None:
    """Build the new state and compare it with the changelogs."""
    if is_done(context):
        return
    with _restoring(context, "restore") as (call, _):
        call.restore()


def verify(context: Context) -> None:
    """Check the results of the comparison and push its figures as an XCom."""
    if not is_done(context):
        with _restoring(context, "verify") as (call, _):
            call.verify()
    # Pushed again on every run, because clearing a task deletes its XComs.
    call = _call_of(case_of(context), probe_from_environment(), log.info)
    context["ti"].xcom_push("figures", call.figures())


def swap(context: Context) -> None:
    """Put the new state in place."""
    if is_done(context):
        return
    with _restoring(context, "swap") as (call, _):
        call.swap()


def roll_back(context: Context) -> None:
    """Stop the instances that run by now and put the old state back.

    The task is skipped, and nothing is stopped, if the restore had not begun, if the new state is in place, or if the old
    state has been put back already.
    """
    opened, approval = case_of(context), approval_of(context)
    if not (opened.folder.has("restore", BEGUN) and approval.is_used):
        raise AirflowSkipException("the restore had not begun, so there is nothing to roll back")
    if over := _call_of(opened, probe_from_environment(), log.info).is_over():
        raise AirflowSkipException(over)
    with _restoring(context, "roll_back") as (call, at):
        case, var_dir = opened.case, opened.settings.var_dir
        stop_under_hold(var_dir, case.application_id, case.case_id, f"rolling back: {case.reason}", at.report)
        at.report(call.roll_back())
        approval.close()


@contextmanager
def _restoring(context: Context, name: str) -> Iterator[tuple[OnCall, Step]]:
    with step(context, name) as at:
        yield _call_of(at.opened, at.probe, at.report), at


def _call_of(opened: OpenCase, probe: Probe, report: Callable[[str], None]) -> OnCall:
    topology, settings = opened.topology, opened.settings
    return OnCall(
        OperationContext.of(topology, settings, copy_sources(topology, settings), wall_clock_ms, Command.RESTORE),
        OperationContext.of(topology, settings, past_sources(topology, settings), wall_clock_ms),
        opened.folder,
        LoggingRestoreListener(),
        probe,
        report,
    )
