"""A changelog whose reading takes longer than its tombstones are kept: noticed before the store counts as up to date."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.errors import CopyUnusable, OutcomeUnknown
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.kafka.topic_config import DAY_MS
from tidemark.names import TopicPartition
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.restorer import RestoreJob, Restorer
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.plan import StoreKind, StoreSpec

NOW = 1_700_000_000_000
SPEC = StoreSpec("s", StoreKind.KEY_VALUE, None, None, source_topic="t")
COPY = StoreCheckpoint("app", "1", "s", "rows", 3, NOW - 1000, {"t": 1}, 0, 1)
JOB = RestoreJob(SPEC, TopicPartition("t", 0), 0, replace(COPY, batch=9, changelog_offset=2), None, None)


class Slow:
    """A `TableReader` whose reading takes as long as it says; also a clock."""

    def __init__(self, takes_ms):
        self.now_ms, self._takes_ms = NOW, takes_ms

    def read_table(self, spec, partition, start, end, should_continue):
        self.now_ms += self._takes_ms
        yield ChangelogBatch([b"k"], [b"{}"], end)

    def __call__(self):
        return self.now_ms


class Bulk(MemoryStore):
    """Whether the load was finished."""

    marked = None

    def load_many(self, writes):
        pass

    def finish_load(self, checkpoint):
        self.marked = checkpoint


def restorer(slow):
    return Restorer({}, 1, LoggingRestoreListener(), lambda _point: None, slow, slow)


def copy():
    store = MemoryStore()
    store.put_many([Writes(WHOLE, [b"deleted since"], [b"{}"])], COPY, None)
    return store


@pytest.mark.parametrize(("takes_ms", "is_level"), [(DAY_MS - 1001, True), (DAY_MS - 1000, False), (DAY_MS, False)])
def test_should_refuse_a_copy_whose_tail_took_longer_to_read_than_tombstones_are_kept(takes_ms, is_level):
    store, slow = copy(), Slow(takes_ms)

    def replay():
        restorer(slow).replay_tail(JOB, 1, store, lambda: True, since_ms=COPY.commit_time_ms)

    if is_level:
        replay()
        assert store.checkpoint == JOB.target
        return
    with pytest.raises(CopyUnusable, match="keys that they deleted would come back"):
        replay()
    assert store.checkpoint == COPY, "the next start must not find it level"


@pytest.mark.parametrize(("takes_ms", "is_level"), [(DAY_MS - 1, True), (DAY_MS, False)])
def test_should_begin_again_when_reading_the_whole_changelog_took_that_long(tmp_path, takes_ms, is_level):
    store = Bulk()

    def build():
        restorer(Slow(takes_ms)).build_whole(JOB, tmp_path / "s", lambda _folder: store, lambda: True)

    if is_level:
        build()
        assert store.marked == JOB.target
        return
    with pytest.raises(OutcomeUnknown, match="the next start reads it again"):
        build()
    assert store.marked is None
