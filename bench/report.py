"""The report on a set of runs: medians and ratios, as a terminal table, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from bench.case import OURS, Case
from bench.measure import Result
from bench.pages import measured_on, median_and_runs

GOALS: dict[str, float | None] = {"latency": 2.0, "start": 1.0, "first_commit": None, "memory": 1.3}
"""Ratios of the last line, with their goals if any: the most that each may be. The others are rates of cases, with own ones."""
_START, _FIRST_COMMIT, _MEMORY = "started again, until RUNNING", "until first commit", "peak memory"


@dataclass(frozen=True)
class Row:
    """One measure of one case: the values of each side's runs in order, their medians, and the ratio of the medians.

    `peer` is the side that Tidemark is compared with.
    """

    case: str
    measure: str
    unit: str
    ours: list[float]
    peer: list[float]

    @property
    def medians(self) -> tuple[float | None, float | None]:
        """The medians of Tidemark and of the peer."""
        return (median(self.ours) if self.ours else None), (median(self.peer) if self.peer else None)

    @property
    def ratio(self) -> float | None:
        """The median of Tidemark divided by that of the peer, or None unless both sides have a value."""
        ours, peer = self.medians
        return ours / peer if ours is not None and peer else None


_MEASURES: tuple[tuple[str, str, Callable[[Result], float | None]], ...] = (
    ("steady", "k events/s", lambda r: _thousands(r.rates.steady)),
    ("from first commit", "k events/s", lambda r: _thousands(r.rates.from_first_commit)),
    ("with warm-up", "k events/s", lambda r: _thousands(r.rates.with_warm_up)),
    (_FIRST_COMMIT, "s", lambda r: r.rates.first_commit_seconds),
    (_START, "s", lambda r: r.restart_s),
    ("total", "s", lambda r: r.rates.total_seconds),
    ("CPU", "s", lambda r: r.usage.cpu_seconds),
    (_MEMORY, "GB", lambda r: r.usage.peak_rss_bytes / 1e9),
    ("output records", "k", lambda r: None if r.verdict is None else r.verdict.records / 1e3),
)


def rows(results: list[Result], case: Case) -> list[Row]:
    """Return every measure of `case`."""
    return [
        Row(
            case.name,
            name,
            unit,
            _values(results, case.name, OURS, read),
            _values(results, case.name, case.against, read),
        )
        for name, unit, read in _MEASURES
    ]


def ratios(results: list[Result], cases: list[Case], latency: float | None) -> dict[str, float | None]:
    """Return the ratios of the last line by name: the cases' steady rates, `latency` as given, and those of the first case.

    These are starting again until RUNNING, the first start until the first commit, and memory.
    """
    # Beside a side that does nothing, start and memory have no goals.
    has_goals = bool(cases) and cases[0].goal is not None
    first = {row.measure: row.ratio for row in rows(results, cases[0])} if has_goals else {}
    return {
        **{case.name: rows(results, case)[0].ratio for case in cases},
        "latency": latency,
        "start": first.get(_START),
        "first_commit": first.get(_FIRST_COMMIT),
        "memory": first.get(_MEMORY),
    }


def goals_table(found: dict[str, float | None], cases: list[Case]) -> Table:
    """Return a table of the ratios beside their goals."""
    least = {case.name: case.goal for case in cases}
    table = Table("measure", "ratio", "goal", "reached", title=f"{OURS} / other side")
    for name, ratio in found.items():
        if ratio is not None:
            is_rate = name in least
            goal = least[name] if is_rate else GOALS[name]
            if goal is None:
                table.add_row(name, _ratio(ratio), "–", "–")
                continue
            is_reached = ratio >= goal if is_rate else ratio <= goal
            table.add_row(name, _ratio(ratio), f"{'≥' if is_rate else '≤'} {goal}", "yes" if is_reached else "no")
    return table


def last_line(found: dict[str, float | None], *, agree: bool | None) -> str:
    """Return the line that scripts read, with what was measured. `agree` is None if no output was compared."""
    words = [f"{name}={_ratio(ratio)}" for name, ratio in found.items() if ratio is not None]
    return " ".join(["bench:", *words, f"outputs_equal={str(agree).lower()}"])


_OUTCOMES = {True: "correct and equal", False: "NOT EQUAL, or wrong", None: "not compared"}


def agree(results: list[Result], case: str) -> bool | None:
    """Return whether every run of `case`, of each side that writes, ended with correct and equal output.

    None: no side that writes has run.
    """
    verdicts = [result.verdict for result in results if result.case == case and result.verdict is not None]
    if not verdicts:
        return None
    return all(verdict.right for verdict in verdicts) and len({verdict.digest for verdict in verdicts}) == 1


def agree_in_all(results: list[Result], cases: list[Case]) -> bool | None:
    """Return whether every case ended with correct and equal output; None if that was not compared in one of them."""
    found = {agree(results, case.name) for case in cases}
    return False if False in found else None if None in found or not found else True


def terminal_table(results: list[Result], cases: list[Case]) -> Table:
    """Return a table of all cases for the terminal."""
    table = Table(title="medians (and each run)")
    for heading in ("case", "measure", "unit", OURS, "other side", "ratio"):
        table.add_column(heading, justify="left" if heading in {"case", "measure", "unit"} else "right")
    for case in cases:
        for row in rows(results, case):
            table.add_row(*_cells(row), end_section=row.measure == _MEASURES[-1][0])
    return table


def markdown(results: list[Result], cases: list[Case], machine: dict[str, Any]) -> str:
    """Return the results of all cases as a section of a Markdown page."""
    lines = measured_on(machine)
    for case in cases:
        outcome = _OUTCOMES[agree(results, case.name)]
        that_write = " that write" if any(r.case == case.name and r.verdict is None for r in results) else ""
        lines += [
            f"### {case.name}: {case.about}",
            "",
            f"{case.events:,} events; output of all runs{that_write}: {outcome}.",
            "",
        ]
        lines += [f"| measure | unit | {OURS} | {case.against} | ratio |", "|---|---|---|---|---|"]
        lines += ["| " + " | ".join(_cells(row)[1:]) + " |" for row in rows(results, case)]
        lines.append("")
    return "\n".join(lines)


def write_json(path: Path, results: list[Result], cases: list[Case], machine: dict[str, Any]) -> None:
    """Write all results with their samples, so that a plot can be made again."""
    content = {
        "machine": machine,
        "cases": [case.described() for case in cases],
        "summary": [
            {**asdict(row), "median_ours": row.medians[0], "median_peer": row.medians[1], "ratio": row.ratio}
            for case in cases
            for row in rows(results, case)
        ],
        "runs": [asdict(result) for result in results],
    }
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _values(results: list[Result], case: str, side: str, read: Callable[[Result], float | None]) -> list[float]:
    found = (read(result) for result in results if result.case == case and result.side == side)
    return [value for value in found if value is not None]


def _thousands(rate: float | None) -> float | None:
    return None if rate is None else rate / 1e3


def _cells(row: Row) -> list[str]:
    values = (median_and_runs(runs, _number) for runs in (row.ours, row.peer))
    return [row.case, row.measure, row.unit, *values, _ratio(row.ratio)]


def _ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
