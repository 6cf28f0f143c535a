"""`make fuzz CASES=10000 SEED=1`: drawn topologies and inputs on Tidemark and on Kafka Streams' TopologyTestDriver, compared.

    python tests/system/fuzz/run.py [--cases 10000] [--seed 1] [--only joins,sessions] [--keep-going]

A third of the cases commits after every record: there nothing may differ. Last line
`fuzz: cases=… different=0 not_compared=<m> classes=<n>`: m cases have a sink or store that differs and of which any line may
depend on a late record, and n documented differences were met, which a table before it shows. At a difference the case is
shrunk and printed as a test to paste, with both results; exit 1. `--keep-going` goes on to the end, and shows one case for each
combination of nodes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tests.system.fuzz.draw import KINDS, Only
from tests.system.fuzz.java_side import command

from tidemark.errors import TidemarkError
from tidemark.settings import Settings

PROCESSES = 2
_REPORT_S = 0.5


@dataclass
class Tally:
    """What was met so far. `not_compared` are the cases in which some sink or store was not compared at all.

    `failures` are by the kinds of nodes: how often, and the first of them, printed.
    """

    cases: int = 0
    records: int = 0
    commits_each: int = 0
    different: int = 0
    not_compared: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Take another process's report in."""
        self.cases += other.cases
        self.records += other.records
        self.commits_each += other.commits_each
        self.different += other.different
        self.not_compared += other.not_compared
        self.classes += other.classes
        for kind, (count, text) in other.failures.items():
            self.failures[kind] = (self.failures.get(kind, (0, ""))[0] + count, text)


def main() -> int:
    """Exit code 0 when no case differs, else 1."""
    options = _options()
    console = Console(highlight=False)
    settings = Settings.load()
    # Compiled once, before two processes want it.
    command(settings)
    only = Only(options.only)
    context = multiprocessing.get_context("spawn")
    reports: Queue[Tally | str | None] = context.Queue()
    shares = [options.cases * (i + 1) // PROCESSES - options.cases * i // PROCESSES for i in range(PROCESSES)]
    workers = [
        context.Process(target=_work, args=(share, options.seed * PROCESSES + i, only, options, reports))
        for i, share in enumerate(shares)
        if share
    ]
    console.print(f"fuzz: seed={options.seed} kinds={','.join(sorted(only.kinds))}", soft_wrap=True)
    for worker in workers:
        worker.start()
    tally = Tally()
    try:
        failed = _followed(tally, reports, workers, options, console)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    for kind, (count, text) in tally.failures.items():
        console.rule(f"{count} x {kind}")
        print(text)
    console.print(_table(tally))
    # The last line is read by scripts.
    print(
        f"fuzz: cases={tally.cases} different={tally.different} not_compared={tally.not_compared} "
        f"classes={len(tally.classes)}"
    )
    return 1 if tally.different or failed else 0


def _followed(tally: Tally, reports: Any, workers: list[Any], options: argparse.Namespace, console: Console) -> bool:
    """Collect reports until all have ended, or one has met a difference. Whether a process failed."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    running, started = len(workers), time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("fuzz", total=options.cases, rate="")
        while running:
            try:
                report = reports.get(timeout=1)
            except queue.Empty:
                if any(worker.exitcode for worker in workers):
                    console.print("fuzz: a process ended early")
                    return True
                continue
            if report is None:
                running -= 1
            elif isinstance(report, str):
                console.print(report, markup=False, soft_wrap=True)
                return True
            else:
                tally.add(report)
                rate = f"{tally.cases / (time.monotonic() - started) * 60:.0f} a minute, different {tally.different}"
                progress.update(bar, completed=tally.cases, rate=rate)
                if tally.different and not options.keep_going:
                    return False
    return False


def _work(cases: int, seed: int, only: Only, options: argparse.Namespace, reports: Any) -> None:
    from tests.system.fuzz.working import work

    try:
        work(cases, seed, only, reports.put, keep_going=options.keep_going)
    except TidemarkError as error:
        reports.put(f"fuzz: {error}")
    reports.put(None)


def _table(tally: Tally) -> Table:
    table = Table("what was met", "cases")
    table.add_row("records", str(tally.records))
    table.add_row("with a commit after every record", str(tally.commits_each))
    for name, count in sorted(tally.classes.items()):
        table.add_row(name, str(count))
    table.add_row(
        "with a sink or store that could not be compared, because a late record may change any line",
        str(tally.not_compared),
    )
    table.add_row("different", str(tally.different))
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=_kinds, default=frozenset(KINDS), help=f"of {','.join(KINDS)}")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a difference")
    return parser.parse_args()


def _kinds(text: str) -> frozenset[str]:
    names = frozenset(name for name in text.split(",") if name)
    if unknown := sorted(names - set(KINDS)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(KINDS)}")
    return names or frozenset(KINDS)


if __name__ == "__main__":
    try:
        code = main()
    except TidemarkError as error:
        print(f"fuzz: {error}", file=sys.stderr)
        code = int(getattr(error, "exit_code", 1))
    sys.exit(code)
