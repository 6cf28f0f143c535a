"""Measures reads of a store over HTTP while its stream runs, beside Kafka Streams.

    python bench/reads.py --instances 1 3 --report var/reads.md

A history of events is processed first, then events are fed at a fixed rate. Clients read the windows of drawn keys, each
connection as soon as it has its last answer. The rate of the stream is measured without reads and with them. Answers are
compared with counts that are known from the numbers of the events: a sample during the reads, and some when all is processed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

if __name__ == "__main__":
    # So that it runs by its path, from any folder and without PYTHONPATH.
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root / "include"), str(root)]

from rich.console import Console

from bench.load import create_topics, new_broker
from bench.machine import ROOT, machine
from bench.pages import publish
from bench.program import run_program
from bench.read_clients import Clients, ceiling
from bench.read_run import Load, Measured, Run
from bench.read_sides import ReadSide, StreamsReads, TidemarkReads
from bench.reads_report import last_line, markdown, table
from tidemark.errors import ExitCode
from tidemark.settings import Settings

_CEILING_S = 5.0
_SHOWN = 5
console = Console(highlight=False)


def measure(
    side: ReadSide, instances: int, alternation: int, load: Load, clients: Clients, folder: Path, settings: Settings
) -> Measured:
    """Measure one run with a broker of its own. `folder` is removed again unless an answer is wrong. Blocks.

    Raises `BenchFailed`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with new_broker(folder / "broker", settings) as broker:
        create_topics(broker.bootstrap, load.case.program)
        result = Run(side, instances, load, clients, broker.bootstrap, folder).measure(alternation)
    if not result.wrong:
        shutil.rmtree(folder)
    return result


def main() -> int:
    options = _options()
    settings = Settings.load()
    folder = ROOT / "bench" / "results" / datetime.now(UTC).strftime("reads-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    load = Load(rate=options.rate, seconds=options.seconds, seed=options.seed)
    results: list[Measured] = []
    with Clients(options.clients, options.connections) as clients:
        alone = ceiling(clients, _CEILING_S)
        console.print(f"the client alone: {alone.reads_per_s:,.0f} reads/s", soft_wrap=True)
        for count, alternation, kind in product(
            options.instances, range(options.alternations), (TidemarkReads, StreamsReads)
        ):
            side = kind.of(settings, count)
            place = ROOT / "bench" / "build" / "reads" / f"{count}-{side.side.name}-{alternation + 1}"
            result = measure(side, count, alternation, load, clients, place, settings)
            results.append(result)
            _show(result)
            (folder / "results.json").write_text(json.dumps([asdict(r) for r in results], indent=1), encoding="utf-8")
    console.print(table(results))
    report = markdown(results, load, options.connections, alone, machine(settings))
    (folder / "summary.md").write_text(report, encoding="utf-8")
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(report, encoding="utf-8")
    if options.write_docs:
        publish(ROOT / "docs" / "reads.md", folder / "summary.md")
    print(last_line(results))
    return ExitCode.FAILED if any(result.wrong for result in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, nargs="+", default=[1], help="numbers of instances to measure")
    parser.add_argument("--seconds", type=float, default=20, help="length of each part of a run, after warming up")
    parser.add_argument("--alternations", type=int, default=3, help="number of runs of each side, alternating")
    parser.add_argument("--rate", type=int, default=10_000, help="events per second that are fed")
    parser.add_argument("--connections", type=int, default=8, help="connections that read at the same time")
    parser.add_argument("--clients", type=int, default=2, help="processes that share the connections")
    parser.add_argument("--seed", type=int, default=1, help="seed of the drawn keys")
    parser.add_argument("--report", type=Path, help="a file for the table, as Markdown")
    parser.add_argument("--write-docs", action="store_true", help="write the table to docs/reads.md")
    return parser.parse_args()


def _show(result: Measured) -> None:
    name = f"{result.instances} {result.side} {result.alternation + 1}"
    console.print(
        f"{name}: {result.reads_per_s:,.0f} reads/s, p50 {result.p50:.1f} ms, p99 {result.p99:.1f} ms; "
        f"stream {result.stream_alone:,.0f}/s alone, {result.stream_with_reads:,.0f}/s with reads; "
        f"answers checked={result.checked} wrong={len(result.wrong)}",
        soft_wrap=True,
    )
    for fault in result.wrong[:_SHOWN]:
        console.print(f"    {fault}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    run_program("reads", main)
