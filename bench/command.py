"""The command of the benchmark, from its options to the report. `bench/run.py` starts it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from bench import latency, latency_report, report
from bench.case import AT_LEAST_ONCE, CONSUMER, OURS, PARTITIONS, PEER, QUIX, SPARK, Case
from bench.cases import CASES
from bench.errors import BenchFailed
from bench.events import base_ms
from bench.machine import ROOT, machine
from bench.measure import Progress, Result, measure
from bench.pages import publish
from bench.plots import plot
from bench.python_sides import PlainSparkSide, QuixSide
from bench.sides import Side, StreamsSide, TidemarkSide, at_least_once, raw_consumer
from tidemark.errors import ExitCode
from tidemark.settings import Settings

_LATENCY = "latency"
"""Not a case of throughput: the time from an event to its committed output, at one rate."""
RESULTS = ROOT / "bench" / "results"
RUNS = ROOT / "bench" / "build" / "runs"
Named = TypeVar("Named")
console = Console()


def main(
    cases: Annotated[str, typer.Option(help="names separated by commas: " + ", ".join([*CASES, _LATENCY]))] = ",".join(
        [*CASES, _LATENCY]
    ),
    alternations: Annotated[int, typer.Option(min=1, help="number of runs of each side, alternating")] = 3,
    events: Annotated[int | None, typer.Option(min=1, help="events per case instead of the default")] = None,
    keys: Annotated[
        str | None, typer.Option(help="numbers of patients separated by commas: each case but latency once for each")
    ] = None,
    instances: Annotated[
        str,
        typer.Option(
            help="numbers of processes of each side, separated by commas: each case but latency once for each"
        ),
    ] = "1",
    sides: Annotated[
        str, typer.Option(help="sides to run, in this order; a case runs the two that it compares")
    ] = f"{OURS},{PEER},{AT_LEAST_ONCE},{QUIX},{SPARK},{CONSUMER}",
    heap: Annotated[str, typer.Option(help="JVM heap of each side")] = "2g",
    tidemark_setting: Annotated[list[str] | None, typer.Option(help="`name=value`, may be repeated")] = None,
    peer_config: Annotated[
        list[str] | None, typer.Option(help="`name=value` for Kafka Streams, may be repeated")
    ] = None,
    write_docs: Annotated[
        Path | None, typer.Option(help="write table and plot to this page, such as docs/benchmarks.md")
    ] = None,
) -> None:
    """Measure, verify and report. The exit code is 1 if any output is wrong."""
    settings = Settings.load()
    names = [name.strip() for name in cases.split(",")]
    chosen = [_named(CASES, name).sized(events) for name in names if name != _LATENCY]
    if keys is not None:
        chosen = [case.with_keys(number) for case, number in product(chosen, _numbers(keys, "patients", 2))]
    processes = _numbers(instances, "instances", 1)
    if max(processes) > PARTITIONS:
        raise typer.BadParameter(f"{instances!r}: a topic has {PARTITIONS} partitions, so no more instances have work")
    chosen = [case.with_instances(number) for case, number in product(chosen, processes)]
    available: dict[str, Side] = {
        OURS: TidemarkSide(settings, heap, _pairs(tidemark_setting)),
        PEER: StreamsSide(settings, heap, overrides=_pairs(peer_config)),
        AT_LEAST_ONCE: at_least_once(settings, heap, _pairs(tidemark_setting)),
        QUIX: QuixSide(),
        SPARK: PlainSparkSide(settings, heap),
        CONSUMER: raw_consumer(settings, heap),
    }
    running = [_named(available, name) for name in sides.split(",")]
    for case in chosen:
        if not _of_case(running, case):
            raise typer.BadParameter(
                f"{sides!r}: {case.name} compares {OURS} with {case.against}, so nothing would run"
            )
    folder = RESULTS / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    results: list[Result] = []
    for case in chosen:
        start_ms = base_ms(int(time.time() * 1000), case)
        compared = _of_case(running, case)
        for alternation, side in product(range(alternations), compared):
            results.append(_run(side, case, start_ms, alternation, settings))
            report.write_json(folder / "results.json", results, chosen, machine(settings))
    late = _measure_latency(alternations, folder, settings) if _LATENCY in names else None
    if chosen:
        _report(folder, results, chosen, settings, write_docs)
    agree = report.agree_in_all(results, chosen)
    found = report.ratios(results, chosen, late)
    console.print(report.goals_table(found, chosen))
    print(report.last_line(found, agree=agree))
    if agree is False:
        raise typer.Exit(ExitCode.FAILED)


def _of_case(running: list[Side], case: Case) -> list[Side]:
    return [side for side in running if side.name in (OURS, case.against)]


def _run(side: Side, case: Case, start_ms: int, alternation: int, settings: Settings) -> Result:
    """Measure one run under a progress bar and print one line about it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    name = f"{case.name} {alternation + 1} {side.name}"
    with Bars(*columns, console=console, transient=True, refresh_per_second=2) as bars:
        bar = bars.add_task(name, total=case.events)
        progress = Progress(
            phase=lambda phase: bars.update(bar, description=f"{name}: {phase}"),
            committed=lambda committed: bars.update(bar, completed=committed),
        )
        folder = RUNS / f"{case.name}-{side.name}-{alternation + 1}"
        result = measure(side, case, start_ms, alternation, folder, settings, progress)
    steady = "–" if result.rates.steady is None else f"{result.rates.steady / 1e3:.0f} k/s"
    verdict = result.verdict
    output = "it writes nothing"
    if verdict is not None:
        output = (
            f"results={verdict.results} missing={verdict.missing} wrong={verdict.wrong} unexpected={verdict.unexpected}"
        )
    rates = f"steady {steady}, with warm-up {result.rates.with_warm_up / 1e3:.0f} k/s"
    console.print(f"{name}: {rates}; {output}", highlight=False, soft_wrap=True)
    return result


def _measure_latency(alternations: int, folder: Path, settings: Settings) -> float:
    """Return the ratio of the 99th percentiles. Raises `BenchFailed` if an event is in no output."""
    results = latency.measure_all([latency.RATE], latency.RUN_S, alternations, folder, settings)
    if any(result.missing for result in results):
        raise BenchFailed("events are in no committed output; see the lines about latency above")
    return latency_report.ratio(results, latency.RATE)


def _report(folder: Path, results: list[Result], cases: list[Case], settings: Settings, page: Path | None) -> None:
    facts = machine(settings)
    console.print(report.terminal_table(results, cases))
    (folder / "summary.md").write_text(report.markdown(results, cases, facts), encoding="utf-8")
    plot(folder / "bench.png", results, cases)
    if page is not None:
        publish(page, folder / "summary.md", folder / "bench.png", "committed events and medians")
    console.print(f"results: {folder.relative_to(ROOT)}/", highlight=False, soft_wrap=True)


def _named(known: dict[str, Named], name: str) -> Named:
    if name.strip() not in known:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}")
    return known[name.strip()]


def _numbers(text: str, what: str, least: int) -> list[int]:
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least or len(set(numbers)) < len(numbers):
        raise typer.BadParameter(
            f"{text!r} is not a list of different numbers of {what}, from {least} on, separated by commas"
        )
    return numbers


def _pairs(texts: list[str] | None) -> dict[str, str]:
    for text in texts or []:
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not name=value")
    return dict(text.split("=", 1) for text in texts or [])
