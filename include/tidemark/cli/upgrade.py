"""Plan and carry out a change to another version of a topology."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from tidemark.cli.approval import Approval
from tidemark.cli.arguments import command_to_run, repeated
from tidemark.cli.output import Output, View, as_json
from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode
from tidemark.failpoint import probe_from_environment
from tidemark.listing import Listing
from tidemark.operations.change.upgrade import Upgrade
from tidemark.operations.change.upgrade_plan import UpgradePlan
from tidemark.registry.compatibility import StoreChangeKind
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import Settings
from tidemark.temporary_folder import temporary_folder
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load


@dataclass(frozen=True)
class Declared:
    """The changes that the user declares, as they are typed."""

    rename: list[str]
    drop: list[str]
    add: list[str]


def plan(topology: str, declared: Declared, output: Output) -> None:
    """Show what happens to each store. Blocks. Ends with 30 if the upgrade is refused."""
    version, state_dir = load(topology).plan(), Settings.load().state_dir
    with temporary_folder(state_dir, f"{version.application_id}-upgrade") as temporary:
        made = _upgrade(version, declared, output).show(temporary)
    options = [
        *repeated("--rename", declared.rename),
        *repeated("--drop", declared.drop),
        *repeated("--add", declared.add),
    ]
    possible = f"stop the application, then use {command_to_run('upgrade', topology, *options)}"
    _approval(output).show_plan(made, f"nothing was changed; {'the upgrade is refused' if made.refused else possible}")
    if made.refused:
        raise typer.Exit(ExitCode.REFUSED)


def run(topology: str, declared: Declared, output: Output) -> None:
    """Show the plan, ask, and carry it out. Blocks. Ends with 1 if the answer is no, with 30 if it is refused."""
    version, approval = load(topology).plan(), _approval(output)
    is_done = _upgrade(version, declared, output).run(approval)
    message = f"{version.application_id} is at version {version.version}; start the application"
    approval.show_end(is_done=is_done, message=message)


def _upgrade(version: TopologyPlan, declared: Declared, output: Output) -> Upgrade:
    return Upgrade(
        version, Settings.load(), wall_clock_ms, declared.rename, declared.drop, declared.add, LoggingRestoreListener(),
        probe_from_environment(), output.message,
    )  # fmt: skip


def _approval(output: Output) -> Approval[UpgradePlan]:
    return Approval(output, "upgrade as planned?", _form, _views)


def _form(made: UpgradePlan) -> dict[str, Any]:
    return {**as_json(made), "refused": made.refused, "lost": made.lost, "warnings": made.warnings}


def _views(made: UpgradePlan) -> Iterator[View]:
    """Yield the plan, its refusals with their remedies, and what is lost."""
    for obstacle in made.obstacles:
        yield f"refused: {obstacle}"
    title = f"upgrade of {made.application_id} from version {made.from_version} to {made.to_version}"
    listing = Listing("store", "fate", "keys", "why", right=("keys",), title=title)
    for change in made.changes:
        keys = str(made.keys[change.was]) if change.was in made.keys else "—"
        why = f"{change.why}; {change.remedy}" if change.remedy else change.why
        listing.add(change.name, change.change_kind, keys, why)
    yield listing
    for store, lost in made.lost.items():
        yield f"lost: {lost} keys of {store}"
    for topic, offsets in made.waiting.items():
        yield f"{topic}: up to {offsets} records wait for the new version"
    if not made.refused:
        yield from made.warnings
    if not made.refused and any(change.change_kind is StoreChangeKind.COPIED for change in made.changes):
        yield "the next start reads the copied stores from their new changelogs"
    for topic in made.left:
        yield f"{topic} remains, but nothing reads it any more"
