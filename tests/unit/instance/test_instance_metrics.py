"""The metrics of an instance when brokers answer, and when they do not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from confluent_kafka import KafkaError, KafkaException
from rocksdict import Cache
from tests.support.counting import counting
from tests.support.logged import logged_by

from tidemark.errors import OutcomeUnknown
from tidemark.instance.counters import InstanceCounters
from tidemark.instance.metrics import REMEMBERED_REASONS, InstanceMetrics
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.metrics import table
from tidemark.metrics.metric import Metric, Readings
from tidemark.names import TaskId, TopicPartition
from tidemark.queries.hosts import StoreRestore
from tidemark.stores.memory import MemoryStore
from tidemark.stream_times import NO_STREAM_TIME, StreamTimes

PLAN = counting("a").plan()
SOURCE, CHANGELOG, COMMITS = (TopicPartition(topic, 1) for topic in ("a-in", "a-n-changelog", "a-commits"))


@dataclass
class OpenTask:
    """The part of a task that is read."""

    id: TaskId = field(default_factory=lambda: TaskId(0, 1))
    subtopology: object = PLAN.subtopologies[0]
    stream_times: StreamTimes = field(default_factory=lambda: StreamTimes(7_000, {}))
    next_offsets: dict[str, int] = field(default_factory=lambda: {"a-in": 40})
    stores: dict[str, object] = field(default_factory=lambda: {"n": MemoryStore()})

    @property
    def sources(self) -> dict[TopicPartition, int]:
        return {SOURCE: self.next_offsets["a-in"]}


class Offsets:
    """Brokers that answer, unless `is_away`, except for the topic `refused`."""

    def __init__(self, is_away: bool = False, refused: str = "") -> None:
        self._is_away = is_away
        self._refused = refused
        self.requests = 0

    def of(self, asked):
        self.requests += 1
        if self._is_away:
            raise OutcomeUnknown("no broker answers") from KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if self._refused in {place.topic for place in asked}:
            reason = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            raise OutcomeUnknown(f"failed to list the offsets of {self._refused}") from KafkaException(reason)
        known = {SOURCE: 45, CHANGELOG: 30, TopicPartition("a-commits", 0): 9}
        return {place: known[place] for place in asked}

    def beginnings(self, asked):
        return {place: {CHANGELOG: 10}[place] for place in asked}


def metrics_of(task: OpenTask | None, ends: Offsets, restores=()) -> InstanceMetrics:
    counters = InstanceCounters("a", lambda: 0)
    tasks = [] if task is None else [task]
    return InstanceMetrics(PLAN, counters, lambda: tasks, lambda: restores, ends, BatchSize(500), Cache(1 << 20))


def read(task: OpenTask | None, ends: Offsets, restores=()) -> Readings:
    return read_again(metrics_of(task, ends, restores))


def read_again(metrics: InstanceMetrics) -> Readings:
    readings = Readings({"application": "a", "instance": "0"})
    metrics.read(readings)
    return readings


def values(readings: Readings, metric: Metric) -> dict[tuple[str, ...], float]:
    return {tuple(labels[name] for name in metric.own_labels): value for value, labels in readings.of(metric)}


def test_should_read_tasks_stores_and_offsets():
    found = read(OpenTask(), Offsets(), [StoreRestore("n", 0, 5, 12, None)])
    assert values(found, table.RECORDS_LAG) == {("0_1", "a-in"): 5}
    assert values(found, table.COMMITTED_OFFSET) == {("0_1", "a-in"): 40}
    assert values(found, table.CHANGELOG_OFFSETS) == {("0_1", "n"): 20}
    assert values(found, table.BROKER_REACHABLE) == {(): 1}
    assert values(found, table.STREAM_TIME) == {("0_1",): 7.0}
    assert values(found, table.STORE_KEYS) == {("0_1", "n"): 0}
    assert values(found, table.RESTORE_REMAINING) == {("n", "0"): 7}
    assert values(found, table.TASKS) == {(): 1}
    assert values(found, table.BATCH_RECORDS) == {(): 500}
    assert values(found, table.TOPOLOGY_INFO) == {(PLAN.version,): 1}


def test_should_leave_out_lags_and_say_that_brokers_are_away():
    found = read(OpenTask(), Offsets(is_away=True))
    assert values(found, table.BROKER_REACHABLE) == {(): 0}
    assert values(found, table.RECORDS_LAG) == {}
    assert values(found, table.COMMITTED_OFFSET) == {("0_1", "a-in"): 40}


def test_should_wait_only_once_for_brokers_that_do_not_answer():
    away, here = Offsets(is_away=True), Offsets()
    read(OpenTask(), away)
    read(OpenTask(), here)
    assert (away.requests, here.requests) == (1, 2)


@pytest.mark.parametrize(
    ("refused", "lags", "changelogs"),
    [("a-in", {}, {("0_1", "n"): 20}), ("a-n-changelog", {("0_1", "a-in"): 5}, {})],
)
def test_should_leave_out_only_what_brokers_refuse_and_log_the_reason_once(refused, lags, changelogs, caplog):
    metrics = metrics_of(OpenTask(), Offsets(refused=refused))
    for found in (read_again(metrics), read_again(metrics)):
        assert values(found, table.BROKER_REACHABLE) == {(): 1}
        assert values(found, table.RECORDS_LAG) == lags
        assert values(found, table.CHANGELOG_OFFSETS) == changelogs
    assert [record.getMessage() for record in logged_by(caplog, "tidemark.instance")] == [
        f"a metric of a is left out: failed to list the offsets of {refused}"
    ]


@pytest.mark.parametrize(("others", "logged"), [(REMEMBERED_REASONS - 1, 1), (REMEMBERED_REASONS, 2)])
def test_should_remember_only_the_newest_reasons_that_it_has_logged(others, logged, caplog):
    class Reasons(Offsets):
        reason = "first"

        def of(self, asked):
            raise OutcomeUnknown(self.reason)

    ends = Reasons()
    metrics = metrics_of(None, ends)
    for reason in ("first", *(f"reason {number}" for number in range(others)), "first"):
        ends.reason = reason
        read_again(metrics)
    messages = [record.getMessage() for record in logged_by(caplog, "tidemark.instance")]
    assert messages.count("a metric of a is left out: first") == logged
    assert len(messages) == others + logged


def test_should_ask_brokers_also_without_a_task():
    assert values(read(None, Offsets()), table.BROKER_REACHABLE) == {(): 1}
    assert values(read(None, Offsets(is_away=True)), table.BROKER_REACHABLE) == {(): 0}


def test_should_show_no_stream_time_before_the_first_event_and_no_size_of_a_custom_store():
    task = OpenTask(stream_times=StreamTimes(NO_STREAM_TIME, {}), stores={"n": object()})
    found = read(task, Offsets())
    assert values(found, table.STREAM_TIME) == {}
    assert values(found, table.STORE_KEYS) == {}
