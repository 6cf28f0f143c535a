"""Repair a changelog that was lost or written to by another program, from a correct copy of its store."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused
from tidemark.events.progress import RichRestoreListener
from tidemark.failpoint import probe_from_environment
from tidemark.operations.change.repair import Repair
from tidemark.operations.change.repair_plan import RepairPlan
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load


def plan(topology: str, store: list[str] | None, source: SourceOfState | None) -> None:
    """Show which changelogs would be written from which copies. Blocks."""
    with RichRestoreListener() as listener:
        _show(_repair(load(topology).plan(), store, source, listener).show())
        Console().print("nothing was compared or changed; stop the application, then use `tidemark repair run`")


def run(topology: str, store: list[str] | None, source: SourceOfState | None, *, yes: bool) -> None:
    """Compare the copies with the changelogs, ask, and write what differs. Blocks. Ends with 1 if the answer is no."""
    console, application = Console(), load(topology).plan()
    with RichRestoreListener() as listener:

        def approve(made: RepairPlan) -> bool:
            with listener.paused():
                _show(made)
                return yes or typer.confirm("repair as planned?")

        if not _repair(application, store, source, listener).run(approve):
            console.print("nothing was changed")
            raise typer.Exit(1)
    console.print(f"the changelogs of {application.application_id} are repaired; start the application")


def _repair(
    application: TopologyPlan, store: list[str] | None, source: SourceOfState | None, listener: RichRestoreListener
) -> Repair:
    if source is SourceOfState.CHANGELOG:
        raise StartRefused(
            "a changelog cannot be repaired from itself: give --from local, standby, savepoint or source"
        )
    return Repair(
        application, Settings.load(), wall_clock_ms, store or [], source, listener, probe_from_environment(),
        Console().print,
    )  # fmt: skip


def _show(made: RepairPlan) -> None:
    """Print the plan and what it means."""
    console = Console()
    table = Table(title=f"changelogs of {made.application_id}")
    for heading in ("task", "store", "compared with", "keys that differ", "changelog"):
        table.add_column(heading, justify="right" if heading == "keys that differ" else "left")
    for store in made.stores:
        for task in store.tasks:
            differing = "" if task.differing is None else str(task.differing)
            table.add_row(
                task.task, store.store, task.location if task.is_judge else "nothing", differing, store.summary
            )
    console.print(table)
    for warning in made.warnings:
        console.print(warning, highlight=False)
