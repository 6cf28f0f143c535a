"""Plots of a set of runs: committed events over time, and the median rates."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.case import AT_LEAST_ONCE, CONSUMER, OURS, PEER, QUIX, SPARK, Case
from bench.measure import Result
from bench.report import rows

_COLOURS = {
    OURS: "#00708a",
    PEER: "#d98200",
    AT_LEAST_ONCE: "#8a8a8a",
    QUIX: "#7a3b8f",
    SPARK: "#b5462f",
    CONSUMER: "#5b7f2b",
}
_BARS = ("steady", "from first commit", "with warm-up")


def plot(path: Path, results: list[Result], cases: list[Case]) -> None:
    """Write one PNG with a row of two plots per case."""
    figure, axes = plt.subplots(len(cases), 2, figsize=(12, 4.2 * len(cases)), squeeze=False, layout="constrained")
    for (lines, bars), case in zip(axes, cases, strict=True):
        _progress(lines, results, case)
        _medians(bars, results, case)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _progress(axes: Axes, results: list[Result], case: Case) -> None:
    """Draw one stepped line per run. A steeper line is a faster side."""
    labelled: set[str] = set()
    for result in (result for result in results if result.case == case.name):
        seconds = [sample.seconds for sample in result.samples]
        committed = [sample.committed / 1e6 for sample in result.samples]
        label = None if result.side in labelled else result.side
        labelled.add(result.side)
        axes.step(seconds, committed, where="post", color=_COLOURS[result.side], label=label, alpha=0.8)
    axes.axhline(case.events * 0.25 / 1e6, color="grey", linestyle=":", linewidth=1)
    axes.annotate("steady from here", (0, case.events * 0.25 / 1e6), color="grey", fontsize=8, va="bottom")
    axes.set(title=f"{case.name}: committed events", xlabel="seconds since the process was started", ylabel="million")
    axes.legend()


def _medians(axes: Axes, results: list[Result], case: Case) -> None:
    measured = [row for row in rows(results, case) if row.measure in _BARS]
    for place, row in enumerate(measured):
        for side, value, shift in zip((OURS, case.against), row.medians, (-0.2, 0.2), strict=True):
            if value is not None:
                bar = axes.bar(place + shift, value, 0.38, color=_COLOURS[side])
                axes.bar_label(bar, fmt="%.0f", fontsize=8)
    labels = [row.measure + ("" if row.ratio is None else f"\n×{row.ratio:.2f}") for row in measured]
    axes.set_xticks(range(len(measured)), labels)
    axes.set(title=f"{case.name}: median rate", ylabel="thousand events/s")
