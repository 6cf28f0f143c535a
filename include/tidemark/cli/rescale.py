"""Plan and carry out a change of the number of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemark.cli.approval import Approval
from tidemark.cli.arguments import command_to_run
from tidemark.cli.output import Output, View, as_json
from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.listing import Listing
from tidemark.operations.change.rescale import Rescale
from tidemark.operations.change.rescale_plan import RescalePlan
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load


def plan(topology: str, tasks: int, output: Output) -> None:
    """Show what another number of tasks moves. Blocks."""
    made = _rescale(load(topology).plan(), tasks, output).show()
    command = command_to_run("rescale", topology, "--tasks", str(tasks))
    _approval(output).show_plan(made, f"nothing was changed; stop the application, then use {command}")


def run(topology: str, tasks: int, output: Output) -> None:
    """Show the plan, ask, and carry it out. Blocks. Ends with 1 if the answer is no."""
    application, approval = load(topology).plan(), _approval(output)
    is_done = _rescale(application, tasks, output).run(approval)
    message = f"{application.application_id} has {tasks} tasks per sub-topology; start the application"
    approval.show_end(is_done=is_done, message=message)


def _rescale(application: TopologyPlan, tasks: int, output: Output) -> Rescale:
    return Rescale(
        application, Settings.load(), wall_clock_ms, tasks, LoggingRestoreListener(), probe_from_environment(),
        output.message,
    )  # fmt: skip


def _approval(output: Output) -> Approval[RescalePlan]:
    return Approval(output, "rescale as planned?", _form, _views)


def _form(made: RescalePlan) -> dict[str, Any]:
    return {**as_json(made), "warnings": made.warnings}


def _views(made: RescalePlan) -> Iterator[View]:
    title = f"rescale of {made.application_id} to {made.tasks} tasks"
    listing = Listing("sub-topology", "tasks", "tasks then", title=title)
    for number, tasks in made.before.items():
        listing.add(str(number), str(tasks), str(made.tasks))
    yield listing
    for topic, partitions in made.routers.items():
        yield f"{topic}: {partitions} partitions, filled by as many routing tasks"
    for name in made.stores:
        yield f"store {name}: every key moves to the task that owns it after the rescale"
    for topic, records in made.unread.items():
        yield f"{topic}: {records} unread records are routed to the new topic"
    for topic, offsets in made.waiting.items():
        yield f"{topic}: up to {offsets} records wait for the new tasks"
    yield from made.warnings
    for topic in made.left:
        yield f"{topic} remains, but nothing reads it any more"
