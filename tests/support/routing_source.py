"""Partial results of a count by key whose source goes through a repartition topic, computed in plain Python."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.support.counting import AT_MS, TELLS_ENDS, consumed
from tests.support.partials import PARTIAL_HEAD
from tests.support.truth.topics import end_offsets

from tidemark.instance.source import SourceBatch
from tidemark.names import TopicPartition as Place
from tidemark.tasks.partials import Partial, Status
from tidemark.topology.plan import TopologyPlan


class RoutingSource:
    """A `BatchSource` of the plan's sub-topologies: those with a store count, the others send on.

    Sets `stop` once every partition of the plan is read to its end. `partitions` are those of all of them.
    """

    def __init__(self, bootstrap: str, plan: TopologyPlan, partitions: int, stop: threading.Event) -> None:
        self._bootstrap, self._plan, self._partitions, self._stop = bootstrap, plan, partitions, stop
        self._consumer: Consumer | None = None
        self._next: dict[Place, int] = {}
        self._read: dict[Place, int] = {}
        self._batches: list[SourceBatch] = []

    def start(self, next_offsets, max_batch_records):
        self.stop()
        self._next, self._read, self._batches = dict(next_offsets), {}, []
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "routing",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **TELLS_ENDS,
            }
        )
        self._consumer.assign([TopicPartition(p.topic, p.partition, at) for p, at in self._next.items()])

    def next(self, timeout_s):
        if self._consumer is None:
            return None
        if not self._batches:
            self._batches = self._made(consumed(self._consumer, 500, timeout_s))
        if self._batches:
            return self._batches.pop()
        if len(self._next) == self._partitions:
            ends = end_offsets(self._bootstrap, [(p.topic, p.partition) for p in self._next], "read_uncommitted")
            if all(self._read.get(place) == ends[place.topic, place.partition] for place in self._next):
                self._stop.set()
        return None

    def stop(self):
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _made(self, messages) -> list[SourceBatch]:
        records: dict[str, list] = {}
        for message in messages:
            if message.error() is None:
                records.setdefault(message.topic(), []).append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                self._read[Place(message.topic(), message.partition())] = message.offset()
        made = []
        for subtopology in self._plan.subtopologies:
            (topic,) = subtopology.source_topics
            found = records.get(topic)
            if not found:
                continue
            starts = {p: at for p, at in self._next.items() if p.topic == topic}
            ends = starts | {Place(topic, m.partition()): m.offset() + 1 for m in found}
            self._next |= ends
            table = counted(found) if subtopology.stores else sent_on(found)
            made.append(SourceBatch(subtopology.index, starts, ends, [table], ()))
        return made


def counted(messages) -> pa.Table:
    """The partial results of one batch."""
    found = Counter((message.partition(), message.key().decode()) for message in messages)
    return _table(
        (*PARTIAL_HEAD, "n"),
        [(p, Status.GOOD, n, AT_MS, i, key, n) for i, ((p, key), n) in enumerate(sorted(found.items()))],
    )


def sent_on(messages) -> pa.Table:
    """The records of one batch, as a router's."""
    value = json.dumps({"id": None, "v": None})
    return _table(
        (
            Partial.PARTITION,
            Partial.STATUS,
            Partial.ROWS,
            Partial.MAX_TS,
            Partial.KEY,
            Partial.RECORD_OFFSET,
            Partial.VALUE,
            Partial.HEADERS,
        ),
        [(m.partition(), Status.GOOD, 1, AT_MS, m.key().decode(), m.offset(), value, None) for m in messages],
    )


def _table(names, rows) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
