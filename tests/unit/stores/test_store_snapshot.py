"""One suite for the snapshots of every store that has them: they stay as they are while the store is written and closed."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stores_page import custom_store

from tidemark.errors import SnapshotReleased, TaskCorrupted
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import SnapshotStore, Writes
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.rocksdb_snapshot import _STEP_BYTES
from tidemark.stores.store_checkpoint import StoreCheckpoint

MAKE = {
    "rocksdb": lambda folder: RocksStore(folder / "store", write_buffer_bytes=1 << 20),
    "memory": lambda folder: MemoryStore(),
}


def a_checkpoint(batch: int) -> StoreCheckpoint:
    return StoreCheckpoint("app", "1", "counts", "3:n=count<i8", batch, 5, {"t": batch * 10}, 7, batch * 100)


@pytest.fixture(params=MAKE)
def store(request, tmp_path):
    opened = MAKE[request.param](tmp_path)
    yield opened
    opened.close()


def contents(snapshot) -> dict[int, list[tuple[bytes, bytes]]]:
    return {segment: list(snapshot.range(segment, b"", None)) for segment in snapshot.segments()}


def test_should_keep_contents_and_checkpoint_while_the_store_is_written(store):
    store.put_many([Writes(0, [b"a", b"b", b""], [b"1", b"2", b"3"]), Writes(1, [b"x"], [b"9"])], a_checkpoint(1), None)
    snapshot = store.snapshot()
    store.put_many(
        [Writes(0, [b"a", b"b", b"c"], [b"X", None, b"n"]), Writes(2, [b"z"], [b"1"])], a_checkpoint(2), None
    )

    assert contents(snapshot) == {0: [(b"", b"3"), (b"a", b"1"), (b"b", b"2")], 1: [(b"x", b"9")]}
    assert snapshot.get_many(0, [b"b", b"c", b"a", b""]) == [b"2", None, b"1", b"3"]
    assert snapshot.get_many(2, [b"z"]) == [None]
    assert snapshot.checkpoint == a_checkpoint(1)
    assert store.snapshot().checkpoint == a_checkpoint(2)


def test_should_keep_a_segment_that_the_store_drops(store):
    store.put_many([Writes(3, [b"k"], [b"v"]), Writes(5, [b"k"], [b"w"])], a_checkpoint(1), None)
    snapshot = store.snapshot()
    store.put_many([], a_checkpoint(2), 5)
    assert contents(snapshot) == {3: [(b"k", b"v")], 5: [(b"k", b"w")]}
    assert contents(store.snapshot()) == {5: [(b"k", b"w")]}


def test_should_refuse_to_read_after_the_store_was_closed(store):
    store.put_many([Writes(0, [b"%04d" % n for n in range(2000)], [b"v"] * 2000)], a_checkpoint(1), None)
    snapshot = store.snapshot()
    reading = snapshot.range(0, b"", None)
    assert next(reading) == (b"0000", b"v")
    store.close()
    with pytest.raises(SnapshotReleased, match="ask again"):
        list(reading)
    with pytest.raises(SnapshotReleased):
        snapshot.get_many(0, [b"0000"])


def test_should_read_few_large_values_at_a_time(tmp_path):
    store = MAKE["rocksdb"](tmp_path)
    keys = [b"%d" % n for n in range(10)]
    store.put_many([Writes(0, keys, [b"v" * (_STEP_BYTES // 2)] * 10)], a_checkpoint(1), None)
    assert [key for key, _ in store.snapshot().range(0, b"", None)] == keys
    reading = store.snapshot().range(0, b"", None)
    found = [next(reading)[0]]
    store.close()
    with pytest.raises(SnapshotReleased):
        found += (key for key, _ in reading)
    assert found == keys[:2]


def test_should_free_the_folder_when_the_store_closes_before_its_reader_does(tmp_path):
    store = MAKE["rocksdb"](tmp_path)
    store.put_many([Writes(0, [b"a"], [b"1"])], a_checkpoint(1), None)
    snapshot = store.snapshot()
    assert snapshot.get_many(0, [b"a"]) == [b"1"]
    store.close()
    with pytest.raises(SnapshotReleased):
        store.snapshot()
    again = MAKE["rocksdb"](tmp_path)
    assert again.get_many(0, [b"a"]) == [b"1"]
    again.close()
    snapshot.release()


def test_should_count_approximately(store):
    store.put_many([Writes(0, [b"a", b"b"], [b"1", b"2"]), Writes(4, [b"c"], [b"3"])], a_checkpoint(1), None)
    assert store.snapshot().approximate_count == 3


def test_should_be_known_by_the_method_that_a_custom_store_may_lack(store, tmp_path):
    made = custom_store()(tmp_path)
    made.close()
    assert isinstance(store, SnapshotStore)
    assert not isinstance(made, SnapshotStore)


def test_should_not_take_a_damaged_block_for_a_key_that_does_not_exist(tmp_path):
    store = MAKE["rocksdb"](tmp_path)
    keys, drawn = [b"%04d" % n for n in range(2000)], random.Random(1)
    # Drawn, so that they stay large when they are compressed.
    store.put_many([Writes(0, keys, [drawn.randbytes(100) for _ in keys])], a_checkpoint(1), None)
    store.close()
    for file in (tmp_path / "store").glob("*.sst"):
        contents = bytearray(file.read_bytes())
        if len(contents) > 100_000:
            # The index and the filter, which opening reads, are at the end.
            for place in range(0, len(contents) // 2, 50):
                contents[place] ^= 0xFF
            file.write_bytes(contents)
    damaged = MAKE["rocksdb"](tmp_path)
    snapshot = damaged.snapshot()
    with pytest.raises(TaskCorrupted, match="cannot be read"):
        snapshot.get_many(0, [b"0007"])
    with pytest.raises(TaskCorrupted, match="cannot be read"):
        list(snapshot.range(0, b"0007", None))
    # A store's own reader must not take it for the end of the data either.
    with pytest.raises(TaskCorrupted, match="cannot be read"):
        list(damaged.items(0))
    damaged.close()


def test_should_let_readers_in_while_a_batch_is_made(tmp_path):
    store = MAKE["rocksdb"](tmp_path)
    store.put_many([Writes(0, [b"a"], [b"1"])], a_checkpoint(1), None)
    taken = []

    class Read(list):
        def __iter__(self):
            reader = threading.Thread(target=lambda: taken.append(contents(store.snapshot())))
            reader.start()
            reader.join(30)
            return super().__iter__()

    store.put_many([Writes(0, Read([b"a"]), [b"2"]), Writes(1, Read([b"b"]), [b"2"])], a_checkpoint(2), None)
    assert set(map(str, taken)) == {str({0: [(b"a", b"1")]})}
    assert contents(store.snapshot()) == {0: [(b"a", b"2")], 1: [(b"b", b"2")]}
    store.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.binary(max_size=3), st.none() | st.binary(max_size=3), max_size=20), min_size=2, max_size=6
    ),
    st.data(),
)
def test_should_show_in_memory_what_a_copy_would(batches, data):
    store, model, taken = MemoryStore(), {}, []
    for number, batch in enumerate(batches):
        store.put_many([Writes(0, list(batch), list(batch.values()))], a_checkpoint(number), None)
        model = {k: v for k, v in {**model, **batch}.items() if v is not None}
        if data.draw(st.booleans()):
            taken.append((store.snapshot(), dict(model)))
    for snapshot, then in taken:
        assert list(snapshot.range(0, b"", None)) == sorted(then.items())
        start, end = data.draw(st.binary(max_size=3)), data.draw(st.none() | st.binary(max_size=3))
        within = [(k, v) for k, v in sorted(then.items()) if k >= start and (end is None or k < end)]
        assert (list(snapshot.range(0, start, end)) if end is None or start <= end else []) == (
            within if end is None or start <= end else []
        )
        keys = data.draw(st.lists(st.binary(max_size=3), max_size=5))
        assert snapshot.get_many(0, keys) == [then.get(key) for key in keys]


def test_should_be_of_one_batch_while_another_thread_writes_and_drops_segments(store):
    """Every batch writes its number everywhere, so that a snapshot of two batches would hold two numbers."""
    keys, stop, wrong, read = [b"%03d" % n for n in range(600)], threading.Event(), [], []

    def write() -> None:
        number = 0
        # Readers that wait for a core have looked several times, too.
        while number < 150 or (len(read) < 3 and number < 100_000):
            number += 1
            value = b"%d" % number
            store.put_many(
                [Writes(s, keys, [value] * 600) for s in (number // 50, number // 50 + 1)],
                a_checkpoint(number),
                number // 50,
            )
        stop.set()

    def look() -> None:
        while not stop.is_set():
            snapshot = store.snapshot()
            expected = {b"%d" % snapshot.checkpoint.batch} if snapshot.checkpoint else set()
            newest = snapshot.segments()[-1:]
            found = {value for segment in newest for _, value in snapshot.range(segment, b"", None)}
            found |= {value for segment in newest for value in snapshot.get_many(segment, keys[:3])}
            snapshot.release()
            read.append(found)
            if found != expected:
                wrong.append((found, expected))

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    write()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(read) > 2


def test_should_close_while_others_read(tmp_path: Path):
    store = MAKE["rocksdb"](tmp_path)
    store.put_many([Writes(0, [b"%06d" % n for n in range(20_000)], [b"v"] * 20_000)], a_checkpoint(1), None)
    begun, ended = threading.Event(), []

    def read() -> None:
        snapshot = store.snapshot()
        try:
            while True:
                for _ in snapshot.range(0, b"", None):
                    begun.set()
        except SnapshotReleased as released:
            ended.append(released)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(30)
    store.close()
    reader.join(30)
    assert len(ended) == 1
    MAKE["rocksdb"](tmp_path).close()
