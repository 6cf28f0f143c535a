"""Rebuild the state of a stopped application from the best source of state, and verify it before it is swapped in."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode, StartRefused, TidemarkError
from tidemark.events.progress import RichRestoreListener
from tidemark.failpoint import probe_from_environment
from tidemark.kafka.operator_acls import Command
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources
from tidemark.operations.disk_space import require_room
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.times import format_time
from tidemark.operations.workspace import RestoreState, Workspace, WorkspaceProgress, new_id, workspaces
from tidemark.recovery.restore_plan import RestorePlan
from tidemark.recovery.selection import Selection
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.bounds import Figures, overall, total
from tidemark.restore.restorer import RestoreSuspended
from tidemark.settings import Settings
from tidemark.topology_loader import load
from tidemark.verdict import Verdict


def plan(
    topology: str,
    source: SourceOfState | None,
    task: list[str] | None,
    store: list[str] | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Show what would be rebuilt from where, and write the plan to `out` if given. Blocks."""
    made = make_plan(_context(topology).evidence, new_id(), source, Selection.of(task or (), store or ()))
    if out is not None:
        try:
            out.write_text(made.to_json(), encoding="utf-8")
        except OSError as error:
            raise TidemarkError(f"cannot write {out}: {error.strerror}; give a file in a folder that exists") from error
    typer.echo(made.to_json()) if as_json else _show(made)


def run(
    topology: str,
    source: SourceOfState | None,
    task: list[str] | None,
    store: list[str] | None,
    plan_file: Path | None,
    resume: str | None,
    *,
    yes: bool,
) -> None:
    """Show the plan, ask, and carry it out. Blocks.

    Ends with 1 if the answer is no or the restore was aborted, with 10 if the changelog could not show for all of the new
    state that it is right.
    """
    selection = Selection.of(task or (), store or ())
    context = _context(topology)
    settings = context.clients.settings
    if resume is not None:
        workspace = Workspace(settings.state_dir, context.plan.application_id, resume)
        made = workspace.plan()
    else:
        made = _planned(context.evidence, plan_file, source, selection)
        workspace = Workspace(settings.state_dir, context.plan.application_id, made.restore_id)
    _show(made)
    progress = workspace.progress()
    if progress.state is not RestoreState.SWAPPING:
        built = progress.verdicts or {}
        evidence = context.evidence
        require_room(
            evidence.witnesses, evidence.facts(), [s for s in made.stores if f"{s.task}/{s.store}" not in built]
        )
    if not yes and not typer.confirm("replace the state as planned?"):
        raise typer.Exit(1)
    if resume is None:
        workspace.create(made)
    console = Console()
    try:
        with RichRestoreListener() as listener:
            done = RestoreRun(context, workspace, listener, probe_from_environment(), console.print).run()
    except RestoreSuspended:
        console.print(f"restore {made.restore_id} aborted; the old state is in place")
        raise typer.Exit(1) from None
    _show_progress(made, done)
    if overall(_figures(done)) is not Verdict.OK:
        sys.exit(ExitCode.RETRY)


def status(topology: str, *, as_json: bool) -> None:
    """Show all restores of the application, the newest first."""
    settings = Settings.load()
    found = workspaces(settings.state_dir, load(topology).plan().application_id)
    states = [(workspace.folder.name, workspace.plan(), workspace.progress()) for workspace in found]
    if as_json:
        typer.echo(json.dumps([_listed(name, made, progress) for name, made, progress in states]))
        return
    table = Table(
        "restore", "planned", "state", "stores verified", "verdict", "compared", "left out", "differing", "message"
    )
    for name, made, progress in states:
        figures = total(_figures(progress))
        verified = f"{len(progress.verdicts or {})} of {len(made.stores)}"
        table.add_row(
            name, format_time(made.created_ms), str(progress.state), verified, _verdict(progress), str(figures.compared),
            str(figures.left_out), str(figures.differing), progress.message,
        )  # fmt: skip
    Console().print(table if states else "no restore has been run here")


def _listed(name: str, made: RestorePlan, progress: WorkspaceProgress) -> dict[str, object]:
    """Return one restore as JSON types, for a program; the figures are per store."""
    return {
        "id": name,
        "state": progress.state,
        "stores": len(made.stores),
        "verified": len(progress.verdicts or {}),
        "verdict": _verdict(progress),
        "figures": {
            store: {"compared": one.compared, "left_out": one.left_out, "differing": one.different}
            for store, one in (progress.verdicts or {}).items()
        },
        "message": progress.message,
        "created_ms": made.created_ms,
        "ended_ms": progress.ended_ms,
    }


