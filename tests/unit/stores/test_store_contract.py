"""One suite for every store: the in-memory store and the example of a custom store behave like RocksDB."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.stores_page import custom_store

from tidemark.errors import TaskCorrupted
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Writes
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint


def a_checkpoint(batch: int = 1) -> StoreCheckpoint:
    return StoreCheckpoint("app", "1", "counts", "3:n=count<i8", batch, 5, {"t": batch * 10}, 7, 3)


def rocks(folder: Path) -> RocksStore:
    return RocksStore(folder / "store", write_buffer_bytes=1 << 20)


MAKE = {"rocksdb": rocks, "memory": lambda folder: MemoryStore(), "custom": lambda folder: custom_store()(folder)}


@pytest.fixture(params=MAKE)
def store(request, tmp_path):
    opened = MAKE[request.param](tmp_path)
    yield opened
    opened.close()


def test_should_have_no_checkpoint_and_no_segment_when_new(store):
    assert store.checkpoint is None
    assert store.segments() == []
    assert store.get_many(3, [b"a"]) == [None]


def test_should_return_values_in_the_requested_order(store):
    store.put_many([Writes(3, [b"a", b"b"], [b"1", b"2"])], a_checkpoint(), None)
    assert store.get_many(3, [b"b", b"x", b"a"]) == [b"2", None, b"1"]
    assert store.get_many(4, [b"a"]) == [None]
    assert store.checkpoint == a_checkpoint()


def test_should_let_the_last_write_of_a_key_win_and_delete_with_none(store):
    store.put_many([Writes(0, [b"a", b"a", b"b"], [b"1", b"2", b"3"])], a_checkpoint(), None)
    store.put_many([Writes(0, [b"b"], [None])], a_checkpoint(2), None)
    assert list(store.items(0)) == [(b"a", b"2")]


def test_should_hold_what_a_dictionary_holds_for_many_keys_in_any_order(store):
    """Keys occur several times in one write, and the last one counts; RocksDB sorts a list as long as these."""
    chance, expected = random.Random(3), {}
    for batch in range(3):
        keys = [f"k{chance.randrange(4_000)}".encode() * chance.choice((1, 40)) for _ in range(5_000)]
        values = [None if chance.random() < 0.2 else b"%d-%d" % (batch, number) for number in range(len(keys))]
        store.put_many([Writes(1, keys, values)], a_checkpoint(batch), None)
        expected.update(zip(keys, values, strict=True))
    asked = [f"k{number}".encode() for number in range(5_000)]
    chance.shuffle(asked)
    assert store.get_many(1, asked) == [expected.get(key) for key in asked]
    assert dict(store.items(1)) == {key: value for key, value in expected.items() if value is not None}


def test_should_list_items_in_the_order_of_keys(store):
    store.put_many([Writes(0, [b"c", b"a", b"b"], [b"3", b"1", b"2"])], a_checkpoint(), None)
    assert [key for key, _ in store.items(0)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("first_live", "left"), [(3, [3, 4, 5]), (4, [4, 5]), (5, [5]), (6, [])])
def test_should_drop_whole_segments_before_the_first_live_one(store, first_live, left):
    store.put_many([Writes(s, [b"k"], [b"v"]) for s in (3, 4, 5)], a_checkpoint(), None)
    store.put_many([], a_checkpoint(2), first_live)
    assert store.segments() == left


def test_should_not_write_into_an_expired_segment(store):
    store.put_many([Writes(2, [b"k"], [b"v"]), Writes(5, [b"k"], [b"v"])], a_checkpoint(), 3)
    assert store.segments() == [5]


@pytest.mark.parametrize(("start", "end", "found"), [(b"", None, "abc"), (b"b", None, "bc"), (b"a", b"c", "ab")])
def test_should_return_a_range_of_keys_without_its_end(store, start, end, found):
    store.put_many([Writes(0, [b"c", b"a", b"b"], [b"3", b"1", b"2"]), Writes(1, [b"b"], [b"4"])], a_checkpoint(), None)
    assert b"".join(key for key, _ in store.range(0, start, end)).decode() == found


def test_should_allow_closing_twice(store):
    store.close()


@pytest.mark.parametrize("name", ["rocksdb", "custom"])
def test_should_find_everything_again_when_reopened(tmp_path, name):
    first = MAKE[name](tmp_path)
    first.put_many([Writes(3, [b"a"], [b"1"]), Writes(4, [b"b"], [b"2"])], a_checkpoint(), None)
    first.close()
    again = MAKE[name](tmp_path)
    assert (again.checkpoint, again.segments(), again.get_many(4, [b"b"])) == (a_checkpoint(), [3, 4], [b"2"])
    again.close()


def test_should_have_no_checkpoint_until_a_bulk_load_is_finished(tmp_path):
    first = rocks(tmp_path)
    first.load_many([Writes(3, [b"a"], [b"1"])])
    first.close()
    again = rocks(tmp_path)
    assert again.checkpoint is None
    again.finish_load(a_checkpoint())
    again.close()
    assert rocks(tmp_path).checkpoint == a_checkpoint()


def test_should_find_what_was_bulk_loaded(tmp_path):
    loading = RocksStore(tmp_path / "store", write_buffer_bytes=1 << 20, bulk=True)
    loading.load_many([Writes(3, [b"a", b"b"], [b"1", b"2"]), Writes(4, [b"a"], [b"3"])])
    # The last word about a key counts, a tombstone too, whatever of it has gone to files by then.
    loading.load_many([Writes(3, [b"c", b"a", b"a"], [b"4", b"5", None])])
    loading.finish_load(a_checkpoint())
    loading.close()
    again = rocks(tmp_path)
    assert again.checkpoint == a_checkpoint()
    assert list(again.items(3)) == [(b"b", b"2"), (b"c", b"4")]
    assert list(again.items(4)) == [(b"a", b"3")]


def test_should_name_the_damaged_folder(tmp_path):
    rocks(tmp_path).close()
    (tmp_path / "store" / "CURRENT").write_text("MANIFEST-nowhere\n")
    with pytest.raises(TaskCorrupted, match="store"):
        rocks(tmp_path)


@pytest.mark.parametrize("files", ["MANIFEST-*", "*.sst"])
def test_should_report_damage_when_a_file_is_missing(tmp_path, files):
    loading = RocksStore(tmp_path / "store", write_buffer_bytes=1 << 20, bulk=True)
    loading.load_many([Writes(3, [b"a"], [b"1"])])
    loading.finish_load(a_checkpoint())
    loading.close()
    next((tmp_path / "store").glob(files)).unlink()
    with pytest.raises(TaskCorrupted, match="No such file"):
        rocks(tmp_path)


def test_rocksdb_should_not_write_statistics_to_its_own_log(tmp_path):
    rocks(tmp_path).close()
    written = "".join(file.read_text() for file in (tmp_path / "store").glob("OPTIONS-*"))
    assert "stats_dump_period_sec=0\n" in written
    assert "stats_persist_period_sec=0\n" in written


def test_rocksdb_should_bound_its_write_ahead_log(tmp_path):
    buffer_bytes = 256 << 10
    store = RocksStore(tmp_path / "store", write_buffer_bytes=buffer_bytes)
    for number in range(200):
        keys = [b"%08d" % key for key in range(number * 500, number * 500 + 500)]
        store.put_many([Writes(0, keys, [b"v" * 100] * len(keys))], a_checkpoint(), None)
    log_bytes = 0
    for log in (tmp_path / "store").glob("*.log"):
        # RocksDB removes the logs that it no longer needs in a thread of its own.
        with suppress(FileNotFoundError):
            log_bytes += log.stat().st_size
    store.close()
    assert 0 < log_bytes < 8 * buffer_bytes
