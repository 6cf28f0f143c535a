"""A topology over keys that are numbers, on a real broker with Spark: its results, their bytes and places, and its audit."""

from __future__ import annotations

import json
import struct
import uuid
from collections import Counter
from functools import partial

import pytest
from confluent_kafka import Producer
from spark_jobs.batch_source import SparkBatchSource
from tests.support.audit.application import PaymentsApp, payments
from tests.support.audit.matrix import STALLED_MS, Matrix, complaints_of
from tests.support.audit.tampering import tampering
from tests.support.counting import NO_PROBE, PARTITIONS, in_thread
from tests.support.group_requests import remove_from_group
from tests.support.truth.topics import Row, read_all

from tidemark.clock import wall_clock_ms
from tidemark.instance.assembly import make_instance
from tidemark.kafka.partitioner import partition_of
from tidemark.kafka.topics import ensure_user_topics
from tidemark.names import dlq_topic, group_instance_id
from tidemark.operations.change.rescale import Rescale
from tidemark.processes import wait_until
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

KEYS = [0, 7, -1, -3, 127, 128, 255, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63)]
OF_FOUR_BYTES = [key for key in KEYS if -(1 << 31) <= key < 1 << 31]
OTHER_LENGTHS = [b"7", bytes(7), b"\xff" * 9]
ROUNDS = 5


def numbered(name: str) -> Topology:
    """Orders counted by a key of eight bytes, and copied under a key of four."""
    topology = Topology(name)
    orders = topology.stream(f"{name}-in", schema="cents BIGINT", key_serde="long")
    orders.filter("cents >= 0").to(f"{name}-copies", key_serde="integer")
    counted = orders.select("cents").repartition(name="by-key").group_by_key().count(name="n", store="n")
    counted.to(f"{name}-out", key_serde="long")
    return topology


def rows_of(matrix: Matrix, topic: str) -> list[Row]:
    return [row for rows in read_all(matrix.settings.bootstrap_servers, [topic]).values() for row in rows]


class NumberedApp:
    """Runs `numbered` with Spark, and feeds it."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.name = f"numbered-{uuid.uuid4().hex[:8]}"
        self.settings = matrix.settings.model_copy(update={"num_partitions": PARTITIONS})
        self.plan = numbered(self.name).plan()
        ensure_user_topics(self.plan, self.settings, matrix.admin)

    def feed(self) -> None:
        """Write each key in each round, keys of other lengths, and a record without a key."""
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers, "partitioner": "murmur2_random"})
        for number in range(ROUNDS):
            for key in KEYS:
                # Every other record is not in the form that the fast statement reads.
                value = json.dumps({"cents": number}, separators=(",", ":") if number % 2 else None)
                producer.produce(f"{self.name}-in", value, struct.pack(">q", key))
        for other in OTHER_LENGTHS:
            producer.produce(f"{self.name}-in", b'{"cents":1}', other)
        producer.produce(f"{self.name}-in", b'{"cents":1}')
        assert producer.flush(60) == 0

    def counts(self) -> dict[int, int]:
        """The last count of each key."""
        rows = self.rows("out")
        return {struct.unpack(">q", row.key or b"")[0]: json.loads(row.value or b"")["n"] for row in rows}

    def rows(self, topic: str) -> list[Row]:
        return rows_of(self.matrix, f"{self.name}-{topic}")

    def run(self, rounds: int) -> None:
        """Run an instance until it has counted so many records of each key, and let it leave the group."""
        wanted = dict.fromkeys(KEYS, rounds)
        instance = make_instance(self.plan, self.settings, 0, "numbered", NO_PROBE)
        source = SparkBatchSource(self.matrix.spark, instance.plan, self.settings, 0)
        with in_thread(instance, source) as ended:
            assert wait_until(lambda: bool(ended) or self.counts() == wanted, 240, every_s=1)
        assert ended == []
        assert self.counts() == wanted
        remove_from_group(self.settings.bootstrap_servers, self.name, group_instance_id(self.name, 0))

    def complaints(self) -> list[str]:
        """Run an audit that compares the records' partitions, the outputs and the dead letters. Return its complaints."""
        report = self.matrix.audit.run(self.plan, stalled_ms=STALLED_MS)
        compared = {"records_are_in_the_partition_of_their_key", "outputs_are_not_lost", "dead_letters_are_not_lost"}
        assert compared <= {finding.subject for finding in report.findings}
        return complaints_of(report)


