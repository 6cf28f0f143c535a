"""Move the offsets from which an application continues to read, and empty or keep its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

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


@dataclass(frozen=True)
class Asked:
    """The reset that was asked for. `offsets` are texts as `parse_offsets` reads them; `at_ms` is the time in epoch ms."""

    to: ResetTo
    state: StateAfter
    offsets: list[str]
    at_ms: int | None

    @classmethod
    def of(cls, to: ResetTo, state: StateAfter, offset: list[str] | None, time: str | None) -> Self:
        """Check that --offset and --time are given where they are needed. Raises a usage error."""
        for given, needed, hint in ((offset, ResetTo.OFFSETS, "--offset"), (time, ResetTo.TIME, "--time")):
            if (given is not None) is not (to is needed):
                raise typer.BadParameter(f"it is required with --to {needed}, and only valid with it", param_hint=hint)
        try:
            return cls(to, state, offset or [], None if time is None else parse_time(time, wall_clock_ms()))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--time") from error


def plan(topology: str, asked: Asked) -> None:
    """Show what moving the offsets means. Blocks."""
    _show(_reset(load(topology).plan(), asked).show())
    Console().print("nothing was changed; stop the application, then use `tidemark reset run`")


def run(topology: str, asked: Asked, *, yes: bool) -> None:
    """Show the plan, ask, and carry it out. Blocks. Ends with 1 if the answer is no."""
    console, application = Console(), load(topology).plan()

    def approve(made: ResetPlan) -> bool:
        _show(made)
        return yes or typer.confirm("reset as planned?")

    if not _reset(application, asked).run(approve):
        console.print("nothing was changed")
        raise typer.Exit(1)
    console.print(f"the offsets of {application.application_id} are moved; start the application")


def _reset(application: TopologyPlan, asked: Asked) -> Reset:
    return Reset(
        application, Settings.load(), wall_clock_ms, asked.to, asked.state, parse_offsets(asked.offsets), asked.at_ms,
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
