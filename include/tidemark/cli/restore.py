"""Plan, run, list, abort and roll back restores of a stopped application's state."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from tidemark.cli.output import Output, View
from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode, StartRefused, TidemarkError
from tidemark.events.progress import RichRestoreListener
from tidemark.failpoint import probe_from_environment
from tidemark.kafka.operator_acls import Command
from tidemark.listing import Listing
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources
from tidemark.operations.disk_space import require_room
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.times import format_time
from tidemark.operations.workspace import (
    RestoreState,
    Workspace,
    WorkspaceProgress,
    last_swapped,
    new_id,
    workspaces,
)
from tidemark.recovery.restore_plan import RestorePlan
from tidemark.recovery.selection import Selection
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.bounds import Figures, overall, total
from tidemark.restore.restorer import RestoreSuspended
from tidemark.settings import Settings
from tidemark.topology_loader import load
from tidemark.verdict import Verdict


@dataclass(frozen=True)
class Asked:
    """What is to be restored: from one kind of source or the fastest, and only these tasks and stores, or all."""

    source: SourceOfState | None
    tasks: list[str]
    stores: list[str]

    def plan(self, reader: EvidenceReader) -> RestorePlan:
        """Make the plan. Blocks."""
        return make_plan(reader, new_id(), self.source, Selection.of(self.tasks, self.stores))


def plan(topology: str, asked: Asked, out: Path | None, output: Output) -> None:
    """Show what would be rebuilt from where, and write the plan to `out` if given. Blocks."""
    made = asked.plan(_context(topology).evidence)
    if out is not None:
        try:
            out.write_text(made.to_json(), encoding="utf-8")
        except OSError as error:
            raise TidemarkError(f"cannot write {out}: {error.strerror}; give a file in a folder that exists") from error
    output.show(json.loads(made.to_json()), *_plan_views(made))


def run(topology: str, asked: Asked, plan_file: Path | None, resume: str | None, output: Output) -> None:
    """Show the plan, ask, and carry it out. Blocks.

    Ends with 1 if the answer is no or the restore was aborted, with 10 if the changelog could not show for all of the new
    state that it is right. Raises `StartRefused` if another restore has begun to swap and was left.
    """
    context = _context(topology)
    settings = context.clients.settings
    if resume is not None:
        workspace = Workspace(settings.state_dir, context.plan.application_id, resume)
        made = workspace.plan()
    else:
        made = asked.plan(context.evidence) if plan_file is None else _read(plan_file, context.plan.application_id)
        workspace = Workspace(settings.state_dir, context.plan.application_id, made.restore_id)
    workspace.require_no_other_begun(topology)
    output.people(*_plan_views(made))
    progress = workspace.progress()
    if progress.state is not RestoreState.SWAPPING:
        built = progress.verdicts or {}
        evidence = context.evidence
        require_room(
            evidence.witnesses, evidence.facts(), [s for s in made.stores if f"{s.task}/{s.store}" not in built]
        )
    if not output.confirm("replace the state as planned?"):
        raise typer.Exit(1)
    if resume is None:
        workspace.create(made)
    try:
        with RichRestoreListener(output.progress_console()) as listener:
            done = RestoreRun(context, workspace, listener, probe_from_environment(), output.message).run()
    except RestoreSuspended:
        aborted = f"restore {made.restore_id} aborted; the old state is in place"
        output.show(_form(made, workspace.progress()), aborted)
        raise typer.Exit(1) from None
    output.show(_form(made, done), *_end_views(made, done))
    if overall(_figures(done)) is not Verdict.OK:
        sys.exit(ExitCode.RETRY)


def status(topology: str, output: Output) -> None:
    """Show all restores of the application, the newest first."""
    settings = Settings.load()
    found = workspaces(settings.state_dir, load(topology).plan().application_id)
    states = [(workspace.plan(), workspace.progress()) for workspace in found]
    listing = Listing(
        "restore", "planned", "state", "stores verified", "verdict", "compared", "left out", "differing", "message",
        right=("compared", "left out", "differing"),
    )  # fmt: skip
    for made, progress in states:
        figures = total(_figures(progress))
        verified = f"{len(progress.verdicts or {})} of {len(made.stores)}"
        listing.add(
            made.restore_id, format_time(made.created_ms), str(progress.state), verified, _verdict(progress),
            str(figures.compared), str(figures.left_out), str(figures.differing), progress.message,
        )  # fmt: skip
    forms = [_form(made, progress) for made, progress in states]
    output.show(forms, listing if states else "no restore has been run here")


def abort(topology: str, restore_id: str | None, output: Output) -> None:
    """End a restore that runs or was interrupted, by default the newest. Blocks until what it built is deleted."""
    workspace = _workspace(topology, restore_id, lambda state_dir, app: workspaces(state_dir, app)[0])
    message = workspace.abort()
    output.show(_form(workspace.plan(), workspace.progress()), message)


def rollback(topology: str, restore_id: str | None, output: Output) -> None:
    """Bring back the state folders that a restore has replaced, by default the last one that replaced any. Blocks.

    One that is rolled back already counts too, so that a repeated command does not undo an earlier restore. For the same reason
    a restore whose swap has moved nothing yet is given up only by its id. Raises `StartRefused`.
    """
    workspace = _workspace(topology, restore_id, last_swapped)
    left = workspace.progress()
    if restore_id is None and left.state is RestoreState.SWAPPING and not workspace.has_moved(left.moves):
        raise StartRefused(
            f"restore {workspace.folder.name} is {left.state} and has replaced nothing yet: {workspace.remedy(topology)}"
        )
    with RichRestoreListener(output.progress_console()) as listener:
        work = RestoreRun(_context(topology), workspace, listener, probe_from_environment(), output.message)
        done = work.roll_back()
    message = f"restore {workspace.folder.name} rolled back; the next start replays what came since"
    if done.state is RestoreState.ABORTED:
        message = f"restore {workspace.folder.name} {done.message}"
    output.show(_form(workspace.plan(), done), message)


def _context(topology: str) -> OperationContext:
    settings = Settings.load()
    plan_of = load(topology).plan()
    context = OperationContext.of(plan_of, settings, copy_sources(plan_of, settings), wall_clock_ms, Command.RESTORE)
    context.require_has_run()
    return context


def _workspace(topology: str, restore_id: str | None, choose: Callable[[Path, str], Workspace | None]) -> Workspace:
    """Return the restore with this id; without an id, what `choose` returns for the state folder and the application."""
    settings = Settings.load()
    application_id = load(topology).plan().application_id
    if restore_id is not None:
        workspace = Workspace(settings.state_dir, application_id, restore_id)
        workspace.plan()
        return workspace
    if not workspaces(settings.state_dir, application_id):
        raise StartRefused(f"no restore of {application_id} has been run here")
    if (chosen := choose(settings.state_dir, application_id)) is None:
        raise StartRefused(f"no restore of {application_id} has replaced anything here")
    return chosen


def _read(plan_file: Path, application_id: str) -> RestorePlan:
    try:
        made = RestorePlan.from_json(plan_file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TidemarkError(f"cannot read {plan_file}: {error.strerror}") from error
    if made.application_id != application_id:
        raise StartRefused(f"{plan_file} is a plan of {made.application_id}, not of {application_id}")
    return made


def _form(made: RestorePlan, progress: WorkspaceProgress) -> dict[str, object]:
    """Return one restore as JSON types, for a program; the figures are per store."""
    return {
        "id": made.restore_id,
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


def _plan_views(made: RestorePlan) -> Iterator[View]:
    """Yield the plan and what it replaces."""
    numbers = ("offsets", "MB to copy", "ETA, s")
    title = f"restore {made.restore_id} of {made.application_id}"
    listing = Listing("task", "store", "from", *numbers, right=numbers, title=title)
    for store in made.stores:
        offsets = f"{store.from_offset} … {store.end_offset}"
        megabytes = f"{store.bytes_to_copy / 1e6:.1f}"
        listing.add(store.task, store.store, store.source.value, offsets, megabytes, f"{store.eta_s:.1f}")
    yield listing
    for store in made.stores:
        for fault in store.passed_over:
            yield f"not used for {store.task}/{store.store}: {fault}"
    for summary in made.not_rebuilt:
        yield f"not rebuilt: {summary}"
    yield f"rates: {made.rates_from}"
    yield (
        f"The application must be stopped, for about {made.eta_s(Settings.load().restore_threads):.0f} s (estimate; every "
        f"changelog is read once more to verify). Replaced, and kept aside for `tidemark restore rollback NAME`: "
        f"{made.blast_radius}. No output is written; {made.source_lag} source offsets wait meanwhile."
    )


def _end_views(made: RestorePlan, done: WorkspaceProgress) -> Iterator[View]:
    """Yield the verdict on each store, and on all."""
    numbers = ("keys", "compared", "left out", "differing")
    listing = Listing(
        "task", "store", "verdict", "keys", "checksum", "compared", "left out", "differing", right=numbers
    )
    for verdict in (done.verdicts or {}).values():
        listing.add(
            verdict.task, verdict.store, str(verdict.figures.verdict), str(verdict.keys), verdict.checksum[:16],
            str(verdict.compared), str(verdict.left_out), str(verdict.different),
        )  # fmt: skip
    yield listing
    for verdict in (done.verdicts or {}).values():
        if not verdict.is_proven:
            yield verdict.summary
    seconds = (done.ended_ms - done.started_ms) / 1000
    figures = _figures(done)
    yield (
        f"restore {made.restore_id}: {done.state}, {overall(figures)}: {total(figures).summary}, {seconds:.1f} s; start the "
        "application"
    )
    if overall(figures) is not Verdict.OK:
        yield (
            "The new state is in place, but the changelogs do not show that it is right: run a drill, or compare it with a "
            "savepoint; `tidemark restore rollback NAME` brings the old state back"
        )
