"""`make nightly`: every harness that `make test` leaves out, one after the other, and one table of how each ended.

    python -m tests.system.nightly.run [--only NAME …] [--logs FOLDER]

Each harness is run as `make NAME` and ends with a line that begins with its name. A harness that fails does not stop the
others. The exit code is 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[3]
HARNESSES = (
    "smoke", "letters", "peers", "fuzz", "failover", "crash", "change", "audit-faults", "drill", "oncall", "cluster",
    "restores", "chaos",
)  # fmt: skip
"""Targets of the Makefile, the shorter ones first."""


@dataclass(frozen=True)
class Result:
    """How one harness ended: its exit code, its duration, and its last line."""

    name: str
    exit_code: int
    seconds: float
    last_line: str


def run_harness(name: str, log: Path) -> Result:
    """Run `make NAME` with its output in `log`. Blocks for minutes to an hour."""
    began = time.monotonic()
    with log.open("wb") as output:
        done = subprocess.run(["make", name], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    return Result(name, done.returncode, time.monotonic() - began, last_line(log.read_text(errors="replace")))


def last_line(text: str) -> str:
    """The last line that says something, without what make adds about a failed target."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("make")]
    return lines[-1] if lines else "no output"


def table_of(results: list[Result]) -> Table:
    """A row per harness."""
    table = Table("harness", "result", "minutes", "last line")
    for result in results:
        ended = "ok" if result.exit_code == 0 else f"failed ({result.exit_code})"
        table.add_row(result.name, ended, f"{result.seconds / 60:.1f}", result.last_line)
    return table


def main() -> int:
    """Read the options and run the harnesses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=HARNESSES, help="some harnesses instead of all")
    parser.add_argument("--logs", type=Path, default=ROOT / "var" / "nightly", help="the folder for their output")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    results: list[Result] = []
    for name in options.only or HARNESSES:
        log = options.logs / f"{name}.log"
        console.print(f"{name}: running, output in {log}", soft_wrap=True)
        results.append(run_harness(name, log))
        console.print(results[-1].last_line, markup=False, soft_wrap=True)
    console.print(table_of(results))
    failed = [result.name for result in results if result.exit_code]
    print(f"nightly: harnesses={len(results)} failed={len(failed)} {' '.join(failed)}".rstrip())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
