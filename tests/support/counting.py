"""An application that counts records per key, its batches made in plain Python instead of by Spark: state for restores."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from tests.support.group_requests import remove_from_group
from tests.support.partials import PARTIAL_HEAD
from tests.support.truth.topics import end_offsets, read_all

import topologies
from tidemark.clock import wall_clock_ms
from tidemark.instance.assembly import make_instance
from tidemark.instance.instance import Instance
from tidemark.instance.source import BatchSource, SourceBatch
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import committed_offsets
from tidemark.kafka.topics import ensure_user_topics
from tidemark.names import TopicPartition, group_instance_id
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.tasks.partials import Status
from tidemark.topology.builder import Topology
from tidemark.topology.plan import TopologyPlan

PARTITIONS = 2
AT_MS = wall_clock_ms()
"""An event time for records without one. Sinks carry it as the record's timestamp, and brokers delete what is old by that."""
NO_PROBE = lambda _point: None  # noqa: E731
TELLS_ENDS = {"enable.partition.eof": True, "fetch.wait.max.ms": 50}
"""Options of a consumer that reports the end of a partition soon: by default brokers wait half a second for more records."""
_MORE_S = 0.05


def consumed(consumer: Consumer, most: int, timeout_s: float) -> list[Message]:
    """Messages, and reports of a partition's end, as soon as there are some: so many at most.

    The client itself waits for the whole time-out unless it gets as many as it is asked for.
    """
    first = consumer.consume(1, timeout_s)
    return first + consumer.consume(most - len(first), _MORE_S) if first else []


class CountingSource:
    """A `BatchSource`: what Spark would hand over for a count by key. Sets `stop` once everything was handed over."""

    partitions = PARTITIONS

    def __init__(self, bootstrap: str, topic: str, stop: threading.Event, batch_records: int = 500) -> None:
        self._bootstrap, self._topic, self._stop, self._most = bootstrap, topic, stop, batch_records
        self._next: dict[TopicPartition, int] = {}
        self._consumer: Consumer | None = None

    def start(self, next_offsets, max_batch_records):
        self.stop()
        self._next = dict(next_offsets)
        self._consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "counting", "enable.auto.commit": False, **TELLS_ENDS}
        )
        self._consumer.assign([ClientPartition(p.topic, p.partition, at) for p, at in self._next.items()])

    def next(self, timeout_s):
        if self._consumer is None:
            return None
        messages = [m for m in consumed(self._consumer, self._most, timeout_s) if m.error() is None]
        if not messages:
            ends = end_offsets(self._bootstrap, [(p.topic, p.partition) for p in self._next], "read_committed")
            if len(self._next) == self.partitions and all(
                ends[(p.topic, p.partition)] == at for p, at in self._next.items()
            ):
                self._stop.set()
            return None
        starts, ends = dict(self._next), dict(self._next)
        for message in messages:
            ends[TopicPartition(self._topic, message.partition())] = message.offset() + 1
        self._next = ends
        return SourceBatch(0, starts, ends, [self.counted(messages)], ())

    def counted(self, messages) -> pa.Table:
        """The partial results of one batch."""
        counted: dict[tuple[int, str], list[int]] = {}
        for message in messages:
            counted.setdefault((message.partition(), message.key().decode()), []).append(message.timestamp()[1])
        rows = [
            (p, Status.GOOD, len(times), max(times), i, key, len(times))
            for i, ((p, key), times) in enumerate(sorted(counted.items()))
        ]
        names = (*PARTIAL_HEAD, "n")
        return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))

    def stop(self):
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


class StreamingSource(CountingSource):
    """Goes on for ever, whatever brokers come and go: that is Spark's to do, and not what is tested here.

    A batch has at least `least` records.
    """

    least = 1

    def start(self, next_offsets, max_batch_records):
        self._gathered = []
        super().start(next_offsets, max_batch_records)

    def next(self, timeout_s: float) -> SourceBatch | None:
        """The next batch, None while there is none."""
        if self._consumer is None:
            return None
        self._gathered += [m for m in self._consumer.consume(self._most, timeout_s) if m.error() is None]
        if len(self._gathered) < self.least:
            return None
        messages, self._gathered = self._gathered, []
        starts, ends = dict(self._next), dict(self._next)
        for message in messages:
            ends[TopicPartition(message.topic(), message.partition())] = message.offset() + 1
        self._next = ends
        return SourceBatch(0, starts, ends, [self.counted(messages)], ())


