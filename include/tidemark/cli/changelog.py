"""The changelogs that stores are rebuilt from."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused
from tidemark.events.progress import RichRestoreListener
from tidemark.failpoint import probe_from_environment
from tidemark.operations.change.repair import Repair
from tidemark.operations.change.repair_plan import RepairPlan
from tidemark.recovery.evidence import SourceOfState
from tidemark.settings import Settings
from tidemark.topology_loader import load

app = typer.Typer(no_args_is_help=True)
# With only one command, typer would make it the group.
app.callback()(lambda: None)


@app.command()
def repair(
    topology: Annotated[str, typer.Argument(help="module in include/topologies")],
    store: Annotated[
        list[str] | None,
        typer.Option("--store", help="only these; default: damaged ones, and those that differed in the last drill"),
    ] = None,
    source: Annotated[
        SourceOfState | None,
        typer.Option("--from", help="the copy that is right; default: the best one, unless it is suspected"),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="do it; all instances must be stopped")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="with --run: do not ask")] = False,
) -> None:
    """Show which changelogs would be written from which copies; with --run, compare, ask, and write what differs."""
    if yes and not run:
        raise typer.BadParameter("it is only valid with --run", param_hint="--yes")
    if source is SourceOfState.CHANGELOG:
        raise StartRefused(
            "a changelog cannot be repaired from itself: give --from local, standby, savepoint or source"
        )
    console, plan = Console(), load(topology).plan()
    with RichRestoreListener() as listener:
        work = Repair(
            plan, Settings.load(), wall_clock_ms, store or [], source, listener, probe_from_environment(), console.print
        )  # fmt: skip
        if not run:
            _show(work.show())
            console.print("nothing was compared or changed; stop the application and give --run to do it")
            return

        def approve(made: RepairPlan) -> bool:
            with listener.paused():
                _show(made)
                return yes or typer.confirm("repair as planned?")

        if not work.run(approve):
            console.print("nothing was changed")
            raise typer.Exit(1)
    console.print(f"the changelogs of {plan.application_id} are repaired; start the application")


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
