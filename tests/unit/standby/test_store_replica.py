"""Whether a copy may continue from its checkpoint: every reason at its boundary."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tidemark.errors import StoreFailed
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.evidence import KeptDeletions, Watermarks
from tidemark.restore.restorer import RestoreJob
from tidemark.standby.follower import Follower
from tidemark.standby.store_replica import FollowedStore, ReplicaBounds, rebuild_reason
from tidemark.stores.checkpoint_file import read_checkpoint
from tidemark.stores.protocol import WHOLE
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.plan import StoreKind, StoreSpec

CHANGELOG = TopicPartition("app-s-changelog", 3)
HOUR = 3_600_000
NOW = 1000 * HOUR
CHECKPOINT = StoreCheckpoint("app", "1", "s", "3:n=count<i8", -1, NOW, {}, 500, 40)
WINDOWED = StoreSpec("s", StoreKind.WINDOW, 10 * HOUR, HOUR)
PLAIN = StoreSpec("s", StoreKind.KEY_VALUE, None, None)


def reason(checkpoint=CHECKPOINT, spec=WINDOWED, low=0, end=100, stream_time_ms=500):
    job = RestoreJob(spec, CHANGELOG, 0, CHECKPOINT, None, None)
    bounds = ReplicaBounds(NOW, Watermarks(low, end), stream_time_ms, 0.0)
    return rebuild_reason(checkpoint, job, bounds, KeptDeletions(24 * HOUR, NOW - 3 * HOUR, HOUR), NOW)


@pytest.mark.parametrize(
    "going_on",
    [
        {},
        {"low": 40},
        {"end": 40},
        {"stream_time_ms": 501},
        {"checkpoint": replace(CHECKPOINT, commit_time_ms=NOW - 3 * HOUR)},
        {"spec": PLAIN, "stream_time_ms": 499},
        {"checkpoint": replace(CHECKPOINT, topology_version="2")},
    ],
)
def test_should_continue_when_no_record_can_have_been_missed(going_on):
    assert reason(**going_on) is None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"low": 41}, "older than the beginning"),
        ({"end": 39}, "beyond the end"),
        ({"stream_time_ms": 499}, "ahead of the committed stream time"),
        ({"checkpoint": replace(CHECKPOINT, commit_time_ms=NOW - 24 * HOUR)}, "delete.retention.ms"),
        ({"checkpoint": replace(CHECKPOINT, commit_time_ms=NOW - 3 * HOUR - 1)}, "a raise of delete.retention.ms"),
        ({"checkpoint": replace(CHECKPOINT, application_id="other")}, "belongs to other/s"),
        ({"checkpoint": replace(CHECKPOINT, store="t")}, "belongs to app/t"),
        ({"checkpoint": replace(CHECKPOINT, value_layout="3:n=sum<f8")}, "holds values of layout 3:n=sum<f8"),
    ],
)
def test_should_rebuild_when_a_record_may_have_been_missed_and_say_why(found, why):
    assert why in reason(**found)


@pytest.mark.parametrize(("asleep_ms", "continues_from"), [(24 * HOUR - 1, True), (24 * HOUR, False)])
def test_should_rebuild_when_reading_paused_longer_than_tombstones_are_kept(tmp_path, asleep_ms, continues_from):
    now = [NOW]
    store = FollowedStore(
        TaskId(0, 3),
        RestoreJob(PLAIN, CHANGELOG, 0, CHECKPOINT, None, None),
        KeptDeletions(24 * HOUR),
        tmp_path / "s",
        lambda folder: RocksStore(folder, write_buffer_bytes=1 << 20),
        lambda: now[0],
    )
    store.see(ReplicaBounds(NOW, Watermarks(0, 100), 500, 0.0))
    assert store.write(ChangelogBatch([b"deleted since"], [b"1"], 50))
    now[0] += asleep_ms
    assert store.write(ChangelogBatch([b"a"], [b"1"], 60)) is continues_from
    assert store.next_offset == (60 if continues_from else 0)
    held = {key for key, _ in store._store.items(WHOLE)}
    assert held == ({b"deleted since", b"a"} if continues_from else set())
    store.close()


def test_should_be_closed_without_a_word_of_its_own_after_a_store_that_cannot_be_opened_again(tmp_path):
    limit = [1]

    def opened(folder):
        if not limit:
            raise StoreFailed("too many open files: raise the limit")
        limit.pop()
        return RocksStore(folder, write_buffer_bytes=1 << 20)

    store = FollowedStore(
        TaskId(0, 3),
        RestoreJob(PLAIN, CHANGELOG, 0, CHECKPOINT, None, None),
        KeptDeletions(24 * HOUR),
        tmp_path / "s",
        opened,
        lambda: NOW,
    )
    store.see(ReplicaBounds(NOW, Watermarks(0, 100), 500, 0.0))
    assert store.write(ChangelogBatch([b"a"], [b"1"], 50))
    with pytest.raises(StoreFailed, match="raise the limit"):
        store.empty("is older than the beginning")
    store.close()


def test_should_close_all_stores_and_mirror_their_checkpoints_although_one_cannot_be_closed(tmp_path):
    closed, task = [], TaskId(0, 3)

    def fails():
        raise StoreFailed("the disk is full")

    stores = {
        TopicPartition("a", 3): SimpleNamespace(close=fails, task=task, next_offset=5),
        CHANGELOG: SimpleNamespace(close=lambda: closed.append("store"), task=task, next_offset=7),
    }
    folder = SimpleNamespace(checkpoint_file=tmp_path / ".checkpoint", close=lambda: closed.append("folder"))
    part = SimpleNamespace(close=lambda: None)
    follower = SimpleNamespace(_is_closed=False, _lookout=part, _consumer=part, _folders={task: folder}, _stores=stores)
    with pytest.raises(StoreFailed, match="the disk is full"):
        Follower.close(follower)
    assert closed == ["store", "folder"]
    assert read_checkpoint(folder.checkpoint_file) == {CHANGELOG: 7}
