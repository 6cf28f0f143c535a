"""What an instance counts of commits, restores, waits and states."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.clock import Period
from tidemark.commit.record import CommitKind
from tidemark.errors import BatchAborted
from tidemark.events.event import Rebalance, Waiting
from tidemark.instance.commit_listener import PreparedBatch
from tidemark.instance.counters import InstanceCounters, RecentMaximum
from tidemark.metrics import table
from tidemark.metrics.metric import Metric, Readings
from tidemark.names import TaskId, TopicPartition
from tidemark.restore.listener import RestoreProgress
from tidemark.stores.pending import StoreReads
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stream_times import StreamTimes
from tidemark.supervision.state import InstanceState
from tidemark.tasks.update import NO_KEY, UNPARSABLE, DeadLetter, Output, StoreUpdate, TaskUpdate

NOW = 1_700_000_000_000
PLACE = TopicPartition("a-s-changelog", 1)


@dataclass
class WrittenTask:
    """The part of a task that is counted."""

    puts: dict[str, Period] = field(default_factory=dict)


def letter(reason: str) -> DeadLetter:
    return DeadLetter(reason, "in", 1, 5, None, b"x", ())


def update(*letters: DeadLetter, late: int = 0) -> TaskUpdate:
    writes = (Writes(WHOLE, [b"a", b"b"], [b"1", None]),)
    return TaskUpdate(
        task=TaskId(0, 1), batch=1, sources={"in": (0, 10)}, stream_times=StreamTimes({}, 0), rows=6, late_rows=late,
        bad_rows=2, filtered_rows=3, stores=(StoreUpdate("s", None, writes, StoreReads(1, 4, 2_000_000_000, 3)),),
        outputs=(Output("out", [{"key": b"k", "value": b"v", "timestamp": 0}] * 2),), dead_letters=letters, wall_ms=0,
        prepared=Period(7.0, 7.5),
    )  # fmt: skip


def values(counters: InstanceCounters, metric: Metric) -> dict[tuple[str, ...], float]:
    """The values of a metric by its own labels."""
    readings = Readings({"application": "a", "instance": "0"})
    counters.read(readings)
    return {tuple(labels[name] for name in metric.own_labels): value for value, labels in readings.of(metric)}


def test_a_commit_should_be_counted_by_task_store_and_reason():
    counters = InstanceCounters("a", lambda: NOW)
    task = WrittenTask({"s": Period(8.0, 8.25)})
    for _ in range(2):
        part = [(task, update(letter(NO_KEY), letter(UNPARSABLE), letter(NO_KEY), late=1))]
        counters.committed(PreparedBatch(CommitKind.BATCH, part), Period(7.0, 9.0))
    expected = {
        table.COMMITS: {("batch",): 2, ("tick",): 0, ("start",): 0},
        table.COMMIT_LATENCY: {(): 4.0},
        table.COMMIT_LATENCY_MAX: {(): 2.0},
        table.LAST_COMMIT: {(): NOW / 1000},
        table.PROCESS_BATCHES: {("0_1",): 2},
        table.PROCESS_RECORDS: {("0_1",): 22},
        table.PROCESS_LATENCY: {("0_1",): 1.0},
        table.STATE_ROWS: {("0_1",): 12},
        table.FILTERED_RECORDS: {("0_1",): 6},
        table.DROPPED_RECORDS: {("0_1", "late"): 2, ("0_1", "bad"): 4},
        table.DEAD_LETTERS: {("0_1", NO_KEY): 4, ("0_1", UNPARSABLE): 2},
        table.PRODUCED_RECORDS: {("0_1", "out"): 4, ("0_1", "a-dlq"): 6},
        table.STORE_PUTS: {("0_1", "s"): 4},
        table.STORE_PUT_CALLS: {("0_1", "s"): 2},
        table.STORE_PUT_LATENCY: {("0_1", "s"): 0.5},
        table.STORE_GETS: {("0_1", "s"): 8},
        table.STORE_GET_CALLS: {("0_1", "s"): 2},
        table.STORE_GET_LATENCY: {("0_1", "s"): 4.0},
        table.STORE_RANGES: {("0_1", "s"): 6},
    }
    assert {metric.name: values(counters, metric) for metric in expected} == {
        metric.name: found for metric, found in expected.items()
    }


def test_restored_records_should_be_counted_once_also_if_a_restore_starts_again():
    counters = InstanceCounters("a", lambda: NOW)

    def progress(records: int, seconds: float = 1.0) -> RestoreProgress:
        return RestoreProgress("s", PLACE, 0, records, 100, records, seconds)

    counters.on_restore_start(progress(0))
    for records in (10, 25):
        counters.on_batch_restored(progress(records))
    counters.on_restore_suspended(progress(30))
    assert values(counters, table.RESTORE_RECORDS) == {("s",): 30}
    assert values(counters, table.RESTORES) == {}
    counters.on_restore_start(progress(0))
    counters.on_batch_restored(progress(5))
    counters.on_restore_end(progress(50, 4.0))
    assert values(counters, table.RESTORE_RECORDS) == {("s",): 80}
    assert values(counters, table.RESTORES) == {("s",): 1}
    assert values(counters, table.RESTORE_DURATION) == {("s",): 4.0}


def test_states_waits_aborts_and_rebalances_should_be_seen():
    counters = InstanceCounters("a", lambda: NOW)
    counters.on_change(InstanceState.RUNNING, InstanceState.REBALANCING)
    states = values(counters, table.STATE)
    assert {state for (state,), value in states.items() if value} == {"RUNNING"}
    assert len(states) == len(InstanceState)
    assert values(counters, table.LAST_COMMIT) == {}
    counters.on_waiting(Waiting("broker 2"))
    assert values(counters, table.WAITING_FOR_BROKERS) == {(): 1}
    assert values(counters, table.BROKER_WAITS) == {(): 0}
    counters.on_waiting(Waiting("broker 2", 3.5))
    assert values(counters, table.WAITING_FOR_BROKERS) == {(): 0}
    assert values(counters, table.BROKER_WAITS) == {(): 1}
    assert values(counters, table.BROKER_WAIT) == {(): 3.5}
    counters.aborted(Period(7.0, 9.0), BatchAborted("again"))
    assert values(counters, table.COMMIT_ABORTS) == {(): 1}
    counters.on_rebalance(Rebalance((PLACE,), (PLACE,), (), 1))
    assert values(counters, table.REBALANCES) == {(): 1}
    assert values(counters, table.LAST_REBALANCE) == {(): NOW / 1000}


def test_the_recent_maximum_should_forget_what_is_two_minutes_old():
    recent = RecentMaximum()
    recent.add(NOW, 9.0)
    recent.add(NOW + 1, 2.0)
    assert recent.value(NOW + 2) == 9.0
    begin = NOW // 60_000 * 60_000
    assert recent.value(begin + 119_999) == 9.0
    assert recent.value(begin + 120_000) == 0.0
