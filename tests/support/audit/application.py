"""An application whose batches are made in plain Python: windows with finals, totals, late, filtered and bad records.

Everything behind the batch is the product's own: tasks, stores, transactions, commit records. `Bench` feeds and runs it.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from tests.support.counting import PARTITIONS, CountingApp, CountingSource
from tests.support.partials import PARTIAL_HEAD

from tidemark.clock import wall_clock_ms
from tidemark.instance.source import SourceBatch
from tidemark.names import TaskId
from tidemark.operations.savepoint import SavepointCommand
from tidemark.tasks.partials import PARTIAL_TYPES, Partial, Status
from tidemark.tasks.update import DeadLetter
from tidemark.topology.builder import Topology
from tidemark.topology.contracts import expect
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import tumbling

WINDOW_MS, GRACE_MS = 60_000, 10_000
LEAST, MOST = -50, 999
BROKEN = b"{broken"


def payments(
    name: str, guarantee: str = "exactly_once", *, windowed_key: bool = False, key_serde: str = "string"
) -> Topology:
    """Payments per key and minute, each update and one final, and totals since ever."""
    topology = Topology(name, guarantee=guarantee)
    source = topology.stream(
        f"{name}-in",
        schema="id STRING, at BIGINT, cents BIGINT",
        key="id",
        timestamp="at",
        expects=[expect("cents", not_null=True, between=(LEAST, MOST))],
    ).filter("cents >= 0")
    grouped = source.group_by_key()
    minutes = grouped.windowed_by(tumbling("1m").grace("10s")).aggregate(
        n="count(*)", cents="sum(cents)", store="minutes", retention="1h"
    )
    written = {"windowed_key": windowed_key, "key_serde": key_serde}
    minutes.to(f"{name}-minutes", **written)
    minutes.suppress(until_window_closes(), store="open").to(f"{name}-finals", **written)
    totals = grouped.aggregate(n="count(*)", top="max(cents)", mean="mean(cents)", store="totals")
    totals.to(f"{name}-totals", key_serde=key_serde, expects=[expect("top", between=(0, MOST))])
    return topology


def at_least_once(name: str) -> Topology:
    """The same, under the weaker guarantee."""
    return payments(name, "at_least_once")


class PaymentsSource(CountingSource):
    """Makes what Spark would hand over for `payments`."""

    def next(self, timeout_s: float) -> SourceBatch | None:
        self._letters: list[DeadLetter] = []
        batch = super().next(timeout_s)
        if batch is None:
            return None
        return SourceBatch(0, batch.starts, batch.ends, self._tables, tuple(self._letters))

    def counted(self, messages: Any) -> pa.Table:
        minutes: dict[tuple[int, str, int], list[tuple[int, int]]] = defaultdict(list)
        totals: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        other: dict[tuple[int, int], list[int | None]] = defaultdict(list)
        for message in messages:
            partition = message.partition()
            if message.value() == BROKEN:
                other[partition, Status.BAD].append(None)
                place = (message.topic(), partition, message.offset())
                self._letters.append(DeadLetter("unparsable", *place, message.key(), BROKEN, ()))
                continue
            record = json.loads(message.value())
            if record["cents"] is None or record["cents"] < 0:
                other[partition, Status.FILTERED].append(record["at"])
                continue
            pair = record["at"], record["cents"]
            minutes[partition, record["id"], record["at"] // WINDOW_MS * WINDOW_MS].append(pair)
            totals[partition, record["id"]].append(pair)
        rest = [
            (
                p,
                status,
                len(times),
                None if status == Status.BAD else max(at for at in times if at is not None),
                None,
                None,
            )
            for (p, status), times in sorted(other.items())
        ]
        windowed = [
            (p, Status.GOOD, len(rows), max(at for at, _ in rows), i, k, w, len(rows), sum(c for _, c in rows))
            for i, ((p, k, w), rows) in enumerate(sorted(minutes.items()))
        ]
        whole = [
            (p, Status.GOOD, len(rows), max(at for at, _ in rows), i, k, *_total([cents for _, cents in rows]))
            for i, ((p, k), rows) in enumerate(sorted(totals.items()))
        ]
        head = [(name, PARTIAL_TYPES[name]) for name in PARTIAL_HEAD]
        self._tables = [
            _table(
                [*windowed, *((*row, None, None, None) for row in rest)], [*head, *_longs(Partial.WINDOW, "n", "cents")]
            ),
            _table(
                [*whole, *((*row, None, None, None, None) for row in rest)],
                [*head, *_longs("n", "top"), ("mean.sum", pa.float64()), *_longs("mean.count")],
            ),
        ]
        return self._tables[0]


def _total(cents: list[int]) -> tuple[int, int, float, int]:
    """Count, maximum, and a mean's sum and count."""
    return len(cents), max(cents), float(sum(cents)), len(cents)


def _longs(*names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, pa.int64()) for name in names]


def _table(rows: list[tuple[Any, ...]], columns: list[tuple[str, pa.DataType]]) -> pa.Table:
    listed = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(values, kind) for values, (_, kind) in zip(listed, columns, strict=True)]
    return pa.table(arrays, names=[name for name, _ in columns])


class PaymentsApp(CountingApp):
    """Feeds records whose event time moves on, some of them late, filtered out or bad."""

    def __init__(
        self,
        settings: Any,
        admin: Any,
        name: str,
        topology: Callable[[str], Topology] = payments,
        key_of: Callable[[int], str] = "k{:03d}".format,
    ) -> None:
        """`key_of` gives the key of each number below that of the keys."""
        self.key_of = key_of
        self.chance = random.Random(name)
        self.now_ms = wall_clock_ms() - 3_600_000
        self.open_transactions: list[Producer] = []
        self.partitioner = "murmur2_random"
        super().__init__(settings, admin, name, topology=topology, source=_small_batches)

    def savepoint(self) -> None:
        """Of the stopped application's stores."""
        tasks = [TaskId(0, partition) for partition in range(PARTITIONS)]
        SavepointCommand(self.plan, self.settings, self.admin, tasks, lambda _copied: None, wall_clock_ms).take()

    def feed(self, records: int, keys: int = 20, step_ms: float = 400) -> None:
        """Produce, and wait for the acknowledgement of all. Event time moves on by `step_ms` a record."""
        start_ms = self.now_ms
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers, "partitioner": self.partitioner})
        for number in range(records):
            self.now_ms = start_ms + int((number + 1) * step_ms)
            key = self.key_of(self.chance.randrange(keys))
            late_ms = self.chance.randrange(180_000) if self.chance.random() < 0.05 else 0
            cents = self.chance.randint(LEAST, MOST)
            value = json.dumps({"id": key, "at": self.now_ms - late_ms, "cents": cents}).encode()
            sent = BROKEN if self.chance.random() < 0.01 else value
            while True:
                try:
                    producer.produce(f"{self.name}-in", sent, key.encode())
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0


def _small_batches(bootstrap: str, topic: str, stop: Any) -> PaymentsSource:
    return PaymentsSource(bootstrap, topic, stop, 150)
