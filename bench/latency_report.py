"""The report on latencies, as a terminal table, as Markdown and as a plot."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from rich.table import Table

from bench.case import OURS, PEER
from bench.pages import measured_on, median_and_runs, table_lines

if TYPE_CHECKING:
    from bench.latency import Latency

_MEASURES = ("p50", "p95", "p99", "longest")
_HEADINGS = ("events per second", "measure", f"{OURS}, ms", f"{PEER}, ms", "ratio")


def ratio(results: list[Latency], rate: int, measure: str = "p99") -> float:
    """Return Tidemark's median divided by that of Kafka Streams: below 1, Tidemark is faster."""
    return median(_of(results, rate, OURS, measure)) / median(_of(results, rate, PEER, measure))


def _of(results: list[Latency], rate: int, side: str, measure: str) -> list[float]:
    return [getattr(result, measure) for result in results if (result.rate, result.side) == (rate, side)]


def _rows(results: list[Latency]) -> list[list[str]]:
    def cell(rate: int, side: str, measure: str) -> str:
        return median_and_runs(_of(results, rate, side, measure), "{:.0f}".format)

    return [
        [
            f"{rate:,}", measure, cell(rate, OURS, measure), cell(rate, PEER, measure),
            f"{ratio(results, rate, measure):.2f}",
        ]
        for rate in sorted({result.rate for result in results})
        for measure in _MEASURES
    ]  # fmt: skip


def table(results: list[Latency]) -> Table:
    """Return the results as a table for the terminal."""
    made = Table(*_HEADINGS)
    for row in _rows(results):
        made.add_row(*row)
    return made


def markdown(results: list[Latency], facts: dict[str, Any]) -> str:
    """Return the results as Markdown for the documentation."""
    lines = [*measured_on(facts), *table_lines(_HEADINGS, _rows(results))]
    return "\n".join(lines) + "\n"


def picture(path: Path, results: list[Latency]) -> None:
    """Write a plot with the medians of each measure, for each rate and side."""
    rates = sorted({result.rate for result in results})
    figure, axes = plt.subplots(1, len(rates), figsize=(5 * len(rates), 3.2), squeeze=False, layout="constrained")
    for axis, rate in zip(axes[0], rates, strict=True):
        for number, (side, colour) in enumerate(((OURS, "#00708a"), (PEER, "#d98200"))):
            heights = [median(_of(results, rate, side, measure)) for measure in _MEASURES]
            places = [place + 0.4 * number for place in range(len(_MEASURES))]
            axis.bar_label(axis.bar(places, heights, 0.4, color=colour, label=side), fmt="%.0f", fontsize=8)
        axis.set(title=f"{rate:,} events per second", ylabel="ms")
        axis.set_xticks([place + 0.2 for place in range(len(_MEASURES))], _MEASURES)
        axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
