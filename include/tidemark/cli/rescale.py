"""Change the number of tasks, and move the state of each key to the task of its records."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.operations.change.rescale import Rescale
from tidemark.operations.change.rescale_plan import RescalePlan
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load


def plan(topology: str, tasks: int) -> None:
    """Show what another number of tasks moves. Blocks."""
    _show(_rescale(load(topology).plan(), tasks).show())
    Console().print("nothing was changed; stop the application, then use `tidemark rescale run`")


def run(topology: str, tasks: int, *, yes: bool) -> None:
    """Show the plan, ask, and carry it out. Blocks. Ends with 1 if the answer is no."""
    console, application = Console(), load(topology).plan()

    def approve(made: RescalePlan) -> bool:
        _show(made)
        return yes or typer.confirm("rescale as planned?")

    if not _rescale(application, tasks).run(approve):
        console.print("nothing was changed")
        raise typer.Exit(1)
    console.print(f"{application.application_id} has {tasks} tasks per sub-topology; start the application")


def _rescale(application: TopologyPlan, tasks: int) -> Rescale:
    return Rescale(
        application, Settings.load(), wall_clock_ms, tasks, LoggingRestoreListener(), probe_from_environment(),
        Console().print,
    )  # fmt: skip


def _show(made: RescalePlan) -> None:
    """Print the plan and what it means."""
    console = Console()
    table = Table(
        "sub-topology", "tasks", "tasks then", title=f"rescale of {made.application_id} to {made.tasks} tasks"
    )
    for number, tasks in made.before.items():
        table.add_row(str(number), str(tasks), str(made.tasks))
    console.print(table)
    lines = [f"{topic}: {n} partitions, filled by as many routing tasks" for topic, n in made.routers.items()]
    lines += [f"store {name}: every key moves to the task that owns it after the rescale" for name in made.stores]
    lines += [
        f"{topic}: {records} unread records are routed to the new topic" for topic, records in made.unread.items()
    ]
    lines += [f"{topic}: up to {offsets} records wait for the new tasks" for topic, offsets in made.waiting.items()]
    lines += [*made.warnings, *(f"{topic} remains, but nothing reads it any more" for topic in made.left)]
    for line in lines:
        console.print(line, highlight=False, markup=False)