def _figures(progress: WorkspaceProgress) -> list[Figures]:
    return [verdict.figures for verdict in (progress.verdicts or {}).values()]


def _verdict(progress: WorkspaceProgress) -> str:
    """Return the verdict of all stores together; empty before the first one is verified."""
    return str(overall(_figures(progress))) if progress.verdicts else ""


def abort(topology: str, restore_id: str | None) -> None:
    """End a restore that runs or was interrupted. Blocks until what it built is deleted."""
    workspace = _workspace(topology, restore_id)
    typer.echo(workspace.abort())


def rollback(topology: str, restore_id: str | None) -> None:
    """Bring back the state folders that a restore has replaced. Blocks."""
    workspace = _workspace(topology, restore_id)
    with RichRestoreListener() as listener:
        RestoreRun(_context(topology), workspace, listener, probe_from_environment(), Console().print).roll_back()
    typer.echo(f"restore {workspace.folder.name} rolled back; the next start replays what came since")


def _context(topology: str) -> OperationContext:
    settings = Settings.load()
    plan_of = load(topology).plan()
    return OperationContext.of(plan_of, settings, copy_sources(plan_of, settings), wall_clock_ms, Command.RESTORE)


def _workspace(topology: str, restore_id: str | None) -> Workspace:
    settings = Settings.load()
    application_id = load(topology).plan().application_id
    if restore_id is not None:
        workspace = Workspace(settings.state_dir, application_id, restore_id)
        workspace.plan()
        return workspace
    found = workspaces(settings.state_dir, application_id)
    if not found:
        raise StartRefused(f"no restore of {application_id} has been run here")
    return found[0]


def _planned(
    reader: EvidenceReader, plan_file: Path | None, source: SourceOfState | None, selection: Selection
) -> RestorePlan:
    if plan_file is None:
        return make_plan(reader, new_id(), source, selection)
    try:
        made = RestorePlan.from_json(plan_file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TidemarkError(f"cannot read {plan_file}: {error.strerror}") from error
    if made.application_id != reader.plan.application_id:
        raise StartRefused(f"{plan_file} is a plan of {made.application_id}, not of {reader.plan.application_id}")
    return made


def _show(made: RestorePlan) -> None:
    """Print the plan and what it replaces, for people."""
    console = Console()
    table = Table(title=f"restore {made.restore_id} of {made.application_id}")
    for heading in ("task", "store", "from", "offsets", "MB to copy", "ETA, s"):
        table.add_column(heading, justify="left" if heading in ("task", "store", "from") else "right")
    for store in made.stores:
        offsets = f"{store.from_offset} … {store.end_offset}"
        megabytes = f"{store.bytes_to_copy / 1e6:.1f}"
        table.add_row(store.task, store.store, store.source.value, offsets, megabytes, f"{store.eta_s:.1f}")
    console.print(table)
    for store in made.stores:
        for fault in store.passed_over:
            console.print(f"not used for {store.task}/{store.store}: {fault}")
    for summary in made.not_rebuilt:
        console.print(f"not rebuilt: {summary}")
    console.print(f"rates: {made.rates_from}")
    console.print(
        f"The application must be stopped, for about {made.eta_s(Settings.load().restore_threads):.0f} s (estimate; every "
        f"changelog is read once more to verify). Replaced, and kept aside for `tidemark restore rollback`: "
        f"{made.blast_radius}. No output is written; {made.source_lag} source offsets wait meanwhile."
    )


def _show_progress(made: RestorePlan, done: WorkspaceProgress) -> None:
    console = Console()
    table = Table("task", "store", "verdict", "keys", "checksum", "compared", "left out", "differing")
    for verdict in (done.verdicts or {}).values():
        table.add_row(
            verdict.task, verdict.store, str(verdict.figures.verdict), str(verdict.keys), verdict.checksum[:16],
            str(verdict.compared), str(verdict.left_out), str(verdict.different),
        )  # fmt: skip
    console.print(table)
    for verdict in (done.verdicts or {}).values():
        if not verdict.is_proven:
            console.print(verdict.summary)
    seconds = (done.ended_ms - done.started_ms) / 1000
    figures = _figures(done)
    console.print(
        f"restore {made.restore_id}: {done.state}, {overall(figures)}: {total(figures).summary}, {seconds:.1f} s; start the "
        "application"
    )
    if overall(figures) is not Verdict.OK:
        console.print(
            "The new state is in place, but the changelogs do not show that it is right: run a drill, or compare it with a "
            "savepoint; `tidemark restore rollback` brings the old state back"
        )
    sys.stdout.flush()
