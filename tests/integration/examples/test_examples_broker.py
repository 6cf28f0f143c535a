"""The three examples on a real broker and on the test driver: the same records, the same results."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from tests.support.brokers import brief
from tests.support.truth.topics import read_all
from tests.system.crash.bench import Bench

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.topology_loader import load

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

MINUTE, DAY = 60_000, 86_400_000
PARTITIONS = 2


class Piped(NamedTuple):
    """One record of a source topic."""

    topic: str
    key: str
    value: dict[str, Any] | None
    timestamp_ms: int


class ExampleBench(Bench):
    """One example; its input is given, not fed."""

    def __init__(self, bootstrap: str, folder, topology: str) -> None:
        self.topology = topology
        super().__init__(bootstrap, folder, seed=0, partitions=PARTITIONS)

    def produce(self, records: list[Piped]) -> None:
        """Write the records as a user's client would."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})
        for record in records:
            value = None if record.value is None else json.dumps(record.value).encode()
            producer.produce(record.topic, value, record.key.encode(), timestamp=record.timestamp_ms)
        assert producer.flush(60) == 0


def stages_of(name: str, now_ms: int) -> list[list[Piped]]:
    """The input in stages: each is committed before the next one comes."""
    chance = random.Random(11)
    start_ms = (now_ms - 3 * DAY) // DAY * DAY

    def at(step: int) -> int:
        return start_ms + step * 20_000

    if name == "shopping":
        ids = [f"c{n}" for n in range(9)]
        bought = [(chance.choice(ids), chance.randrange(500), at(step)) for step in range(600)]
        rows = [
            ("purchases", c, {"customer_id": c, "item": "tea", "cents": n, "bought_ms": t}, now_ms)
            for c, n, t in bought
        ]
        return [[Piped(*row) for row in rows[i : i + 200]] for i in (0, 200, 400)]
    if name == "clicks":
        # A stage lasts less than the grace, so that however an instance cuts it into batches, none of it is late. Between
        # the first two a user's session goes on, behind them it has ended.
        return [
            [
                Piped("clicks", u, {"user_id": u, "page": f"page-{chance.randrange(4)}", "clicked_ms": t}, now_ms)
                for u, t in ((f"u{chance.randrange(7)}", begins_ms + step * 290) for step in range(100))
            ]
            for begins_ms in (start_ms, start_ms + 20 * MINUTE, start_ms + 65 * MINUTE)
        ]
    patients = [f"p{n}" for n in range(6)]
    check_in = [Piped("patients", p, {"patient_id": p, "ward": f"ward {p}"}, start_ms - MINUTE) for p in patients[:5]]
    check_out = [Piped("patients", "p0", None, start_ms - 1)]
    measured = [
        Piped("temperature-events", p, {"patient_id": p, "measured_ms": start_ms + 30_000, "celsius": 39.5}, now_ms)
        for p in patients
    ]
    beats = [
        Piped(
            "pulse-events", p, {"patient_id": p, "beat_ms": start_ms + i * 450, "ibi_ms": 450, "recording": "r"}, now_ms
        )
        for i in range(130)
        for p in patients
    ]
    later = [
        Piped(
            "pulse-events",
            p,
            {"patient_id": p, "beat_ms": start_ms + 10 * MINUTE, "ibi_ms": 450, "recording": "r"},
            now_ms,
        )
        for p in patients
    ]
    return [check_in, check_out, measured, beats, later]


def last_values(records: Iterator[tuple[bytes | None, Any]]) -> dict[tuple[Any, ...], Any]:
    """The last value per key, and per window where it has one."""
    found: dict[tuple[Any, ...], Any] = {}
    for key, value in records:
        if value is not None:
            found[(key, value.get("window_start"), value.get("window_end"))] = value
    return found


@pytest.fixture(scope="module")
def own_broker(mark, kafka_jars, spark_jars, tmp_path_factory):
    with brief(EmbeddedBroker(tmp_path_factory.mktemp("broker"), kafka_jars)) as made:
        yield made


@pytest.mark.parametrize("name", ["patient_monitoring", "shopping", "clicks"])
def test_should_give_the_same_in_a_real_instance_as_in_the_test_driver(own_broker, tmp_path, topology_driver, name):
    bench = ExampleBench(own_broker.bootstrap, tmp_path, name)
    stages = stages_of(name, bench.feeder.now_ms)
    driver = topology_driver(load(name), partitions=PARTITIONS, start_ms=bench.feeder.now_ms)
    try:
        running = bench.launch()
        bench.wait_state(running, "RUNNING")
        for stage in stages:
            bench.produce(stage)
            bench.wait_drained()
            for record in stage:
                driver.pipe(record.topic, record.value, key=record.key, timestamp_ms=record.timestamp_ms)
            driver.commit()
        assert bench.stop(running) == 0
        for topic in sorted({topic for s in bench.plan.subtopologies for topic in s.sink_topics}):
            if topic in bench.plan.repartition_topics:
                continue
            rows = [row for found in read_all(bench.bootstrap, [topic]).values() for row in found]
            real = [(row.key.decode(), None if row.value is None else json.loads(row.value)) for row in rows]
            driven = [(record.key, record.value) for record in driver.read(topic)]
            assert driven, f"nothing on {topic}, so nothing is compared"
            if topic in ("alerts", "pulse-finals"):
                assert Counter(map(json.dumps, real)) == Counter(map(json.dumps, driven)), topic
            elif topic == "user-sessions":
                # Deletions carry no window, so what a later commit merged stays in sight of both or of one.
                assert last_values(iter(driven)).items() <= last_values(iter(real)).items(), topic
            else:
                assert last_values(iter(real)) == last_values(iter(driven)), topic
    finally:
        bench.close()
