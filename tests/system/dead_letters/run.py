"""A million records at once that cannot be read, on a driver with a heap of 1 GB: each must become one dead letter.

    python -m tests.system.dead_letters.run [--records N] [--heap 1g]

Last line `letters: each_once=true records=… seconds=… live_heap_mb=… collecting=… peak_memory_mb=…`: what was live behind a
collection of the whole heap, and the share of the time that went into collections. Exit 1 when a letter is missing, doubled or
wrong, when the instance ends or runs out of memory on its way, or when collections take more than a tenth of the time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import uuid
from pathlib import Path

from rich.console import Console
from tests.support.log_ends import ends_of_logs
from tests.system.dead_letters.many import HEAP, MOST_COLLECTING, ManyLetters, get_through, wrong_letters

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.settings import Settings


def main() -> int:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--heap", default=HEAP)
    options = parser.parse_args()
    console, mark = Console(highlight=False), f"letters-{uuid.uuid4()}"
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-letters-") as name:
        os.environ[processes.MARK] = mark
        folder = Path(name)
        with (
            EmbeddedBroker(folder / "broker", jars.ensure("kafka", Settings.load()), heap="1g") as broker,
            ends_of_logs(console, folder, "*/*.log", 40),
        ):
            bench = ManyLetters(broker.bootstrap, folder / "bench", seed=1)
            bench.heap = options.heap
            bench.fill(options.records)
            console.print(f"{options.records} records are written")
            try:
                passed = get_through(bench, lambda committed: console.print(f"{committed} committed"))
                wrong = wrong_letters(bench)
            finally:
                bench.end_all()
    for line in wrong[:20]:
        console.print(line, markup=False)
    print(
        f"letters: each_once={str(not wrong).lower()} records={options.records} seconds={passed.seconds:.0f} "
        f"live_heap_mb={passed.live_mb} collecting={passed.collecting:.3f} "
        f"peak_memory_mb={passed.usage.peak_rss_bytes >> 20}"
    )
    return 1 if wrong or passed.collecting > MOST_COLLECTING else 0


if __name__ == "__main__":
    sys.exit(main())
