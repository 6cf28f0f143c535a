"""Change from the version that ran to that of the module, and keep the state that can be kept."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode
from tidemark.failpoint import probe_from_environment
from tidemark.operations.change.upgrade import Upgrade
from tidemark.operations.change.upgrade_plan import UpgradePlan
from tidemark.registry.compatibility import StoreChangeKind
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load


def plan(topology: str, rename: list[str] | None, drop: list[str] | None, add: list[str] | None) -> None:
    """Show what happens to each store. Blocks. Ends with 30 if the upgrade is refused."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tidemark-upgrade-") as temporary:
        made = _upgrade(load(topology).plan(), rename, drop, add).show(Path(temporary))
    _show(made)
    if made.refused:
        console.print("nothing was changed; the upgrade is refused")
        raise typer.Exit(ExitCode.REFUSED)
    console.print("nothing was changed; stop the application, then use `tidemark upgrade run`")


def run(topology: str, rename: list[str] | None, drop: list[str] | None, add: list[str] | None, *, yes: bool) -> None:
    """Show the plan, ask, and carry it out. Blocks. Ends with 1 if the answer is no, with 30 if it is refused."""
    console, version = Console(), load(topology).plan()

    def approve(made: UpgradePlan) -> bool:
        _show(made)
        return yes or typer.confirm("upgrade as planned?")

    if not _upgrade(version, rename, drop, add).run(approve):
        console.print("nothing was changed")
        raise typer.Exit(1)
    console.print(f"{version.application_id} is at version {version.version}; start the application")


def _upgrade(version: TopologyPlan, rename: list[str] | None, drop: list[str] | None, add: list[str] | None) -> Upgrade:
    return Upgrade(
        version, Settings.load(), wall_clock_ms, rename or [], drop or [], add or [], LoggingRestoreListener(),
        probe_from_environment(), Console().print,
    )  # fmt: skip


def _show(made: UpgradePlan) -> None:
    """Print the plan, its refusals with their remedies, and what is lost."""
    console = Console()
    for obstacle in made.obstacles:
        console.print(f"refused: {obstacle}", highlight=False, markup=False)
    table = Table(title=f"upgrade of {made.application_id} from version {made.from_version} to {made.to_version}")
    for heading in ("store", "fate", "keys", "why"):
        table.add_column(heading, justify="right" if heading == "keys" else "left", overflow="fold")
    for change in made.changes:
        keys = str(made.keys[change.was]) if change.was in made.keys else "—"
        why = f"{change.why}; {change.remedy}" if change.remedy else change.why
        table.add_row(change.name, change.change_kind, keys, why)
    console.print(table)
    for store, lost in made.lost.items():
        console.print(f"lost: {lost} keys of {store}", highlight=False)
    for topic, offsets in made.waiting.items():
        console.print(f"{topic}: up to {offsets} records wait for the new version", highlight=False)
    copied = [c for c in made.changes if c.change_kind is StoreChangeKind.COPIED]
    if copied and not made.refused:
        console.print("the next start reads the copied stores from their new changelogs")
    for topic in made.left:
        console.print(f"{topic} remains, but nothing reads it any more", highlight=False)
