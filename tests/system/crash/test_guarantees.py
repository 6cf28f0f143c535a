"""The results of a crash under each guarantee: the same kill, and topologies that differ only in the guarantee."""

from __future__ import annotations

import json
import signal
from collections import Counter

import pytest
from confluent_kafka import Producer
from tests.support.brokers import brief
from tests.support.truth.topics import read_all
from tests.system.crash.bench import CHEAP, Bench
from tests.system.crash.nodes import FOLDER
from tests.system.crash.run import FAST_ABORT

from tidemark.devstack.broker import EmbeddedBroker

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

RECORDS = 2_000


class CopiesFeeder:
    """Numbered records: each should be copied."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
        self._topic = topic
        self.sent = 0

    def feed(self, records: int) -> None:
        """Produce and wait for the acknowledgement of all."""
        for n in range(self.sent, self.sent + records):
            key = f"k{n % 50}"
            self._producer.produce(self._topic, json.dumps({"id": key, "n": n}).encode(), key.encode())
        self.sent += records
        assert self._producer.flush(120) == 0


class CopiesBench(Bench):
    """One of the two topologies."""

    topology_path = FOLDER

    def __init__(self, bootstrap, folder, topology) -> None:
        self.topology = topology
        super().__init__(bootstrap, folder, seed=1, settings=CHEAP)

    def make_feeder(self, seed: int) -> CopiesFeeder:  # type: ignore[override]
        return CopiesFeeder(self.bootstrap, f"{self.topology}-in")

    def copies(self) -> Counter[int]:
        """How often each record's number was written."""
        rows = read_all(self.bootstrap, [f"{self.topology}-out"])
        return Counter(json.loads(row.value)["n"] for found in rows.values() for row in found)


@pytest.fixture(scope="module")
def broker(mark, kafka_jars, spark_jars, tmp_path_factory):
    with brief(EmbeddedBroker(tmp_path_factory.mktemp("broker"), kafka_jars, overrides=FAST_ABORT)) as made:
        yield made


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_should_duplicate_only_under_at_least_once_when_killed_between_output_and_offsets(broker, tmp_path, guarantee):
    bench = CopiesBench(broker.bootstrap, tmp_path, f"crash_copies_{guarantee}")
    try:
        running = bench.launch()
        bench.wait_state(running, "RUNNING")
        # Two portions, so that a batch comes behind others. The first may be read in several batches.
        bench.feeder.feed(RECORDS // 2)
        bench.wait_drained()
        bench.arm("4-commit-records")
        bench.feeder.feed(RECORDS // 2)
        assert bench.wait_ended(running) == -signal.SIGKILL
        running = bench.launch()
        bench.wait_state(running, "RUNNING")
        bench.wait_drained()
        copies = bench.copies()
        assert set(copies) == set(range(RECORDS)), "something was lost"
        doubled = sum(1 for times in copies.values() if times > 1)
        if guarantee == "exactly_once":
            assert doubled == 0
        else:
            assert doubled > 0, "the kill came where nothing is doubled, so the test shows nothing"
        assert bench.stop(running) == 0
    finally:
        bench.close()
