"""Tasks of `restore_oncall`: from a task's context to a step of `tidemark.oncall`, and what only Airflow's side can do.

Imported by a task when it runs, as it loads clients and stores. A `StartRefused` ends the task for good; everything else may
pass, so that the task is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused
from tidemark.hold import read_hold, release_hold
from tidemark.oncall.case import Case, CaseFolder, case_id_of
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
    case, _, settings = _case(context)
    with _step(context, "fence") as (_, say):
        stop_under_hold(settings.var_dir, case.application_id, case.case_id, case.reason, say)


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
        hold = read_hold(settings.var_dir, case.application_id)
        if hold is not None and hold.by == case.case_id:
            folder.write("held.json", {"instances": list(hold.instances)})
        release_hold(settings.var_dir, case.application_id, case.case_id)
        wanted = tuple(folder.read("held.json")["instances"])
        if not wanted:
            say(f"no instance ran before: unpause stream__{case.topology} to start it")
            return
        await_running(settings.var_dir, case.application_id, wanted, timeout_s)
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
    """Stop what runs by now, and bring the old state back."""
    case, _, settings = _case(context)
    with _step(context, "roll_back") as (call, say):
        stop_under_hold(settings.var_dir, case.application_id, case.case_id, f"rolling back: {case.reason}", say)
        say(call.roll_back())


def release(context: Context) -> None:
    """Whatever happened: the application is held no longer by this case."""
    case, folder, settings = _case(context)
    if release_hold(settings.var_dir, case.application_id, case.case_id):
        folder.note("release", "said", "the stream DAG may launch the instances again")


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