def counting(name: str) -> Topology:
    """Records of `<name>-in` counted by key in the store `n`, sent to `<name>-out`."""
    topology = Topology(name)
    source = topology.stream(f"{name}-in", schema="id STRING")
    source.group_by_key().count(name="n", store="n").to(f"{name}-out")
    return topology


def counted_plan(settings: Settings, admin: AdminClient, name: str, records: int) -> TopologyPlan:
    """The plan of `counting(name)`, its topics made, with so many records in each partition."""
    plan = counting(name).plan()
    ensure_user_topics(plan, settings.model_copy(update={"num_partitions": PARTITIONS}), admin)
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for partition in range(PARTITIONS):
        for _ in range(records):
            producer.produce(f"{name}-in", b"{}", b"k", partition=partition)
    assert producer.flush(60) == 0
    return plan


@dataclass
class CountingApp:
    """Feed, run until drained, look. `expected` is what each key's count must be.

    `topology` and `source` may be others than those that count by key.
    """

    settings: Settings
    admin: AdminClient
    name: str
    expected: Counter[str] = field(default_factory=Counter)
    topology: Callable[[str], Topology] = counting
    source: type[CountingSource] = CountingSource
    _stopped: set[int] = field(init=False, default_factory=set)
    _coordinator: str = field(init=False)

    def __post_init__(self) -> None:
        self.settings = self.settings.model_copy(
            # Long enough for a broker or a client that stands still for seconds on a busy machine.
            update={"num_partitions": PARTITIONS, "session_timeout_ms": 6_000, "transaction_timeout_ms": 15_000}
        )
        self._coordinator = self.settings.bootstrap_servers
        self.plan: TopologyPlan = self.topology(self.name).plan()
        ensure_user_topics(self.plan, self.settings, self.admin)

    @property
    def state(self) -> Path:
        """Instance 0's folder."""
        return self.settings.state_dir / "0" / self.name

    def store_folder(self, partition: int) -> Path:
        return self.state / f"0_{partition}" / "rocksdb" / "n"

    def write_module(self, folder: Path) -> str:
        """Make the topology one that commands can load from `folder`, which need not wait for the group; its name."""
        self.leave_group()
        (folder / "made_counting.py").write_text(
            f"from tests.support.counting import counting\ndef topology():\n    return counting({self.name!r})\n"
        )
        return "made_counting"

    def for_commands(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """The same, found by commands that run in this process, with this application's settings; its name."""
        monkeypatch.setattr(topologies, "__path__", [*topologies.__path__, str(folder)])
        # That of an earlier test, with another application's name.
        monkeypatch.delitem(sys.modules, "topologies.made_counting", raising=False)
        # Python takes a module that is written again within a second, with as many bytes, for the one that it has compiled.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        for name, value in self.settings.as_environment().items():
            monkeypatch.setenv(name, value)
        return self.write_module(folder)

    def feed(self, records: int, keys: int = 200) -> None:
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers, "partitioner": "murmur2_random"})
        for number in range(records):
            key = f"k{(number * 7919) % keys:05d}"
            self.expected[key] += 1
            producer.produce(f"{self.name}-in", b"{}", key.encode())
        assert producer.flush(60) == 0

    def run(self, probe=NO_PROBE, settings: Settings | None = None, number: int = 0) -> None:
        """One instance until all input is committed, and its offsets can be seen.

        Others that have stopped leave the group first, so that the tasks move without the wait for the end of their sessions.
        """
        self.leave_group(but=number)
        stop, is_late = threading.Event(), threading.Event()
        instance = make_instance(self.plan, settings or self.settings, number, "counting", probe)

        def give_up() -> None:
            is_late.set()
            stop.set()

        too_long = threading.Timer(180, give_up)
        too_long.start()
        failure: BaseException | None = None
        try:
            instance.run(self.make_source(instance, stop), stop)
        except BaseException as error:
            failure = error
            raise
        finally:
            too_long.cancel()
            instance.close(failure)
            self._stopped.add(number)
        assert not is_late.is_set(), "not all input was committed within 180 s"
        # A commit returns before its offsets can be seen. Who asks for stable ones waits for that.
        sources = [TopicPartition(f"{self.name}-in", number) for number in range(PARTITIONS)]
        committed_offsets(librdkafka_config(settings or self.settings), self.name, sources, 60)

    def make_source(self, instance: Instance, stop: threading.Event) -> BatchSource:
        """Return what makes the instance's batches, and sets `stop` at the end of the input."""
        return self.source(instance.settings.bootstrap_servers, f"{self.name}-in", stop)

    def leave_group(self, but: int | None = None) -> None:
        """Remove the instances that have stopped from the group, so that no command waits until their sessions end."""
        for number in self._stopped - {but}:
            remove_from_group(self._coordinator, self.name, group_instance_id(self.name, number))
        self._stopped &= {but}


