"""Tasks of `restore_oncall`: from a task's context to a step of `tidemark.oncall`, and what only Airflow's side can do.

Imported by a task when it runs, as it loads clients and stores. A `StartRefused` ends the task for good; everything else may
pass, so that the task is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.clock import wall_clock_ms
from tidemark.errors import OutcomeUnknown, StartRefused
from tidemark.hold import release_hold
from tidemark.oncall.case import BEGUN, DONE, FAILED, SAID, Case, CaseFolder, case_id_of
from tidemark.oncall.report import make_report
from tidemark.oncall.steps import OnCall
from tidemark.probe import probe_from_environment
from tidemark.restore.kit import RestoreKit
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.sources import copy_sources, past_sources
from tidemark.savepoints.asking import live_instances
from tidemark.settings import Settings
from tidemark.topology.load import load
from tidemark_airflow.approval import ANSWER
from tidemark_airflow.holding import await_running, stop_under_hold

log = logging.getLogger(__name__)

Context = Mapping[str, Any]

_HELD = "held.json"


def preflight(context: Context) -> None:
    """Write down what is asked, and look whether it could be done."""
    case, folder, _ = _case(context)
    folder.open(case)
    asked_by = context["dag_run"].triggering_user_name
    with _step(context, "preflight") as (call, _):
        folder.note("preflight", "figures", asked_by=asked_by)
        call.preflight()


def plan(context: Context) -> str:
    """Make the plan; the Markdown of it is what the approver is shown."""
    with _step(context, "plan") as (call, say):
        planned = call.plan()
        say(f"a {planned.kind}, about {planned.eta_s:.0f} s")
        return planned.told


def fence(context: Context) -> None:
    """Stop every instance, and keep the stream DAG from relaunching them."""
    case, folder, settings = _case(context)
    with _step(context, "fence") as (_, say):
        hold = stop_under_hold(settings.var_dir, case.application_id, case.case_id, case.reason, say)
        # Cleared and run again, it finds none running of those that ran.
        if not folder.holds(_HELD):
            folder.write(_HELD, {"instances": list(hold.instances)})


def restore(context: Context) -> None:
    """Build and compare."""
    with _step(context, "restore") as (call, _):
        call.restore()


def verify(context: Context) -> None:
    """Look at the evidence."""
    with _step(context, "verify") as (call, _):
        call.verify()


def swap(context: Context) -> None:
    """Put the new state in place."""
    with _step(context, "swap") as (call, _):
        call.swap()


def relaunch(context: Context, timeout_s: float) -> None:
    """Release the hold, and wait until the instances that ran before run again."""
    case, folder, settings = _case(context)
    with _step(context, "relaunch") as (_, say):
        release_hold(settings.var_dir, case.application_id, case.case_id)
        wanted = tuple(folder.read(_HELD)["instances"])
        if not wanted:
            say(f"no instance ran before: unpause stream__{case.topology} to start it")
            return
        try:
            await_running(settings.var_dir, case.application_id, wanted, timeout_s)
        except OutcomeUnknown as error:
            # That was the longest wait.
            raise AirflowFailException(str(error)) from error
        say(f"{len(wanted)} instances run again")


def drain(context: Context, timeout_s: float) -> None:
    """Watch what waited being committed."""
    case, _, settings = _case(context)
    with _step(context, "drain") as (call, say):
        if not live_instances(settings.var_dir, case.application_id):
            say("no instance runs here, so nothing drains yet")
            return
        call.drain(timeout_s)


def roll_back(context: Context) -> None:
    """Stop what runs by now, and bring the old state back. Skipped where nothing was begun: nothing is stopped for it."""
    case, folder, settings = _case(context)
    if not folder.has("restore", BEGUN):
        raise AirflowSkipException("nothing was begun, so there is nothing to bring back")
    with _step(context, "roll_back") as (call, say):
        stop_under_hold(settings.var_dir, case.application_id, case.case_id, f"rolling back: {case.reason}", say)
        say(call.roll_back())


def release(context: Context) -> None:
    """Whatever happened: the application is held no longer by this case. Behind a roll-back, its instances must come back."""
    case, folder, settings = _case(context)
    if release_hold(settings.var_dir, case.application_id, case.case_id):
        folder.note("release", SAID, "the stream DAG may launch the instances again")
    if not folder.has("roll_back", DONE):
        return
    wanted = tuple(folder.read(_HELD)["instances"])
    try:
        await_running(settings.var_dir, case.application_id, wanted, float(context["params"]["relaunch_timeout_s"]))
    except OutcomeUnknown as error:
        told = f"{error}; when its cause is mended, unpause stream__{case.topology}"
        log.error("%s", told)
        folder.note("release", FAILED, told)


def report(context: Context) -> str:
    """Write the report; fails where the case did not end as somebody chose. Returns the page's path."""
    _, folder, _ = _case(context)
    approval = context["ti"].xcom_pull(task_ids="approval", key=ANSWER)
    made = make_report(folder, approval)
    path = str(folder.folder / "report.html")
    log.info("%s; report: %s", made["outcome"], path)
    if not made["is_as_wanted"]:
        raise AirflowFailException(f"{made['outcome']}: {'; '.join(made['failures'][-1:])}; the report is {path}")
    return path


def _case(context: Context) -> tuple[Case, CaseFolder, Settings]:
    params, run = context["params"], context["dag_run"]
    settings = Settings.load()
    case = Case(
        case_id=case_id_of(run.run_after),
        topology=params["topology"],
        application_id=load(params["topology"]).application_id,
        source="" if params["source"] == "fastest" else params["source"],
        target=params["target"],
        dry_run=bool(params["dry_run"]),
        reason=params["reason"],
        asked_ms=int(run.run_after.timestamp() * 1000),
    )
    return case, CaseFolder.of(settings.var_dir, case.application_id, case.case_id, wall_clock_ms), settings


@contextmanager
def _step(context: Context, name: str) -> Iterator[tuple[OnCall, Callable[[str], None]]]:
    case, folder, settings = _case(context)
    topology = load(case.topology).plan()
    try:
        with folder.step(name) as note:

            def say(line: str) -> None:
                log.info("%s", line)
                note(line)

            probe = probe_from_environment()
            probe(f"oncall-{name}")
            yield (
                OnCall(
                    RestoreKit.of(topology, settings, copy_sources(topology, settings), wall_clock_ms),
                    RestoreKit.of(topology, settings, past_sources(topology, settings), wall_clock_ms),
                    folder,
                    LoggingRestoreListener(),
                    probe,
                    say,
                ),
                say,
            )
            probe(f"oncall-{name}-done")
    except StartRefused as error:
        raise AirflowFailException(str(error)) from error
