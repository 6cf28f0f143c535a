"""Plan and carry out a return to the state of an earlier time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tidemark.cli.approval import Approval
from tidemark.cli.arguments import command_to_run
from tidemark.cli.output import Output, View, as_json
from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.kafka.operator_acls import Command
from tidemark.listing import Listing
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import past_sources
from tidemark.operations.rewind.build import PointInTimeBuilder
from tidemark.operations.rewind.plan import RewindPlan
from tidemark.operations.rewind.rewind import REWINDS_FOLDER, Rewind
from tidemark.operations.times import format_time, parse_time
from tidemark.operations.workspace import Workspace, new_id
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import Settings
from tidemark.temporary_folder import temporary_folder
from tidemark.topology_loader import load


def plan(topology: str, to: str, output: Output) -> None:
    """Show what a return to a time would change. Blocks."""
    at_ms, context = _time(to), _context(topology)
    state_dir = context.clients.settings.state_dir
    with temporary_folder(state_dir, f"{context.plan.application_id}-rewind") as temporary:
        made = _rewind(context, temporary, output).plan(at_ms)
        command = command_to_run("rewind", topology, "--to", str(at_ms))
        _approval(output).show_plan(made, f"nothing was changed; stop the application, then use {command}")


def run(topology: str, to: str, output: Output) -> None:
    """Show the plan, ask, and carry it out. Blocks. Ends with 1 if the answer is no."""
    at_ms, context, approval = _time(to), _context(topology), _approval(output)
    is_done = _rewind(context, context.clients.settings.state_dir, output).run(at_ms, approval)
    approval.show_end(is_done=is_done, message=f"{context.plan.application_id} is rewound; start the application")


def _time(to: str) -> int:
    try:
        return parse_time(to, wall_clock_ms())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from error


def _context(topology: str) -> OperationContext:
    settings, application = Settings.load(), load(topology).plan()
    copies = past_sources(application, settings)
    context = OperationContext.of(application, settings, copies, wall_clock_ms, Command.RESTORE)
    context.require_has_run()
    return context


def _rewind(context: OperationContext, state_dir: Path, output: Output) -> Rewind:
    """Return the rewind that builds the earlier state below `state_dir`."""
    probe, report = probe_from_environment(), output.message
    workspace = Workspace(state_dir, context.plan.application_id, new_id(), REWINDS_FOLDER)
    return Rewind(PointInTimeBuilder(context, LoggingRestoreListener(), probe, report), workspace, probe, report)


def _approval(output: Output) -> Approval[RewindPlan]:
    return Approval(output, "rewind as planned?", _form, _views)


def _form(made: RewindPlan) -> dict[str, Any]:
    return {**as_json(made), "warnings": [made.warning]}


def _views(made: RewindPlan) -> Iterator[View]:
    numbers = ("batch", "offsets read again")
    tasks = Listing(
        "task", "batch", "committed", "source offsets, from → to", "offsets read again",
        right=numbers, title=f"rewind of {made.application_id} to {format_time(made.at_ms)}",
    )  # fmt: skip
    for task in made.tasks:
        offsets = ", ".join(f"{t} {offset} → {task.to_offsets[t]}" for t, offset in task.from_offsets.items())
        tasks.add(task.task, str(task.to_batch), format_time(task.to_ms), offsets, str(task.offsets_again))
    yield tasks
    stores = Listing("task", "store", "keys written", "keys deleted", right=("keys written", "keys deleted"))
    for store in made.stores:
        stores.add(store.task, store.store, str(store.written), str(store.deleted))
    if made.stores:
        yield stores
    yield f"When the application starts again, {made.warning}."
