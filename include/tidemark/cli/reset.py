"""Plan and carry out a reset of offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import typer

from tidemark.cli.approval import Approval
from tidemark.cli.arguments import command_to_run, repeated
from tidemark.cli.output import Output, View, as_json
from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.listing import Listing
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


def plan(topology: str, asked: Asked, output: Output) -> None:
    """Show what moving the offsets means. Blocks."""
    made = _reset(load(topology).plan(), asked, output).show()
    times = [] if asked.at_ms is None else [str(asked.at_ms)]
    options = [*repeated("--offset", asked.offsets), *repeated("--time", times)]
    command = command_to_run("reset", topology, "--to", asked.to, "--state", asked.state, *options)
    _approval(output).show_plan(made, f"nothing was changed; stop the application, then use {command}")


def run(topology: str, asked: Asked, output: Output) -> None:
    """Show the plan, ask, and carry it out. Blocks. Ends with 1 if the answer is no."""
    application, approval = load(topology).plan(), _approval(output)
    is_done = _reset(application, asked, output).run(approval)
    message = f"the offsets of {application.application_id} are moved; start the application"
    approval.show_end(is_done=is_done, message=message)


def _reset(application: TopologyPlan, asked: Asked, output: Output) -> Reset:
    return Reset(
        application, Settings.load(), wall_clock_ms, asked.to, asked.state, parse_offsets(asked.offsets), asked.at_ms,
        LoggingRestoreListener(), probe_from_environment(), output.message,
    )  # fmt: skip


def _approval(output: Output) -> Approval[ResetPlan]:
    return Approval(output, "reset as planned?", _form, _views)


def _form(made: ResetPlan) -> dict[str, Any]:
    return {**as_json(made), "warnings": made.warnings}


def _views(made: ResetPlan) -> Iterator[View]:
    numbers = ("from", "to", "read again", "never read")
    title = f"offsets of {made.application_id} to {made.to}, state: {made.state}"
    listing = Listing("partition", *numbers, right=numbers, title=title)
    for source in made.sources:
        name = f"{source.partition} (repartition)" if source.is_internal else str(source.partition)
        listing.add(name, *map(str, (source.from_offset, source.to_offset, source.again, source.skipped)))
    yield listing
    yield from made.warnings
    if made.rewritten:
        yield f"{', '.join(made.rewritten)}: written to new changelogs, which the next start reads"
