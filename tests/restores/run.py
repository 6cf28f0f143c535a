"""`make restores N=25`: restores drawn at random, each compared with a recomputation.

    python -m tests.restores.run [--n N] [--seed N]

Drawn are the topology, the number of tasks, the source of state, where the application dies, and whether the restore is
killed in the middle too. Last line `restores: run=… ok=… wrong=0`; exit 1 when any is off.
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
from spark_jobs.session import spark_session
from tests.crash.bench import Bench
from tests.crash.nodes import NodesBench
from tests.crash.run import FAST_ABORT
from tests.restores.drawn import Drawn, draw, one_restore
from tests.telling import ends_of_logs

from tidemark.local import jars, processes
from tidemark.local.broker import EmbeddedBroker
from tidemark.settings import Settings

PER_BROKER = 5


def _bench(drawn: Drawn, bootstrap: str, folder: Path, seed: int) -> Bench:
    if drawn.app == "patients":
        return Bench(bootstrap, folder, seed, drawn.partitions)
    settings = Settings.load(spark_driver_memory="2g", spark_master="local[1]", spark_shuffle_partitions=1)
    return NodesBench(bootstrap, folder, seed, spark_session(settings, "replay"), drawn.partitions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=25)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    console = Console(highlight=False)
    console.print(f"restores: seed={options.seed}")
    chance = random.Random(options.seed)
    mark = f"restores-{options.seed}"
    done = ok = 0
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-restores-") as name:
        os.environ[processes.MARK] = mark
        while done < options.n:
            # A few restores of one application on one broker, each from what the one before left.
            first = draw(chance)
            folder = Path(name) / str(done)
            jar_files = jars.ensure("kafka", Settings.load())
            with EmbeddedBroker(folder / "broker", jar_files, overrides=FAST_ABORT) as broker:
                bench = _bench(first, broker.bootstrap, folder / "bench", chance.randrange(1 << 30))
                try:
                    with ends_of_logs(console, bench.folder):
                        for drawn in [first, *(draw(chance, first) for _ in range(PER_BROKER - 1))][: options.n - done]:
                            started = time.monotonic()
                            faults = one_restore(bench, drawn, chance)
                            done, ok = done + 1, ok + (not faults)
                            console.print(
                                f"[{done}/{options.n}] {drawn}: {'equal' if not faults else 'WRONG'}, "
                                f"{time.monotonic() - started:.0f} s",
                                markup=False,
                            )
                            for fault in faults[:10]:
                                console.print(f"    {fault}", markup=False)
                finally:
                    bench.close()
    print(f"restores: run={done} ok={ok} wrong={done - ok}")
    return 0 if done == ok else 1


if __name__ == "__main__":
    sys.exit(main())
