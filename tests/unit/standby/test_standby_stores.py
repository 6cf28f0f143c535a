"""Queries of a standby whose copy is no longer followed, or whose facts from Kafka are old."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rocksdict import Cache

from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.metrics.registry import MetricRegistry
from tidemark.names import TaskId, TopicPartition
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.hosts import CopyState
from tidemark.queries.position import ReadBounds
from tidemark.recovery.evidence import KeptDeletions, Watermarks
from tidemark.restore.restorer import RestoreJob
from tidemark.standby.metrics import StandbyMetrics
from tidemark.standby.queries import StandbyStores
from tidemark.standby.store_replica import FollowedStore, ReplicaBounds
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.plan import StoreKind, StoreSpec

NOW, MONOTONIC_S = 1_000_000, 50.0
TASK = TaskId(0, 3)
CHECKPOINT = StoreCheckpoint("app", "1", "s", "3:n=count<i8", -1, NOW, {}, 500, 40)
JOB = RestoreJob(
    StoreSpec("s", StoreKind.KEY_VALUE, None, None), TopicPartition("app-s-changelog", 3), 0, CHECKPOINT, None, None
)


@pytest.fixture
def clock():
    return [NOW]


@pytest.fixture
def copy(tmp_path, clock):
    made = FollowedStore(
        TASK,
        JOB,
        KeptDeletions(3_600_000),
        tmp_path / "s",
        lambda f: RocksStore(f, write_buffer_bytes=1 << 20),
        lambda: clock[0],
    )
    yield made
    made.close()


@pytest.fixture
def monotonic():
    return [MONOTONIC_S]


@pytest.fixture
def stores(copy, monotonic):
    made = StandbyStores("standby-0@here", lambda: monotonic[0])
    made.replace([copy])
    return made


def test_should_say_that_a_copy_never_began_because_its_changelog_has_lost_its_beginning(copy, stores):
    copy.see(ReplicaBounds(NOW, Watermarks(5, 100), 500, MONOTONIC_S))
    with pytest.raises(StateUnavailable, match=r"no longer followed: the copy has nothing yet, .* lost its beginning"):
        stores.open(TASK, "s")
    assert stores.restores() == []


def test_should_say_nothing_of_a_copy_before_its_first_facts(stores):
    with pytest.raises(StateUnavailable, match="does not hold task 0_3"):
        stores.open(TASK, "s")
    assert stores.restores() == []


def test_should_not_claim_a_lag_in_records_once_kafka_has_not_been_heard(copy, stores, clock, monotonic):
    copy.see(ReplicaBounds(NOW, Watermarks(0, 50), 500, MONOTONIC_S))
    copy.write(ChangelogBatch([b"a"], [b"1"], 50))
    level = stores.open(TASK, "s")
    level.snapshot.release()
    ReadBounds(max_lag_records=0).require(level.position)
    # The time that has gone by counts, also if the clock was set back meanwhile.
    clock[0] -= 600_000
    monotonic[0] += 3_000
    cut_off = stores.open(TASK, "s")
    cut_off.snapshot.release()
    assert cut_off.position == replace(level.position, lag_ms=3_000_000, end_age_ms=3_000_000)
    with pytest.raises(StateUnavailable, match="its lag in records is not known"):
        ReadBounds(max_lag_records=0).require(cut_off.position)
    ReadBounds().require(cut_off.position)


def test_should_give_the_age_of_a_copy_as_a_metric_also_when_the_clock_was_set_back(copy, stores, clock, monotonic):
    copy.see(ReplicaBounds(NOW, Watermarks(0, 50), 500, MONOTONIC_S))
    copy.write(ChangelogBatch([b"a"], [b"1"], 50))
    clock[0] -= 600_000
    monotonic[0] += 90
    scrape = MetricRegistry({"application": "app", "instance": stores.holder}).scrape
    text = scrape(StandbyMetrics(stores, Cache(1 << 20), lambda: monotonic[0]).read).decode()
    (line,) = [line for line in text.splitlines() if line.startswith("tidemark_standby_lag_seconds{")]
    assert line.endswith(" 90.0")


def test_should_hide_no_lag_behind_a_time_that_is_in_the_future_since_the_clock_was_set_back(
    copy, stores, clock, monotonic
):
    copy.see(ReplicaBounds(NOW, Watermarks(0, 50), 500, MONOTONIC_S))
    copy.write(ChangelogBatch([b"a"], [b"1"], 50))
    stores.open(TASK, "s").snapshot.release()
    clock[0] -= 500_000
    copy.see(ReplicaBounds(clock[0], Watermarks(0, 90_050), 500, MONOTONIC_S))
    with pytest.raises(StateUnavailable):
        stores.open(TASK, "s")
    clock[0] += 4_000
    monotonic[0] += 4
    copy.write(ChangelogBatch([b"a"], [b"2"], 90_050))
    level = stores.open(TASK, "s")
    level.snapshot.release()
    assert (level.position.lag_records, level.position.lag_ms) == (0, 4_000)


def test_should_say_the_same_of_one_task_as_of_all(copy, stores):
    copy.see(ReplicaBounds(NOW, Watermarks(0, 50), 500, MONOTONIC_S))
    for state in (CopyState.RESTORING, CopyState.STANDBY):
        assert stores.copies() == {TASK: state}
        assert (stores.state_of(TASK), stores.state_of(TaskId(0, 4))) == (state, None)
        copy.write(ChangelogBatch([b"a"], [b"1"], 50))
