"""`make crash`: kill the real thing at every step and compare everything with a recomputation each time.

    python -m tests.crash.run [--seed N] [--random N] [--only NAME …]

Last line `crash: kills=… lost=0 duplicated=0 wrong=0`; exit 1 when any is off.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from tests.crash.bench import Bench
from tests.crash.scenarios import SCENARIOS, Tally

from tidemark.local import jars, processes
from tidemark.local.broker import EmbeddedBroker
from tidemark.settings import Settings

FAST_ABORT = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--random", type=int, default=20, help="kills at random moments")
    parser.add_argument("--only", nargs="*", choices=sorted(SCENARIOS), help="some scenarios instead of all")
    options = parser.parse_args()
    console = Console(highlight=False)
    console.print(f"crash: seed={options.seed}")
    tally = Tally()
    mark = f"crash-{options.seed}"
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-crash-") as folder:
        os.environ[processes.MARK] = mark
        with EmbeddedBroker(
            Path(folder) / "broker", jars.ensure("kafka", Settings.load()), overrides=FAST_ABORT
        ) as broker:
            chosen = options.only or list(SCENARIOS)
            bench = Bench(broker.bootstrap, Path(folder) / "bench", options.seed)
            try:
                for number, name in enumerate(chosen, 1):
                    started = time.monotonic()
                    console.print(f"[{number}/{len(chosen)}] {name} …")
                    SCENARIOS[name](bench, tally, random.Random(options.seed), options.random)
                    console.print(
                        f"[{number}/{len(chosen)}] {name}: {time.monotonic() - started:.0f} s, {tally.line()}"
                    )
            except BaseException:
                for log in sorted((Path(folder) / "bench").glob("*.log")):
                    console.print(f"--- the end of {log.name}")
                    console.print(
                        "\n".join(log.read_text(errors="replace").splitlines()[-12:]), markup=False, soft_wrap=True
                    )
                raise
            finally:
                bench.close()
    for line in tally.report[:40]:
        console.print(line, markup=False)
    print(tally.line())
    return 0 if tally.exact else 1


if __name__ == "__main__":
    sys.exit(main())
