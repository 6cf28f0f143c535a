"""`make cluster`: a stream on a Spark standalone cluster, whose parts are killed, compared with a recomputation.

    python -m tests.cluster.run [--seed N]

Broker, master, two workers and an instance; an executor, a worker, the instance and the broker are killed in turn, while input
arrives. Last line `cluster: exact=true`; exit 1 when anything is lost, doubled or wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path

from rich.console import Console
from tests.cluster.standalone import Standalone
from tests.crash.bench import Bench
from tests.crash.run import FAST_ABORT
from tests.crash.scenarios import Tally
from tests.telling import ends_of_logs

from tidemark.local import jars, processes
from tidemark.local.broker import EmbeddedBroker
from tidemark.local.processes import wait_until
from tidemark.settings import Settings


class ClusterBench(Bench):
    """Instances whose Spark is the cluster's."""

    master = ""
    secret = ""

    def environment(self, disk: str = "state") -> dict[str, str]:
        """With the cluster, and everything else as on one machine."""
        return {
            **super().environment(disk),
            "TIDEMARK_SPARK_MASTER": self.master,
            "TIDEMARK_SPARK_EXECUTOR_MEMORY": "512m",
            "TIDEMARK_SPARK_AUTHENTICATE_SECRET": self.secret,
        }


def kill_executor_and_worker(bench: ClusterBench, cluster: Standalone, tally: Tally) -> None:
    """While batches are computed: Spark gives the work of the dead to the others."""
    running = bench.launch()
    bench.wait_state(running, "RUNNING")
    bench.feeder.feed(bench.batch_records)
    bench.wait_drained()
    tally.compare(bench, "on a cluster")
    tally.expect(set(cluster.executors()) == {0, 1}, f"executors run on workers {set(cluster.executors())}")
    before = cluster.executors()[0]
    bench.feeder.feed(bench.batch_records)
    before.kill()
    tally.kills += 1
    bench.wait_drained()
    tally.compare(bench, "an executor killed")
    again = wait_until(lambda: cluster.executors().get(0, before).pid != before.pid, 60)
    tally.expect(again, "the worker has not started another executor")
    bench.feeder.feed(bench.batch_records)
    cluster.kill_worker(1)
    tally.kills += 1
    bench.wait_drained()
    tally.compare(bench, "a worker killed")
    tally.expect(running.poll() is None, f"the instance ended with {running.poll()}")
    bench.feeder.feed(bench.batch_records)
    bench.kill(running)
    tally.kills += 1
    running = bench.launch()
    bench.wait_state(running, "RUNNING")
    bench.wait_drained()
    tally.compare(bench, "the instance killed")


def kill_broker(bench: ClusterBench, broker: EmbeddedBroker, tally: Tally) -> None:
    """The instance may end meanwhile, and is then launched again as its supervisor does."""
    broker.kill()
    tally.kills += 1
    broker.start()
    bench.feeder.feed(bench.batch_records)

    def worked_off() -> bool:
        if not bench.has_running:
            bench.launch()
        return bench.is_drained()

    tally.expect(wait_until(worked_off, 180, 0.5), "the stream did not go on behind the broker's return")
    tally.compare(bench, "the broker killed")


def main() -> int:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    console, tally, mark = Console(highlight=False), Tally(), f"cluster-{uuid.uuid4()}"
    console.print(f"cluster: seed={options.seed}")
    settings = Settings.load()
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-cluster-") as name:
        os.environ[processes.MARK] = mark
        folder = Path(name)
        with (
            EmbeddedBroker(folder / "broker", jars.ensure("kafka", settings), overrides=FAST_ABORT) as broker,
            Standalone(folder / "spark", secret="loopback") as cluster,
            ends_of_logs(console, folder, "*/*.log"),
        ):
            bench = ClusterBench(broker.bootstrap, folder / "bench", options.seed)
            bench.master, bench.secret = cluster.url, "loopback"
            try:
                kill_executor_and_worker(bench, cluster, tally)
                kill_broker(bench, broker, tally)
            finally:
                bench.end_all()
    for line in tally.report[:40]:
        console.print(line, markup=False)
    print(f"{tally.line()}\ncluster: exact={str(tally.exact).lower()}")
    return 0 if tally.exact else 1


if __name__ == "__main__":
    sys.exit(main())
