"""The offsets from which an application continues to read."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.operations.change.reset import Reset
from tidemark.operations.change.reset_plan import ResetPlan, ResetTo, StateAfter, parse_offsets
from tidemark.operations.times import parse_time
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import Settings
from tidemark.topology_loader import load

app = typer.Typer(no_args_is_help=True)


@app.command()
def reset(
    topology: Annotated[str, typer.Argument(help="module in include/topologies")],
    to: Annotated[ResetTo, typer.Option("--to", help="new offset of every source partition")],
    state: Annotated[StateAfter, typer.Option("--state", help="what happens to the stores")],
    offset: Annotated[
        list[str] | None, typer.Option("--offset", help="TOPIC:PARTITION=OFFSET, for --to offsets")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", help="2026-08-01T12:00:00Z, epoch ms, or -10m")] = None,
    run: Annotated[bool, typer.Option("--run", help="do it; all instances must be stopped")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="with --run: do not ask")] = False,
) -> None:
    """Show what moving the offsets means; with --run, ask, then write offsets and commit records in one step."""
    if yes and not run:
        raise typer.BadParameter("it is only valid with --run", param_hint="--yes")
    for given, needed, hint in ((offset, ResetTo.OFFSETS, "--offset"), (time, ResetTo.TIME, "--time")):
        if (given is not None) is not (to is needed):
            raise typer.BadParameter(f"it is required with --to {needed}, and only valid with it", param_hint=hint)
    try:
        at_ms = None if time is None else parse_time(time, wall_clock_ms())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--time") from error
    console, plan = Console(), load(topology).plan()
    work = Reset(
        plan, Settings.load(), wall_clock_ms, to, state, parse_offsets(offset or []), at_ms, LoggingRestoreListener(),
        probe_from_environment(), console.print,
    )  # fmt: skip
    if not run:
        _show(work.show())
        console.print("nothing was changed; stop the application and give --run to do it")
        return

    def approve(made: ResetPlan) -> bool:
        _show(made)
        return yes or typer.confirm("reset as planned?")

    if not work.run(approve):
        console.print("nothing was changed")
        raise typer.Exit(1)
    console.print(f"the offsets of {plan.application_id} are moved; start the application")


def _show(made: ResetPlan) -> None:
    """Print the plan and what it means."""
    console = Console()
    table = Table(title=f"offsets of {made.application_id} to {made.to}, state: {made.state}")
    for heading in ("partition", "from", "to", "read again", "never read"):
        table.add_column(heading, justify="left" if heading == "partition" else "right")
    for source in made.sources:
        name = f"{source.partition} (repartition)" if source.is_internal else str(source.partition)
        table.add_row(name, str(source.from_offset), str(source.to_offset), str(source.again), str(source.skipped))
    console.print(table)
    for warning in made.warnings:
        console.print(warning, highlight=False)
    if made.rewritten:
        console.print(f"{', '.join(made.rewritten)}: written to new changelogs, which the next start reads")
