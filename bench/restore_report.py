"""The report on restores, as a terminal table, as Markdown and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from rich.table import Table

from bench.pages import measured_on, table_lines

if TYPE_CHECKING:
    from bench.restore import Measured

_HEADINGS = (
    "keys",
    "side",
    "source of state",
    "until RUNNING, s",
    "restore, s",
    "keys/s",
    "of Kafka Streams",
    "state, MB",
)


def _cells(result: Measured, results: list[Measured]) -> list[str]:
    ours = (r for r in results if r.size == result.size)
    peer = next((r for r in ours if r.side == "kafka-streams" and r.source == "whole changelog"), None)
    is_same = peer is not None and result.source == peer.source and result.restore_s > 0 and peer.restore_s > 0
    ratio = f"{result.keys_per_s / peer.keys_per_s:.2f}" if is_same and peer else "–"
    rate = f"{result.keys_per_s / 1e3:,.0f} k" if result.source != "state in place" and result.restore_s > 0 else "–"
    return [
        f"{result.keys:,}", result.side, result.source, f"{result.running_s:.1f}", f"{result.restore_s:.1f}", rate, ratio,
        f"{result.state_mb:,.0f}",
    ]  # fmt: skip


def table(results: list[Measured]) -> Table:
    """Return the results as a table for the terminal."""
    made = Table(*_HEADINGS)
    for result in results:
        made.add_row(*_cells(result, results))
    return made


def markdown(results: list[Measured], facts: dict[str, Any]) -> str:
    """Return the results as Markdown for the documentation."""
    lines = [*measured_on(facts), *table_lines(_HEADINGS, (_cells(result, results) for result in results))]
    return "\n".join(lines) + "\n"


def picture(path: Path, results: list[Measured]) -> None:
    """Write a plot with one bar per source and size."""
    sizes = sorted({r.size for r in results})
    figure, axes = plt.subplots(1, len(sizes), figsize=(6 * len(sizes), 4), squeeze=False, layout="constrained")
    for axis, size in zip(axes[0], sizes, strict=True):
        shown = [r for r in results if r.size == size and r.source != "state in place"]
        colours = ["#d98200" if r.side == "kafka-streams" else "#00708a" for r in shown]
        bars = axis.barh([f"{r.source}\n{r.side}" for r in shown], [r.restore_s for r in shown], color=colours)
        axis.bar_label(bars, fmt="%.1f", fontsize=8)
        axis.invert_yaxis()
        axis.set(title=f"{size:,} keys", xlabel="seconds more than a start with the state in place")
    figure.savefig(path, dpi=120)
    plt.close(figure)
