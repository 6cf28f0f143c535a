"""Show what `Topology(optimised=True)` would change, and measure how much it saves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tidemark.clock import wall_clock_ms
from tidemark.topology.optimisation import PlanDifference, difference
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load

if TYPE_CHECKING:
    from tidemark.devstack.measure import Measured


def plan(topology: str) -> None:
    """Print the topics that optimised=True merges and the changelogs it saves."""
    _compare(topology)


def measure(topology: str, records: int, seed: int) -> None:
    """Print what `plan` prints, run both plans on generated records, and compare them. Blocks for a minute or two."""
    plain, optimised, found = _compare(topology)
    if found.is_empty:
        return
    # `plan` needs none of this.
    from tidemark.devstack.measure import MeasuredLoad
    from tidemark.devstack.measure import measure as measured

    # Event time ends now: an event ahead of the clock is a bad record.
    made = MeasuredLoad(records, seed, wall_clock_ms())
    results = []
    for version, wanted in ((plain, False), (optimised, True)):
        typer.echo(f"measuring {'with' if wanted else 'without'} optimised=True …")
        with tempfile.TemporaryDirectory(prefix="tidemark-measure-") as folder:
            results.append(measured(topology, version, optimised=wanted, load=made, folder=Path(folder)))
    typer.echo("\n".join(report(*results)))


def _compare(topology: str) -> tuple[TopologyPlan, TopologyPlan, PlanDifference]:
    """Print what optimised=True changes. Returns the plan without it, the plan with it, and their difference."""
    plain, optimised = (load(topology, optimised=wanted).plan() for wanted in (False, True))
    found = difference(plain, optimised)
    typer.echo("\n".join(lines(topology, found, already=load(topology).is_optimised)))
    return plain, optimised, found


def lines(name: str, found: PlanDifference, *, already: bool) -> list[str]:
    """Return the difference as lines of text."""
    if found.is_empty:
        return [
            f"{name}: optimised=True changes nothing: no repartition exists twice, and no table's topic can be its changelog"
        ]
    summary = [f"{name}: optimised=True{', which it has,' if already else ''}"]
    summary += [f"  merges   {topic} into {into}" for topic, into in found.merged]
    summary += [
        f"  saves    {changelog}: {topic} itself is the changelog, and must be compacted"
        for changelog, topic in found.saved
    ]
    summary += [
        f"  renames  {old} to {new}: name that store or repartition, or its state starts empty"
        for old, new in found.renamed
    ]
    return summary


def report(before: Measured, after: Measured) -> list[str]:
    """Return a table that compares both runs."""
    rows = [
        ("records/s", before.records_per_second, after.records_per_second),
        ("bytes to repartition topics", before.repartition_bytes, after.repartition_bytes),
        ("bytes to changelog topics", before.changelog_bytes, after.changelog_bytes),
    ]
    summary = [f"{'':<28}{'before':>14}{'after':>14}{'change':>9}"]
    for label, was, now in rows:
        change = f"{(now - was) / was:+.0%}" if was else ""
        summary.append(f"{label:<28}{was:>14,.0f}{now:>14,.0f}{change:>9}")
    return summary