@contextmanager
def in_thread(instance: Instance, source: BatchSource) -> Iterator[list[BaseException]]:
    """Run an instance in a thread until the block ends. If an error ended it, the error is in the list."""

    def run(stop: threading.Event) -> None:
        failure: BaseException | None = None
        try:
            instance.run(source, stop)
        except BaseException as error:
            failure = error
            raise
        finally:
            instance.close(failure)

    with until_block_ends(run) as ended:
        yield ended


@contextmanager
def until_block_ends(work: Callable[[threading.Event], object]) -> Iterator[list[BaseException]]:
    """Call `work` in a thread with an event that is set when the block ends. An error of `work` is in the list."""
    stop, ended = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ended
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


class Elsewhere:
    """An instance of the application on another machine, in its group: its folder's lock is not seen here."""

    def __init__(self, app: CountingApp) -> None:
        settings = app.settings.model_copy(update={"state_dir": app.settings.state_dir.with_name("elsewhere")})
        self.running, self._stop = threading.Event(), threading.Event()
        self._instance = make_instance(app.plan, settings, 3, "counting", NO_PROBE)
        self._thread = threading.Thread(target=self._instance.run, args=(self, self._stop))

    def join_group(self) -> None:
        """Once; blocks until it has its tasks."""
        if not self.running.is_set():
            self._thread.start()
            assert self.running.wait(60)

    def leave(self) -> None:
        """Blocks until it has."""
        self._stop.set()
        if self.running.is_set():
            self._thread.join(60)
        self._instance.close(None)

    def start(self, next_offsets: object, max_batch_records: int) -> None:
        """As a `BatchSource` that gives nothing."""
        self.running.set()

    def next(self, timeout_s: float) -> None:
        self._stop.wait(timeout_s)

    def stop(self) -> None:
        return


def outputs(app: CountingApp) -> Counter[tuple[str, int]]:
    """What the sink holds, as (key, count) and how often."""
    rows = read_all(app.settings.bootstrap_servers, [f"{app.name}-out"])
    return Counter((row.key.decode(), json.loads(row.value)["n"]) for found in rows.values() for row in found)


def committed(app: CountingApp) -> list[int]:
    """As they are, whatever an open transaction may still make of them."""
    settings = {"bootstrap.servers": app.settings.bootstrap_servers, "group.id": app.name}
    consumer = Consumer({**settings, "isolation.level": "read_uncommitted"})
    try:
        asked = [ClientPartition(f"{app.name}-in", number) for number in range(PARTITIONS)]
        return [found.offset for found in consumer.committed(asked, timeout=60)]
    finally:
        consumer.close()


def come_to(app: CountingApp, offsets: list[int]) -> bool:
    """Whether the group stands there: a transaction has been committed a moment before its offsets can be seen."""
    return wait_until(lambda: committed(app) == offsets, 60)


class Crash(Exception):
    """Simulates the death of the process at this point."""


def crash_at(point: str) -> Callable[[str], None]:
    """A probe that crashes there."""

    def crash(at: str) -> None:
        if at == point:
            raise Crash

    return crash
