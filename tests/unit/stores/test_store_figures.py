"""The size of stores, and the reads that a batch counts."""

from __future__ import annotations

import pytest

from tidemark.stores.memory import MemoryStore
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE, MeasuredStore, Writes
from tidemark.stores.rocksdb import MEASURED_PROPERTIES, RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint

CHECKPOINT = StoreCheckpoint("app", "1", "s", "", 1, 0, {}, 0, 0)


@pytest.fixture(params=["memory", "rocksdb"])
def store(request, tmp_path):
    made = MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "s", write_buffer_bytes=1 << 20)
    yield made
    made.close()


def put(store, segment: int, *keys: bytes) -> None:
    store.put_many([Writes(segment, list(keys), [b"v" * 100] * len(keys))], CHECKPOINT, None)


def test_should_count_the_keys_of_all_segments(store):
    assert isinstance(store, MeasuredStore)
    assert store.figures().keys == 0
    put(store, 1, b"a", b"b")
    put(store, 2, b"a")
    assert store.figures().keys == 3


def test_rocksdb_should_report_files_and_memory_and_nothing_once_closed(tmp_path):
    store = RocksStore(tmp_path / "s", write_buffer_bytes=1 << 20)
    put(store, WHOLE, *(b"%06d" % number for number in range(2000)))
    before = store.figures().properties
    assert tuple(before) == MEASURED_PROPERTIES
    assert before["rocksdb.size-all-mem-tables"] > 2000 * 100
    assert before["rocksdb.background-errors"] == 0
    store.close()
    assert store.figures() is None
    again = RocksStore(tmp_path / "s", write_buffer_bytes=1 << 20)
    assert again.figures().properties["rocksdb.total-sst-files-size"] > 0
    assert again.figures().keys == 2000
    again.close()


def test_a_batch_should_count_the_keys_that_it_looks_up_in_the_store(store):
    put(store, WHOLE, b"a", b"b")
    pending = PendingStore(store)
    pending.get_many(WHOLE, [b"a", b"x"])
    pending.put_many(WHOLE, [b"a"], [b"1"])
    pending.get_many(WHOLE, [b"a"])
    pending.get_committed_many(WHOLE, [b"a"])
    list(pending.range(WHOLE, b"", None))
    measured = pending.measured
    assert (measured.get_calls, measured.get_records, measured.range_calls) == (2, 3, 1)
    assert measured.get_ns > 0
