"""`tidemark rewind`: return to the state of an earlier time, after showing the plan and asking."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

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


def rewind(
    topology: Annotated[str, typer.Argument(help="module in include/topologies")],
    to: Annotated[str, typer.Option("--to", help="2026-08-01T12:00:00Z, epoch milliseconds, or -10m")],
    run: Annotated[bool, typer.Option("--run", help="do it; all instances must be stopped")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="with --run: do not ask")] = False,
) -> None:
    """Show what a return to a time would change; with --run, ask, then write state, offsets and commit records in one step."""
    try:
        at_ms = parse_time(to, wall_clock_ms())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from error
    if yes and not run:
        raise typer.BadParameter("it is only valid with --run", param_hint="--yes")
    settings = Settings.load()
    plan = load(topology).plan()
    context = OperationContext.of(plan, settings, past_sources(plan, settings), wall_clock_ms, Command.RESTORE)
    console, probe = Console(), probe_from_environment()
    name = new_id()
    with tempfile.TemporaryDirectory(prefix="tidemark-rewind-") as temporary:
        state_dir = settings.state_dir if run else Path(temporary)
        workspace = Workspace(state_dir, plan.application_id, name, REWINDS_FOLDER)
        work = Rewind(
            PastBuilder(context, LoggingRestoreListener(), probe, console.print), workspace, probe, console.print
        )
        if not run:
            _show(work.plan(at_ms))
            console.print("nothing was changed; stop the application and give --run to do it")
            return

        def approve(made: RewindPlan) -> bool:
            _show(made)
            return yes or typer.confirm("rewind as planned?")

        if not work.run(at_ms, approve):
            console.print("nothing was changed")
            raise typer.Exit(1)
    console.print(f"{plan.application_id} is rewound; start the application")


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
