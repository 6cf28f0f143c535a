"""The report on reads, as a terminal table, as Markdown and as one line."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.case import OURS, PEER
from bench.pages import measured_on, median_and_runs, table_lines

if TYPE_CHECKING:
    from bench.read_clients import Ceiling
    from bench.read_run import Load, Measured

_MEASURES: tuple[tuple[str, str, Callable[[Measured], float]], ...] = (
    ("reads per second", ",.0f", lambda result: result.reads_per_s),
    ("p50, ms", ".1f", lambda result: result.p50),
    ("p99, ms", ".1f", lambda result: result.p99),
    ("stream without reads, events/s", ",.0f", lambda result: result.stream_alone),
    ("stream with reads, events/s", ",.0f", lambda result: result.stream_with_reads),
    ("rate that the stream keeps", ".2f", lambda result: result.stream_kept),
    ("CPU of the client per read, µs", ".0f", lambda result: result.client_us),
)
_HEADINGS = ("instances", "measure", OURS, PEER, "ratio")


def _values(results: list[Measured], count: int, side: str, read: Callable[[Measured], float]) -> list[float]:
    return [read(result) for result in results if (result.instances, result.side) == (count, side)]


def _median(results: list[Measured], count: int, side: str, read: Callable[[Measured], float]) -> float:
    return median(_values(results, count, side, read))


def _rows(results: list[Measured]) -> list[list[str]]:
    def cell(count: int, side: str, form: str, read: Callable[[Measured], float]) -> str:
        return median_and_runs(_values(results, count, side, read), lambda value: format(value, form))

    return [
        [
            str(count), measure, cell(count, OURS, form, read), cell(count, PEER, form, read),
            f"{_median(results, count, OURS, read) / _median(results, count, PEER, read):.2f}",
        ]
        for count in _counts(results)
        for measure, form, read in _MEASURES
    ]  # fmt: skip


def _counts(results: list[Measured]) -> list[int]:
    return list(dict.fromkeys(result.instances for result in results))


def table(results: list[Measured]) -> Table:
    """Return the results as a table for the terminal."""
    made = Table(*_HEADINGS)
    for row in _rows(results):
        made.add_row(*row)
    return made


def markdown(results: list[Measured], load: Load, connections: int, alone: Ceiling, facts: dict[str, Any]) -> str:
    """Return the results as Markdown for the documentation."""
    checked, wrong = sum(result.checked for result in results), sum(len(result.wrong) for result in results)
    lines = [
        *measured_on(facts),
        f"{load.case.about}; {connections} connections; {load.seconds:.0f} s. Answers compared: {checked:,}, wrong: {wrong}.",
        f"The client alone, beside a server that always gives the same answer: {alone.reads_per_s:,.0f} reads per second, "
        f"{alone.client_us:.0f} µs of CPU per read.",
        "",
        *table_lines(_HEADINGS, _rows(results)),
    ]
    return "\n".join(lines) + "\n"


def last_line(results: list[Measured]) -> str:
    """Return one line for scripts. With several numbers of instances, each value is a list with commas, in their order."""

    def listed(form: str, of: Callable[[int], float]) -> str:
        return ",".join(format(of(count), form) for count in _counts(results))

    def medians(side: str, form: str, read: Callable[[Measured], float]) -> str:
        return listed(form, lambda count: _median(results, count, side, read))

    def rate(result: Measured) -> float:
        return result.reads_per_s

    ratio = listed(".2f", lambda count: _median(results, count, OURS, rate) / _median(results, count, PEER, rate))
    p99 = "/".join(medians(side, ".1f", lambda result: result.p99) for side in (OURS, PEER))
    stream = "/".join(medians(side, ".2f", lambda result: result.stream_kept) for side in (OURS, PEER))
    is_right = not any(result.wrong for result in results)
    return (
        f"reads: tidemark={medians(OURS, '.0f', rate)} kafka_streams={medians(PEER, '.0f', rate)} ratio={ratio} "
        f"p99_ms={p99} stream={stream} answers_right={str(is_right).lower()}"
    )
