"""A topology over Avro with a schema registry, on a real broker with Spark: its results, its dead letters and its audit."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from spark_jobs.audit.run import Audit
from spark_jobs.batch_source import SparkBatchSource
from tests.support.audit.matrix import STALLED_MS, Matrix, complaints_of
from tests.support.counting import NO_PROBE, PARTITIONS, in_thread
from tests.support.schema_registry import FakeRegistry, avro_value, read_avro, serving
from tests.support.truth.topics import Row, read_all

from tidemark.errors import InvalidSettings, PreflightFailed, TaskLocked
from tidemark.instance.assembly import make_instance
from tidemark.kafka.topics import ensure_user_topics
from tidemark.processes import wait_until
from tidemark.stores import directory
from tidemark.stores.directory import InstanceDirectory
from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

KEYS = [f"shop-{number}" for number in range(7)]
START_MS = 1_760_000_000_000
OLD = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "shop", "type": "string"},
        {"name": "cents", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "cents", "type": "long"},
        {"name": "shop", "type": "string"},
    ],
}
LATE = 999
"""The id of a schema that the registry has only after the stream has asked for it."""
BROKEN = [
    b"{}",
    b"\x00\x00\x00\x00\x01\xff",
    avro_value(LATE, OLD, {"shop": KEYS[0], "cents": 5, "at": START_MS}),
]


def orders(name: str) -> Topology:
    """Orders of shops, copied without those that cost nothing, and summed per minute."""
    topology = Topology(name)
    source = topology.stream(
        f"{name}-in",
        schema="shop STRING, cents BIGINT, note STRING, at BIGINT",
        key="shop",
        timestamp="at",
        value_serde="avro",
    )
    paid = source.filter("cents > 0")
    paid.select("shop", "cents", "note").to(f"{name}-copies", value_serde="avro")
    minutes = paid.group_by_key().windowed_by(tumbling("1m").grace("10m"))
    minutes.aggregate(n="count(*)", cents="sum(cents)", mean="mean(cents)", store="minutes", retention="1h").to(
        f"{name}-out", value_serde="avro"
    )
    return topology


class OrdersApp:
    """Runs `orders` with Spark, and feeds it."""

    def __init__(self, matrix: Matrix, registry: FakeRegistry, url: str) -> None:
        self.matrix = matrix
        self.registry = registry
        self.name = f"orders-{uuid.uuid4().hex[:8]}"
        self.settings = matrix.settings.model_copy(update={"num_partitions": PARTITIONS, "schema_registry_url": url})
        self.plan = orders(self.name).plan()
        ensure_user_topics(self.plan, self.settings, matrix.admin)

    def feed(self, schema: dict[str, object], rounds: int) -> None:
        """Write an order of each shop in each round, of which one in three costs nothing, and records that are none."""
        number = self.registry.add(f"{self.name}-in-value", schema)
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers, "partitioner": "murmur2_random"})
        for turn in range(rounds):
            for key in KEYS:
                order = {"shop": key, "cents": turn % 3, "at": START_MS + turn * 10_000}
                order |= {"note": f"n{turn}"} if schema is NEW else {}
                producer.produce(f"{self.name}-in", avro_value(number, schema, order), key)
        for value in BROKEN:
            producer.produce(f"{self.name}-in", value, KEYS[0])
        producer.produce(f"{self.name}-in", None, KEYS[1])
        assert producer.flush(60) == 0

    def rows(self, topic: str) -> list[Row]:
        found = read_all(self.settings.bootstrap_servers, [f"{self.name}-{topic}"])
        return [row for rows in found.values() for row in rows]

    def records(self, topic: str) -> list[dict[str, object]]:
        """The records of a sink, each read with the schema that the registry has under its id."""
        found = []
        for row in self.rows(topic):
            schema = self.registry.schemas[int.from_bytes(row.value[1:5], "big") - 1]["schema"]
            _, record = read_avro(row.value, schema)
            assert row.key is not None
            found.append({"key": row.key.decode(), **record})
        return found


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
def app(matrix: Matrix, registry: FakeRegistry) -> Iterator[OrdersApp]:
    with serving(registry) as url:
        yield OrdersApp(matrix, registry, url)


def test_should_read_and_write_avro_while_the_schema_of_its_source_changes(app: OrdersApp) -> None:
    app.feed(OLD, 9)
    instance = make_instance(app.plan, app.settings, 0, "orders", NO_PROBE)
    source = SparkBatchSource(app.matrix.spark, instance.plan, app.settings, 0)

    def copies(schema: dict[str, object], rounds: int) -> Counter[tuple[object, ...]]:
        notes = {turn: f"n{turn}" if schema is NEW else None for turn in range(rounds)}
        return Counter((key, key, turn % 3, notes[turn]) for key in KEYS for turn in range(rounds) if turn % 3)

    def copied() -> Counter[tuple[object, ...]]:
        return Counter((row["key"], row["shop"], row["cents"], row["note"]) for row in app.records("copies"))

    with in_thread(instance, source) as ended:
        assert wait_until(lambda: bool(ended) or copied() == copies(OLD, 9), 240, every_s=1)
        # Another version, while it runs: records of a schema that nobody has seen.
        app.feed(NEW, 12)
        expected = copies(OLD, 9) + copies(NEW, 12)
        assert wait_until(lambda: bool(ended) or copied() == expected, 240, every_s=1)
    assert ended == []
    assert copied() == expected
    last = {(row["key"], row["window_start"]): (row["n"], row["cents"], row["mean"]) for row in app.records("out")}
    wanted: Counter[int] = Counter()
    cents: Counter[int] = Counter()
    for rounds in (9, 12):
        for turn in range(rounds):
            at = START_MS + turn * 10_000
            if turn % 3:
                wanted[at // 60_000 * 60_000] += 1
                cents[at // 60_000 * 60_000] += turn % 3
    for key in KEYS:
        of_key = {start: found for (other, start), found in last.items() if other == key}
        assert {start: found[0] for start, found in of_key.items()} == wanted
        assert {start: found[1] for start, found in of_key.items()} == cents
        assert all(mean == pytest.approx(total / n) for n, total, mean in of_key.values())
    letters = Counter((dict(row.headers)["tidemark.reason"], row.value) for row in app.rows("dlq"))
    assert letters == Counter({(b"unparsable", value): 2 for value in BROKEN})
    # What the stream could not read, the audit could: it believes the dead letters.
    app.registry.others[LATE] = {"schema": json.dumps(OLD)}
    audit = Audit(app.matrix.spark, app.settings, app.matrix.facts, 1000)
    report = audit.run(app.plan, stalled_ms=STALLED_MS)
    assert complaints_of(report) == []
    assert {"outputs_are_not_lost", "dead_letters_are_not_lost"} <= {finding.subject for finding in report.findings}
    # The schemas of the sinks are the newest ones of their topics' subjects.
    schema = json.loads(app.registry.schemas[app.registry.subjects[f"{app.name}-copies-value"][-1] - 1]["schema"])
    assert [field["name"] for field in schema["fields"]] == ["shop", "cents", "note"]


def test_should_refuse_to_start_if_the_registry_refuses_the_schema_of_a_sink(app: OrdersApp) -> None:
    app.registry.refused.add(f"{app.name}-out-value")
    with pytest.raises(PreflightFailed, match=f"subject {app.name}-out-value refuses the schema .*incompatible"):
        make_instance(app.plan, app.settings, 0, "orders", NO_PROBE)
    # It has released the folder.
    InstanceDirectory(app.settings.state_dir, app.name, 0).close()


def test_should_register_no_schema_in_a_launch_that_is_refused(app: OrdersApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_LOCK_WAIT_S", 0.0)
    running = InstanceDirectory(app.settings.state_dir, app.name, 0)
    with pytest.raises(TaskLocked):
        make_instance(app.plan, app.settings, 0, "orders", NO_PROBE)
    assert app.registry.subjects == {}
    running.close()


def test_should_refuse_to_start_without_the_address_of_a_registry(app: OrdersApp) -> None:
    with pytest.raises(InvalidSettings, match="TIDEMARK_SCHEMA_REGISTRY_URL"):
        make_instance(app.plan, app.settings.model_copy(update={"schema_registry_url": ""}), 0, "orders", NO_PROBE)
