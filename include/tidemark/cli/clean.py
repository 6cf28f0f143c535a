"""`tidemark clean`: remove leftovers of commands and instances from this disk, after showing them and asking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.operations.clean import Clean, CleanPlan, Judged
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources
from tidemark.settings import Settings
from tidemark.topology_loader import load

_MB = 1_000_000
_DAY_MS = 86_400_000


def clean(
    topology: Annotated[str, typer.Argument(help="module in include/topologies")],
    previous: Annotated[
        bool,
        typer.Option("--previous", help="also state that restores and rewinds have replaced: no rollback after that"),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print what would be removed as JSON, and change nothing")
    ] = False,
    run: Annotated[bool, typer.Option("--run", help="do it; the files of running instances stay")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="with --run: do not ask")] = False,
) -> None:
    """Show leftovers of killed commands and of other instances, and which of them can go; with --run, ask and remove them.

    Never removed: the only state of a task, and the files of a running instance, restore or on-call case.
    """
    if yes and not run:
        raise typer.BadParameter("it is only valid with --run", param_hint="--yes")
    if as_json and run:
        raise typer.BadParameter("it only shows and is not valid with --run", param_hint="--json")
    settings, plan, console = Settings.load(), load(topology).plan(), Console()
    evidence = OperationContext.of(plan, settings, copy_sources(plan, settings), wall_clock_ms).evidence
    work = Clean(evidence, previous, probe_from_environment(), lambda line: console.print(line, soft_wrap=True))
    if as_json:
        typer.echo(json.dumps([_listed(each) for each in work.show().judged], indent=2))
        return
    if not run:
        made = work.show()
        _show(made, settings.state_dir)
        console.print("nothing was changed; --run removes it" if made.removed else "there is nothing to remove")
        return

    def approve(made: CleanPlan) -> bool:
        _show(made, settings.state_dir)
        return not made.removed or yes or typer.confirm("remove it?")

    done = work.run(approve)
    if done is None:
        console.print("nothing was changed")
        raise typer.Exit(1)
    if not done.judged:
        console.print("there is nothing to remove")
        return
    console.print(f"removed {len(done.removed)} leftovers, {done.bytes / _MB:.1f} MB")


def _show(made: CleanPlan, state_dir: Path) -> None:
    """Print two tables: what is removed and what stays, each with the reason."""
    console, now_ms = Console(), wall_clock_ms()
    for is_removed, title in ((True, "to be removed"), (False, "kept")):
        judged = [each for each in made.judged if each.is_removed is is_removed]
        table = Table(title=f"{made.application_id}: {title}", title_justify="left")
        for heading in (
            "what",
            "where",
            "MB",
            "days",
            "why it was left",
            "why it may go" if is_removed else "why it stays",
        ):
            table.add_column(heading, justify="right" if heading in ("MB", "days") else "left", overflow="fold")
        for each in judged:
            left = each.leftover
            place = left.path.relative_to(state_dir) if left.path.is_relative_to(state_dir) else left.path
            size, age = f"{left.bytes / _MB:.1f}", f"{(now_ms - left.since_ms) / _DAY_MS:.1f}"
            table.add_row(left.kind, str(place), size, age, left.why, each.why)
        if judged:
            console.print(table)


def _listed(each: Judged) -> dict[str, Any]:
    left = each.leftover
    return {
        "kind": left.kind,
        "path": str(left.path),
        "bytes": left.bytes,
        "since_ms": left.since_ms,
        "why_left": left.why,
        "is_removed": each.is_removed,
        "why": each.why,
    }
