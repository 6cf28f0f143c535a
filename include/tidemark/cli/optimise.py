"""Show what `Topology(optimised=True)` would change, and measure how much it saves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli.output import Output, Verbatim
from tidemark.clock import wall_clock_ms
from tidemark.topology.optimisation import PlanDifference, difference
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load

if TYPE_CHECKING:
    from tidemark.devstack.measure import Measured


def plan(topology: str, output: Output) -> None:
    """Show the topics that optimised=True merges and the changelogs it saves."""
    _, _, found = _compared(topology)
    output.show(_form(topology, found), *map(Verbatim, _lines(topology, found)))


def measure(topology: str, records: int, seed: int, output: Output) -> None:
    """Show what `plan` shows, run both plans on generated records, and compare them. Blocks for a minute or two."""
    plain, optimised, found = _compared(topology)
    output.people(*map(Verbatim, _lines(topology, found)))
    if found.is_empty:
        output.show({**_form(topology, found), "measured": None})
        return
    # `plan` needs none of this.
    from tidemark.devstack.measure import MeasuredLoad
    from tidemark.devstack.measure import measure as measured

    # Event time ends now: an event ahead of the clock is a bad record.
    made = MeasuredLoad(records, seed, wall_clock_ms())
    results = []
    for version, wanted in ((plain, False), (optimised, True)):
        output.message(f"measuring {'with' if wanted else 'without'} optimised=True …")
        with tempfile.TemporaryDirectory(prefix="tidemark-measure-") as folder:
            results.append(measured(topology, version, optimised=wanted, load=made, folder=Path(folder)))
    before, after = ({name: getattr(each, name) for _, name in _FIGURES} for each in results)
    output.show(
        {**_form(topology, found), "measured": {"before": before, "after": after}}, *map(Verbatim, report(*results))
    )


def _compared(topology: str) -> tuple[TopologyPlan, TopologyPlan, PlanDifference]:
    """Return the plan without optimised=True, the plan with it, and their difference."""
    plain, optimised = (load(topology, optimised=wanted).plan() for wanted in (False, True))
    return plain, optimised, difference(plain, optimised)


def _form(topology: str, found: PlanDifference) -> dict[str, Any]:
    return {
        "topology": topology,
        "is_optimised": load(topology).is_optimised,
        "merged": [{"topic": topic, "into": into} for topic, into in found.merged],
        "saved": [{"changelog": changelog, "topic": topic} for changelog, topic in found.saved],
        "renamed": [{"from": old, "to": new} for old, new in found.renamed],
    }


def _lines(name: str, found: PlanDifference) -> list[str]:
    """Return the difference as lines of text."""
    if found.is_empty:
        return [
            f"{name}: optimised=True changes nothing: no repartition exists twice, and no table's topic can be its changelog"
        ]
    summary = [f"{name}: optimised=True{', which it has,' if load(name).is_optimised else ''}"]
    summary += [f"  merges   {topic} into {into}" for topic, into in found.merged]
    summary += [
        f"  saves    {changelog}: {topic} itself is the changelog, and must be compacted"
        for changelog, topic in found.saved
    ]
    summary += [
        f"  renames  {old} to {new}: name that store or repartition, or an upgrade is refused"
        for old, new in found.renamed
    ]
    return summary


_FIGURES = (
    ("records/s", "records_per_second"),
    ("bytes to repartition topics", "repartition_bytes"),
    ("bytes to changelog topics", "changelog_bytes"),
)
"""The figures of both plans: the heading in the table, and the name in `Measured` and in JSON."""


def report(before: Measured, after: Measured) -> list[str]:
    """Return a table that compares both runs."""
    summary = [f"{'':<28}{'before':>14}{'after':>14}{'change':>9}"]
    for heading, name in _FIGURES:
        was, now = getattr(before, name), getattr(after, name)
        change = f"{(now - was) / was:+.0%}" if was else ""
        summary.append(f"{heading:<28}{was:>14,.0f}{now:>14,.0f}{change:>9}")
    return summary