def test_should_keep_the_bytes_of_numbers_and_the_partitions_that_java_chooses(matrix: Matrix) -> None:
    app = NumberedApp(matrix)
    app.feed()
    app.run(ROUNDS)
    for row in app.rows("out"):
        # What the record says of its key is text, as everywhere.
        assert json.loads(row.value)["key"] == str(struct.unpack(">q", row.key)[0])
        assert row.partition == partition_of(row.key, PARTITIONS)
    copies = app.rows("copies")
    assert Counter(row.key and struct.unpack(">i", row.key)[0] for row in copies) == Counter(
        dict.fromkeys(OF_FOUR_BYTES, ROUNDS)
    ) + Counter({None: 1})
    assert all(row.partition == partition_of(row.key, PARTITIONS) for row in copies if row.key)
    letters = Counter((dict(row.headers)["tidemark.reason"], row.key) for row in app.rows("dlq"))
    # A record that could not be read keeps its bytes; an output has the text that could not be written.
    assert letters == Counter({(b"wrong key length", key): 1 for key in OTHER_LENGTHS}) + Counter(
        {(b"key cannot be written", str(key).encode()): ROUNDS for key in set(KEYS) - set(OF_FOUR_BYTES)}
    )
    assert app.complaints() == []


def test_should_count_on_when_the_number_of_tasks_has_changed(matrix: Matrix) -> None:
    """A rescale sends the records of the source through a topic of its own, under the text of their keys."""
    app = NumberedApp(matrix)
    app.feed()
    app.run(ROUNDS)
    rescale = Rescale(app.plan, app.settings, wall_clock_ms, 3, LoggingRestoreListener(), NO_PROBE, lambda _line: None)
    assert rescale.run(lambda _plan: True)
    app.feed()
    app.run(2 * ROUNDS)
    assert all(row.partition == partition_of(row.key, PARTITIONS) for row in app.rows("out"))
    letters = Counter(dict(row.headers)["tidemark.reason"] for row in app.rows("dlq"))
    assert letters[b"wrong key length"] == 2 * len(OTHER_LENGTHS)
    assert letters[b"key cannot be written"] == 2 * ROUNDS * (len(KEYS) - len(OF_FOUR_BYTES))
    assert complaints_of(matrix.audit.run(app.plan, stalled_ms=STALLED_MS)) == []


def test_should_compare_results_under_keys_that_are_numbers(matrix: Matrix) -> None:
    """Every fifth key is none, so that its results are dead letters."""
    name = f"numbers-{uuid.uuid4().hex[:8]}"
    topology = partial(payments, key_serde="long")
    app = PaymentsApp(
        matrix.settings, matrix.admin, name, topology, lambda number: f"k{number}" if number % 5 == 0 else str(-number)
    )
    app.feed(300)
    app.run()
    assert complaints_of(matrix.audit.run(app.plan, stalled_ms=STALLED_MS)) == []
    written = {row.key for row in rows_of(matrix, f"{name}-minutes")}
    assert written == {struct.pack(">q", -number) for number in range(20) if number % 5}
    assert any(row.key == b"k5" for row in rows_of(matrix, dlq_topic(name)))

    def under_another_key(messages):
        return [messages[0] | {"key": struct.pack(">q", 1000)}, *messages[1:]]

    app.feed(300)
    with tampering(f"{name}-minutes", under_another_key):
        app.run()
    assert "every_update_is_there" in complaints_of(matrix.audit.run(app.plan, stalled_ms=STALLED_MS))
