"""`make cluster`: a stream on a Spark standalone cluster, whose parts are killed, compared with a recomputation.

    python -m tests.system.cluster.run [--seed N] [--records N] [--rounds N]

Broker, master, two workers and an instance; an executor, a worker, the instance and the broker are killed in turn, while input
arrives. Then an instance processes a backlog of the hot case (docs/benchmarks.md) on a cluster of two workers and with local[*]
in turn. Each output is compared with a count of the input. Last line, with the median rates:

    cluster: exact=true cluster_records_per_s=… local_records_per_s=…

Exit 1 when anything is lost, doubled or wrong.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

from bench.case import Case
from bench.cases import CASES
from bench.events import base_ms
from bench.measure import Progress, measure
from bench.sides import TidemarkSide
from rich.console import Console
from tests.support.log_ends import ends_of_logs
from tests.system.cluster.standalone import Standalone
from tests.system.crash.bench import Bench
from tests.system.crash.run import FAST_ABORT
from tests.system.crash.scenarios import Tally

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.processes import wait_until
from tidemark.settings import Settings

_EXECUTORS_S = 240


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
    # One executor alone may have done it all before the other one has started.
    both = wait_until(lambda: cluster.executors().keys() == {0, 1}, _EXECUTORS_S)
    tally.expect(both, f"executors run on workers {set(cluster.executors())}")
    before = cluster.executors()[0]
    bench.feeder.feed(bench.batch_records)
    before.kill()
    tally.kills += 1
    bench.wait_drained()
    tally.compare(bench, "an executor killed")
    again = wait_until(lambda: cluster.executors().get(0, before).pid != before.pid, _EXECUTORS_S)
    tally.expect(again, "the worker has not started another executor")
    bench.feeder.feed(bench.batch_records)
    cluster.kill_worker(1)
    tally.kills += 1
    bench.wait_drained()
    tally.compare(bench, "a worker killed")
    tally.expect(running.poll() is None, f"the instance ended with {running.poll()}")
    bench.feeder.feed(bench.batch_records)
    tally.killed(bench.kill(running), "the instance")
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

    tally.expect(wait_until(worked_off, 300, 0.5), "the stream did not go on behind the broker's return")
    tally.compare(bench, "the broker killed")


MEASURED_BATCH_RECORDS = 500_000
"""Half of the hot case's batches, so that a shorter backlog has enough commits for a rate."""


def measured(
    console: Console, folder: Path, case: Case, rounds: int, settings: Settings, tally: Tally
) -> dict[str, float]:
    """Return the records per second of each side, as medians of `rounds` runs in turn. Each run has its own broker."""
    found: dict[str, list[float]] = {"cluster": [], "local": []}
    with Standalone(folder / "spark", secret="loopback") as cluster:
        of_cluster = {"spark_master": cluster.url, "spark_authenticate_secret": "loopback"}
        sides = {
            "cluster": TidemarkSide(settings, heap="1g", overrides=of_cluster),
            "local": TidemarkSide(settings, heap="1g"),
        }
        for number in range(rounds):
            for name, side in sides.items():
                label = f"{name} {number + 1} of {rounds}"
                console.print(f"{label}: {case.events} records …")
                quiet = Progress(lambda _phase: None, lambda _committed: None)
                start_ms = base_ms(time.time_ns() // 1_000_000, case)
                result = measure(side, case, start_ms, number, folder / f"{name}-{number}", settings, quiet)
                tally.expect(result.verdict.right, f"{label}: {result.verdict}")
                rate = result.rates.steady or result.rates.from_first_commit or result.rates.with_warm_up
                found[name].append(rate)
                console.print(
                    f"{label}: {rate:.0f} records/s, {result.rates.first_commit_seconds:.1f} s to the first commit"
                )
    return {name: statistics.median(rates) for name, rates in found.items()}


def main() -> int:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--records", type=int, default=4_000_000, help="of the backlog whose rates are measured")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
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
        case = replace(CASES["hot"].sized(options.records), max_batch_records=MEASURED_BATCH_RECORDS)
        with ends_of_logs(console, folder / "measured", "*/*.log"):
            rates = measured(console, folder / "measured", case, options.rounds, settings, tally)
    measured_rates = " ".join(f"{name}_records_per_s={rate:.0f}" for name, rate in rates.items())
    for line in tally.report[:40]:
        console.print(line, markup=False)
    print(f"{tally.line()}\ncluster: exact={str(tally.exact).lower()} {measured_rates}")
    return 0 if tally.exact else 1


if __name__ == "__main__":
    sys.exit(main())
