"""`make crash`: kill the real thing at every step and compare everything with a recomputation each time.

    python -m tests.system.crash.run [--seed N] [--random N] [--apps NAME …] [--only SCENARIO …]

Last line `crash: kills=… lost=0 duplicated=0 wrong=0`; exit 1 when any is off.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import uuid
from pathlib import Path

from rich.console import Console
from spark_jobs.session import spark_session
from tests.support.log_ends import ends_of_logs
from tests.system.crash.bench import Bench
from tests.system.crash.nodes import NodesBench
from tests.system.crash.scenarios import SCENARIOS, Tally

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.settings import Settings

FAST_ABORT = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


APPS = ["patients", "nodes"]


def _bench(app: str, bootstrap: str, folder: Path, seed: int) -> Bench:
    if app == "patients":
        return Bench(bootstrap, folder, seed)
    settings = Settings.load(spark_driver_memory="2g", spark_master="local[1]", spark_shuffle_partitions=1)
    return NodesBench(bootstrap, folder, seed, spark_session(settings, "replay"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--random", type=int, default=20, help="kills at random moments")
    parser.add_argument("--apps", nargs="*", choices=APPS, default=APPS, help="patient monitoring, every stateful node")
    parser.add_argument("--only", nargs="*", choices=sorted(SCENARIOS), help="some scenarios instead of all")
    options = parser.parse_args()
    console = Console(highlight=False)
    console.print(f"crash: seed={options.seed}")
    tally = Tally()
    mark = f"crash-{uuid.uuid4()}"
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-crash-") as folder:
        os.environ[processes.MARK] = mark
        with EmbeddedBroker(
            Path(folder) / "broker", jars.ensure("kafka", Settings.load()), overrides=FAST_ABORT
        ) as broker:
            chosen = [(app, name) for app in options.apps for name in options.only or list(SCENARIOS)]
            benches: dict[str, Bench] = {}
            try:
                with ends_of_logs(console, Path(folder), "*/*.log"):
                    for number, (app, name) in enumerate(chosen, 1):
                        started = time.monotonic()
                        console.print(f"[{number}/{len(chosen)}] {app}: {name} …")
                        bench = benches.get(app) or _bench(app, broker.bootstrap, Path(folder) / app, options.seed)
                        benches[app] = bench
                        SCENARIOS[name](bench, tally, random.Random(options.seed), options.random)
                        bench.end_all()
                        console.print(
                            f"[{number}/{len(chosen)}] {app}: {name}: {time.monotonic() - started:.0f} s, {tally.line()}"
                        )
            finally:
                for bench in benches.values():
                    bench.close()
    for line in tally.report[:40]:
        console.print(line, markup=False)
    print(tally.line())
    return 0 if tally.exact else 1


if __name__ == "__main__":
    sys.exit(main())
