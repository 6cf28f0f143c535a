"""Plan and carry out the repair of changelogs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemark.cli.approval import Approval
from tidemark.cli.arguments import command_to_run, repeated
from tidemark.cli.output import Output, View, as_json
from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused
from tidemark.events.progress import RichRestoreListener
from tidemark.failpoint import probe_from_environment
from tidemark.listing import Listing
from tidemark.operations.change.repair import Repair
from tidemark.operations.change.repair_plan import RepairPlan
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load


def plan(topology: str, store: list[str] | None, source: SourceOfState | None, output: Output) -> None:
    """Show which changelogs would be written from which copies. Blocks."""
    with RichRestoreListener(output.progress_console()) as listener:
        made = _repair(load(topology).plan(), store, source, listener, output).show()
        options = [*repeated("--store", store or []), *repeated("--from", [] if source is None else [source.value])]
        command = command_to_run("repair", topology, *options)
        hint = f"nothing was compared or changed; stop the application, then use {command}"
        _approval(output).show_plan(made, hint)


def run(topology: str, store: list[str] | None, source: SourceOfState | None, output: Output) -> None:
    """Compare the copies with the changelogs, ask, and write what differs. Blocks. Ends with 1 if the answer is no."""
    application, approval = load(topology).plan(), _approval(output)
    with RichRestoreListener(output.progress_console()) as listener:

        def approve(made: RepairPlan) -> bool:
            with listener.paused():
                return approval(made)

        is_done = _repair(application, store, source, listener, output).run(approve)
    message = f"the changelogs of {application.application_id} are repaired; start the application"
    approval.show_end(is_done=is_done, message=message)


def _repair(
    application: TopologyPlan,
    store: list[str] | None,
    source: SourceOfState | None,
    listener: RichRestoreListener,
    output: Output,
) -> Repair:
    if source is SourceOfState.CHANGELOG:
        raise StartRefused(
            "a changelog cannot be repaired from itself: give --from local, standby, savepoint or source"
        )
    return Repair(
        application, Settings.load(), wall_clock_ms, store or [], source, listener, probe_from_environment(),
        output.message,
    )  # fmt: skip


def _approval(output: Output) -> Approval[RepairPlan]:
    return Approval(output, "repair as planned?", _form, _views)


def _form(made: RepairPlan) -> dict[str, Any]:
    return {**as_json(made), "warnings": made.warnings}


def _views(made: RepairPlan) -> Iterator[View]:
    listing = Listing(
        "task", "store", "compared with", "keys that differ", "changelog",
        right=("keys that differ",), title=f"changelogs of {made.application_id}",
    )  # fmt: skip
    for store in made.stores:
        for task in store.tasks:
            differing = "" if task.differing is None else str(task.differing)
            judge = task.location if task.is_judge else "nothing"
            listing.add(task.task, store.store, judge, differing, store.summary)
    yield listing
    yield from made.warnings
