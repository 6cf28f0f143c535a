"""Show leftovers of commands and instances on this disk, and remove those that can go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tidemark.cli.arguments import command_to_run
from tidemark.cli.output import Output, Verbatim, View
from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.listing import Listing
from tidemark.operations.clean import Clean, CleanPlan, Judged
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.settings import Settings
from tidemark.topology_loader import load

_MB = 1_000_000
_DAY_MS = 86_400_000


def plan(topology: str, output: Output, *, previous: bool) -> None:
    """Show all leftovers, and which of them can go."""
    evidence = _evidence(topology)
    made = _clean(evidence, previous, output).show()
    command = command_to_run("clean", topology, *(["--previous"] if previous else []))
    hint = f"nothing was changed; {command} removes it" if made.removed else "there is nothing to remove"
    output.show(_form(made), *_views(made, evidence.clients.settings.state_dir), Verbatim(hint))


def run(topology: str, output: Output, *, previous: bool) -> None:
    """Show all leftovers, ask, and remove those that can go. Ends with 1 if the answer is no."""
    evidence = _evidence(topology)

    def approve(made: CleanPlan) -> bool:
        output.people(*_views(made, evidence.clients.settings.state_dir))
        return not made.removed or output.confirm("remove it?")

    done = _clean(evidence, previous, output).run(approve)
    if done is None:
        output.people("nothing was changed")
        raise typer.Exit(1)
    removed = f"removed {len(done.removed)} leftovers, {done.bytes / _MB:.1f} MB"
    output.show(_form(done), removed if done.judged else "there is nothing to remove")


def _evidence(topology: str) -> EvidenceReader:
    settings, application = Settings.load(), load(topology).plan()
    context = OperationContext.of(application, settings, copy_sources(application, settings), wall_clock_ms)
    context.require_has_run()
    return context.evidence


def _clean(evidence: EvidenceReader, previous: bool, output: Output) -> Clean:
    return Clean(evidence, previous, probe_from_environment(), lambda line: output.message(Verbatim(line)))


def _views(made: CleanPlan, state_dir: Path) -> Iterator[View]:
    """Yield two tables: what is removed and what stays, each with the reason."""
    now_ms = wall_clock_ms()
    for is_removed, title in ((True, "to be removed"), (False, "kept")):
        why = "why it may go" if is_removed else "why it stays"
        listing = Listing(
            "what", "where", "MB", "days", "why it was left", why,
            right=("MB", "days"), title=f"{made.application_id}: {title}", centred=False,
        )  # fmt: skip
        for each in made.judged:
            if each.is_removed is is_removed:
                left = each.leftover
                place = left.path.relative_to(state_dir) if left.path.is_relative_to(state_dir) else left.path
                size, age = f"{left.bytes / _MB:.1f}", f"{(now_ms - left.since_ms) / _DAY_MS:.1f}"
                listing.add(left.kind, str(place), size, age, left.why, each.why)
        if listing.rows:
            yield listing


def _form(made: CleanPlan) -> list[dict[str, Any]]:
    return [_listed(each) for each in made.judged]


def _listed(each: Judged) -> dict[str, Any]:
    left = each.leftover
    return {
        "kind": left.kind,
        "path": left.path,
        "bytes": left.bytes,
        "since_ms": left.since_ms,
        "why_left": left.why,
        "is_removed": each.is_removed,
        "why": each.why,
    }
