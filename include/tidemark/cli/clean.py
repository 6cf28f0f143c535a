"""Remove leftovers of commands and instances from this disk, after showing them and asking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.operations.clean import Clean, CleanPlan, Judged
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.settings import Settings
from tidemark.topology_loader import load

_MB = 1_000_000
_DAY_MS = 86_400_000


def plan(topology: str, *, previous: bool, as_json: bool) -> None:
    """Show all leftovers, and which of them can go."""
    evidence = _evidence(topology)
    made = _clean(evidence, previous).show()
    if as_json:
        typer.echo(json.dumps([_listed(each) for each in made.judged], indent=2))
        return
    _show(made, evidence.clients.settings.state_dir)
    command = f"tidemark clean run{' --previous' if previous else ''}"
    Console().print(f"nothing was changed; `{command}` removes it" if made.removed else "there is nothing to remove")


def run(topology: str, *, previous: bool, yes: bool) -> None:
    """Show all leftovers, ask, and remove those that can go. Ends with 1 if the answer is no."""
    evidence, console = _evidence(topology), Console()

    def approve(made: CleanPlan) -> bool:
        _show(made, evidence.clients.settings.state_dir)
        return not made.removed or yes or typer.confirm("remove it?")

    done = _clean(evidence, previous).run(approve)
    if done is None:
        console.print("nothing was changed")
        raise typer.Exit(1)
    if not done.judged:
        console.print("there is nothing to remove")
        return
    console.print(f"removed {len(done.removed)} leftovers, {done.bytes / _MB:.1f} MB")


def _evidence(topology: str) -> EvidenceReader:
    settings, application = Settings.load(), load(topology).plan()
    return OperationContext.of(application, settings, copy_sources(application, settings), wall_clock_ms).evidence


def _clean(evidence: EvidenceReader, previous: bool) -> Clean:
    console = Console()
    return Clean(evidence, previous, probe_from_environment(), lambda line: console.print(line, soft_wrap=True))


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
