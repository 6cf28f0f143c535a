"""The view of a batch on a store that it is changing, compared with a dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.stores.memory import MemoryStore
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint

CHECKPOINT = StoreCheckpoint("app", "1", "s", "", 1, 1, {}, 1, 1)
KEYS = st.binary(max_size=2)
PUTS = st.lists(st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=2)), max_size=4), max_size=6)


def a_store(held: dict[bytes, bytes]) -> MemoryStore:
    store = MemoryStore()
    store.put_many([Writes(0, list(held), list(held.values()))], CHECKPOINT, None)
    return store


@given(st.dictionaries(KEYS, st.binary(max_size=2)), PUTS, KEYS, st.none() | KEYS)
def test_should_read_the_same_as_a_dictionary_after_every_put(held, puts, start, end):
    store = a_store(held)
    pending, model = PendingStore(store), dict(held)
    for put in puts:
        pending.put_many(0, [k for k, _ in put], [v for _, v in put])
        for key, value in put:
            model.pop(key, None) if value is None else model.update({key: value})
        expected = sorted((k, v) for k, v in model.items() if k >= start and (end is None or k < end))
        assert list(pending.range(0, start, end)) == expected
        asked = [k for k, _ in put] + list(held)
        assert pending.get_many(0, asked) == [model.get(key) for key in asked]
    assert dict(store.items(0)) == held


@given(st.dictionaries(KEYS, st.binary(max_size=2)), PUTS)
def test_should_write_each_key_once_with_its_last_value(held, puts):
    store = a_store(held)
    pending, last = PendingStore(store), {}
    for put in puts:
        pending.put_many(0, [k for k, _ in put], [v for _, v in put])
        last.update(put)
    written = [pair for w in pending.writes() for pair in zip(w.keys, w.values, strict=True)]
    assert len(written) == len(last)
    assert dict(written) == last


def test_should_name_segments_of_the_store_and_of_the_batch():
    pending = PendingStore(a_store({b"a": b"1"}))
    pending.put_many(7, [b"b"], [b"2"])
    assert pending.segments() == [0, 7]
