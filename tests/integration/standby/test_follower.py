"""A standby's copies against what the changelogs say, on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from tests.support.standby import contents, count, follow_until, in_window

from tidemark.clock import wall_clock_ms
from tidemark.kafka.topic_config import DAY_MS
from tidemark.names import TaskId
from tidemark.standby import facts_poller
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.rocksdb import RocksStore

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

MINUTE_MS = 60_000


def copy_of(follower, store, partition=0):
    return follower.store(TaskId(0, partition), store)


def held(follower, store, partition=0):
    return contents(copy_of(follower, store, partition)._store)


def test_should_hold_what_was_committed_to_every_partition_and_nothing_of_an_aborted_transaction(counting, standby):
    counting.commit({"n": {0: [(b"a", count(1)), (b"b", count(1))], 1: [(b"z", count(9))]}})
    follower = standby(counting)
    counting.begin({"n": {0: [(b"a", count(66)), (b"bad", count(66))], 1: [(b"z", None)]}})
    counting.end(commits=False)
    counting.commit({"n": {0: [(b"a", count(2)), (b"b", None)]}})
    counting.follow(follower)
    assert held(follower, "n", 0) == {b"a": count(2)} == counting.fold("n", 0)
    assert held(follower, "n", 1) == {b"z": count(9)} == counting.fold("n", 1)
    checkpoint = copy_of(follower, "n").checkpoint
    assert (checkpoint.batch, dict(checkpoint.source_offsets)) == (-1, {})
    assert checkpoint.changelog_offset >= counting.ends.of([counting.changelog("n")])[counting.changelog("n")]


def test_should_not_see_a_transaction_before_it_is_committed(counting, standby):
    counting.commit({"n": {0: [(b"a", count(1))], 1: [(b"x", count(1))]}})
    follower = standby(counting)
    counting.follow(follower)
    counting.begin({"n": {0: [(b"a", count(2))]}})
    elsewhere = counting.changelog("n", 1)
    counting.write([(b"meanwhile", count(1))], elsewhere)
    follow_until(follower, lambda: b"meanwhile" in held(follower, "n", 1))
    assert held(follower, "n") == {b"a": count(1)}
    counting.end()
    counting.follow(follower)
    assert held(follower, "n") == {b"a": count(2)}


def test_should_continue_from_its_checkpoint_after_a_restart(counting, standby):
    counting.commit({"n": {p: [(b"%d" % i, count(i)) for i in range(200)] for p in (0, 1)}})
    first = standby(counting)
    counting.follow(first)
    assert [store.records for store in first.stores] == [200, 200]
    first.end()
    counting.commit({"n": {0: [(b"new", count(1)), (b"7", None)]}})
    second = standby(counting)
    counting.follow(second)
    assert [store.records for store in second.stores] == [2, 0]
    assert held(second, "n") == counting.fold("n")
    assert len(held(second, "n")) == 200


@pytest.mark.parametrize(("away_ms", "records"), [(DAY_MS - MINUTE_MS, 1), (DAY_MS + MINUTE_MS, 2)])
def test_should_be_rebuilt_when_it_was_stopped_for_longer_than_tombstones_are_kept(counting, standby, away_ms, records):
    """A key that the changelog never had simulates a tombstone that compaction has removed meanwhile."""
    counting.commit({"n": {0: [(b"a", count(1))], 1: [(b"x", count(1))]}})
    first = standby(counting)
    counting.follow(first)
    store = copy_of(first, "n")
    store._store.put_many([Writes(WHOLE, [b"deleted since"], [count(1)])], store.checkpoint, None)
    first.end()
    counting.commit({"n": {0: [(b"b", count(1))]}})
    second = standby(counting, clock=lambda: wall_clock_ms() + away_ms)
    counting.follow(second)
    assert copy_of(second, "n").records == records
    assert (b"deleted since" in held(second, "n")) == (records == 1)


def test_should_measure_its_age_from_when_it_was_up_to_date_and_not_from_its_last_record(
    counting, standby, tmp_path, monkeypatch
):
    """A record that was just read does not make a lagging copy current: tombstones ahead of it may vanish meanwhile."""
    # It looks when the test tells it to, however long the reading takes.
    monkeypatch.setattr(facts_poller, "_LOOK_S", 3600.0)
    counting.commit({"n": {0: [(b"a", count(1))], 1: [(b"x", count(1))]}})
    now = [1_000]
    follower = standby(counting, clock=lambda: now[0])
    store = copy_of(follower, "n")
    assert store.checkpoint.commit_time_ms == 1_000
    now[0] = 2_000
    counting.follow(follower)
    assert store.checkpoint.commit_time_ms == 1_000, "level with an end that was asked for at 1 000"
    newest_facts = follower._sight
    follower._lookout.look()
    follow_until(follower, lambda: follower._sight is not newest_facts)
    assert store.checkpoint.commit_time_ms == 2_000
    store.create_checkpoint(tmp_path / "copy")
    given = RocksStore(tmp_path / "copy", write_buffer_bytes=1 << 20)
    assert given.checkpoint == store.checkpoint, "what is handed over is as young as the copy itself"
    given.close()


def test_should_be_rebuilt_when_the_changelog_begins_after_its_offset(windowed, standby):
    at = 100 * MINUTE_MS
    windowed.commit({"w": {0: [(in_window(b"a", at), count(1))]}}, at)
    first = standby(windowed)
    windowed.follow(first)
    first.end()
    windowed.commit({"w": {0: [(in_window(b"b", at), count(1)), (in_window(b"c", at), count(1))]}}, at)
    place = windowed.changelog("w")
    last = windowed.rows("w")[-1].offset
    (deleted,) = windowed.admin.delete_records([ClientPartition(place.topic, 0, last)]).values()
    deleted.result()
    second = standby(windowed)
    windowed.follow(second)
    assert held(second, "w") == {in_window(b"c", at): count(1)} == windowed.fold("w")


def test_should_drop_expired_windows_and_accept_no_record_of_them(windowed, standby):
    keys = [in_window(b"a", minute * MINUTE_MS) for minute in (1, 6, 16)]
    windowed.commit({"w": {0: [(keys[0], count(1)), (keys[1], count(1))]}}, 7 * MINUTE_MS)
    follower = standby(windowed)
    windowed.follow(follower)
    assert held(follower, "w") == {keys[0]: count(1), keys[1]: count(1)}
    windowed.commit({"w": {0: [(keys[2], count(1))]}}, 16 * MINUTE_MS)
    follow_until(follower, lambda: copy_of(follower, "w").bounds.stream_time_ms == 16 * MINUTE_MS)
    windowed.follow(follower)
    assert held(follower, "w") == {keys[1]: count(1), keys[2]: count(1)}
    windowed.commit({"w": {0: [(keys[0], count(5))]}}, 16 * MINUTE_MS)
    windowed.follow(follower)
    assert keys[0] not in held(follower, "w")


def test_should_be_rebuilt_when_stream_time_goes_back(windowed, standby):
    """A rewind makes expired windows live again, and writes only what differs."""
    keys = [in_window(b"a", minute * MINUTE_MS) for minute in (1, 16)]
    windowed.commit({"w": {0: [(keys[0], count(1))]}}, 2 * MINUTE_MS)
    windowed.commit({"w": {0: [(keys[1], count(1))]}}, 16 * MINUTE_MS)
    follower = standby(windowed)
    windowed.follow(follower)
    assert held(follower, "w") == {keys[1]: count(1)}
    windowed.commit({"w": {0: [(keys[1], None)]}}, 2 * MINUTE_MS)
    follow_until(follower, lambda: copy_of(follower, "w").bounds.stream_time_ms == 2 * MINUTE_MS)
    windowed.follow(follower)
    assert held(follower, "w") == {keys[0]: count(1)} == windowed.fold("w")
