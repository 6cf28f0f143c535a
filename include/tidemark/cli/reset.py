"""Move the offsets from which an application continues to read, and empty or keep its state."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.operations.change.reset import Reset
from tidemark.operations.change.reset_plan import ResetPlan, parse_offsets
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.operations.times import parse_time
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load

app = typer.Typer(no_args_is_help=True)
_Topology = Annotated[str, typer.Argument(help="module in include/topologies")]
_To = Annotated[ResetTo, typer.Option("--to", help="new offset of every source partition")]
_State = Annotated[StateAfter, typer.Option("--state", help="what happens to the stores")]
_Offsets = Annotated[list[str] | None, typer.Option("--offset", help="TOPIC:PARTITION=OFFSET, for --to offsets")]
_Time = Annotated[str | None, typer.Option("--time", help="2026-08-01T12:00:00Z, epoch ms, or -10m")]


@app.command()
def plan(topology: _Topology, to: _To, state: _State, offset: _Offsets = None, time: _Time = None) -> None:
    """Show what moving the offsets means; changes nothing, the application may run."""
    at_ms = _time(to, offset, time)
    _show(_reset(load(topology).plan(), to, state, offset, at_ms).show())
    Console().print("nothing was changed; stop the application, then use `tidemark reset run`")


@app.command()
def run(
    topology: _Topology,
    to: _To,
    state: _State,
    offset: _Offsets = None,
    time: _Time = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Show the plan, ask, then write offsets and commit records in one step; all instances must be stopped."""
    at_ms = _time(to, offset, time)
    console, application = Console(), load(topology).plan()

    def approve(made: ResetPlan) -> bool:
        _show(made)
        return yes or typer.confirm("reset as planned?")

    if not _reset(application, to, state, offset, at_ms).run(approve):
        console.print("nothing was changed")
        raise typer.Exit(1)
    console.print(f"the offsets of {application.application_id} are moved; start the application")


def _time(to: ResetTo, offset: list[str] | None, time: str | None) -> int | None:
    """Return the time in epoch ms, after checking that --offset and --time are given where they are needed."""
    for given, needed, hint in ((offset, ResetTo.OFFSETS, "--offset"), (time, ResetTo.TIME, "--time")):
        if (given is not None) is not (to is needed):
            raise typer.BadParameter(f"it is required with --to {needed}, and only valid with it", param_hint=hint)
    try:
        return None if time is None else parse_time(time, wall_clock_ms())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--time") from error


def _reset(
    application: TopologyPlan, to: ResetTo, state: StateAfter, offset: list[str] | None, at_ms: int | None
) -> Reset:
    return Reset(
        application, Settings.load(), wall_clock_ms, to, state, parse_offsets(offset or []), at_ms,
        LoggingRestoreListener(), probe_from_environment(), Console().print,
    )  # fmt: skip


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
