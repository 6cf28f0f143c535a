"""Return to the state of an earlier time, after showing the plan and asking."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.kafka.operator_acls import Command
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import past_sources
from tidemark.operations.rewind.build import PastBuilder
from tidemark.operations.rewind.plan import RewindPlan
from tidemark.operations.rewind.rewind import REWINDS_FOLDER, Rewind
from tidemark.operations.times import format_time, parse_time
from tidemark.operations.workspace import Workspace, new_id
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import Settings
from tidemark.topology_loader import load


def plan(topology: str, to: str) -> None:
    """Show what a return to a time would change. Blocks."""
    at_ms, context = _time(to), _context(topology)
    with tempfile.TemporaryDirectory(prefix="tidemark-rewind-") as temporary:
        _show(_rewind(context, Path(temporary)).plan(at_ms))
        Console().print("nothing was changed; stop the application, then use `tidemark rewind run`")


def run(topology: str, to: str, *, yes: bool) -> None:
    """Show the plan, ask, and carry it out. Blocks. Ends with 1 if the answer is no."""
    at_ms, context, console = _time(to), _context(topology), Console()

    def approve(made: RewindPlan) -> bool:
        _show(made)
        return yes or typer.confirm("rewind as planned?")

    if not _rewind(context, context.clients.settings.state_dir).run(at_ms, approve):
        console.print("nothing was changed")
        raise typer.Exit(1)
    console.print(f"{context.plan.application_id} is rewound; start the application")


def _time(to: str) -> int:
    try:
        return parse_time(to, wall_clock_ms())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from error


def _context(topology: str) -> OperationContext:
    settings, application = Settings.load(), load(topology).plan()
    copies = past_sources(application, settings)
    return OperationContext.of(application, settings, copies, wall_clock_ms, Command.RESTORE)


def _rewind(context: OperationContext, state_dir: Path) -> Rewind:
    """Return the rewind that builds the past below `state_dir`."""
    probe, report = probe_from_environment(), Console().print
    workspace = Workspace(state_dir, context.plan.application_id, new_id(), REWINDS_FOLDER)
    return Rewind(PastBuilder(context, LoggingRestoreListener(), probe, report), workspace, probe, report)


def _show(made: RewindPlan) -> None:
    """Print the plan and its effects on other programs."""
    console = Console()
    table = Table(title=f"rewind of {made.application_id} to {format_time(made.at_ms)}")
    for heading in ("task", "batch", "committed", "source offsets, from → to", "offsets read again"):
        table.add_column(heading, justify="right" if heading in ("batch", "offsets read again") else "left")
    for task in made.tasks:
        offsets = ", ".join(f"{t} {offset} → {task.to_offsets[t]}" for t, offset in task.from_offsets.items())
        table.add_row(task.task, str(task.to_batch), format_time(task.to_ms), offsets, str(task.offsets_again))
    console.print(table)
    stores = Table("task", "store", "keys written", "keys deleted")
    for store in made.stores:
        stores.add_row(store.task, store.store, str(store.written), str(store.deleted))
    if made.stores:
        console.print(stores)
    console.print(f"When the application starts again, {made.warning}.")
