"""TTL and LRU against dictionaries that do the same, over batches and restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.stores.memory import MemoryStore
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.operators.expiry import expire
from tidemark.topology.plan import StoreKind, StoreSpec

CHECKPOINT = StoreCheckpoint("app", "1", "s", "", 1, 1, {}, 1, 1)
PLAIN = StoreSpec("s", StoreKind.KEY_VALUE, None, None)
TTL = replace(PLAIN, ttl_ms=10)
LRU = replace(PLAIN, max_entries=2)
BOTH = replace(PLAIN, ttl_ms=10, max_entries=2)


class Expiring:
    """A store with its order, both committed after each batch."""

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self.data, self.order = MemoryStore(), MemoryStore()
        self.tombstones: list[bytes] = []

    def batch(self, now_ms: int, *puts: bytes, deletes: tuple[bytes, ...] = (), reads: tuple[bytes, ...] = ()) -> None:
        data, order = PendingStore(self.data), PendingStore(self.order)
        data.put_many(WHOLE, puts, [b"v"] * len(puts))
        data.put_many(WHOLE, deletes, [None] * len(deletes))
        data.note_reads(reads)
        expire(self.spec, data, order, BatchTime(-1, now_ms, 0))
        self.tombstones = [k for w in data.writes() for k, v in zip(w.keys, w.values, strict=True) if v is None]
        self.data.put_many(data.writes(), CHECKPOINT, None)
        self.order.put_many(order.writes(), CHECKPOINT, None)

    @property
    def keys(self) -> list[bytes]:
        return [key for key, _ in self.data.items(WHOLE)]


@pytest.mark.parametrize(("now", "left"), [(14, [b"a"]), (15, [b"a"]), (16, [])])
def test_should_delete_a_key_that_was_not_written_for_more_than_its_ttl(now, left):
    store = Expiring(TTL)
    store.batch(5, b"a")
    store.batch(now)
    assert store.keys == left
    assert store.tombstones == ([] if left else [b"a"])


def test_should_keep_a_key_that_is_written_again():
    store = Expiring(TTL)
    store.batch(5, b"a", b"b")
    store.batch(9, b"a")
    store.batch(17)
    assert store.keys == [b"a"]


def test_should_not_count_a_read_as_a_write():
    store = Expiring(BOTH)
    store.batch(5, b"a")
    store.batch(12, reads=(b"a",))
    store.batch(16)
    assert store.keys == []


def test_should_keep_the_keys_that_were_read_or_written_last():
    store = Expiring(LRU)
    store.batch(1, b"a", b"b")
    store.batch(1, reads=(b"a", b"unknown"))
    store.batch(1, b"c")
    assert (store.keys, store.tombstones) == ([b"a", b"c"], [b"b"])


def test_should_evict_in_the_order_of_key_bytes_within_one_batch():
    store = Expiring(LRU)
    store.batch(1, b"c", b"a", b"b", b"d")
    assert store.keys == [b"c", b"d"]


def test_should_make_room_when_a_key_is_deleted():
    store = Expiring(LRU)
    store.batch(1, b"a", b"b")
    store.batch(2, b"c", deletes=(b"b",))
    assert store.keys == [b"a", b"c"]


def test_should_write_nothing_when_nothing_was_used():
    store = Expiring(BOTH)
    store.batch(1, b"a")
    before = list(store.order.items(WHOLE))
    store.batch(2)
    assert list(store.order.items(WHOLE)) == before


def test_should_remove_a_deleted_key_from_the_order_of_use():
    store = Expiring(TTL)
    store.batch(1, b"a")
    store.batch(20)
    assert list(store.order.items(WHOLE)) == []


def test_should_do_nothing_for_a_store_without_ttl_and_bound():
    store = Expiring(PLAIN)
    store.batch(1, b"a")
    assert (store.keys, list(store.order.items(WHOLE))) == ([b"a"], [])


KEYS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\0", b"\xff" * 9]), max_size=3, unique=True)
BATCH = st.tuples(st.integers(0, 8), KEYS, KEYS, KEYS)


@pytest.mark.parametrize("spec", [TTL, LRU, BOTH], ids=["ttl", "lru", "both"])
@given(batches=st.lists(BATCH, max_size=10))
def test_should_hold_the_same_as_a_dictionary_with_times(spec, batches):
    store, now = Expiring(spec), 0
    model: dict[bytes, tuple[int, int]] = {}
    for number, (step, puts, deletes, reads) in enumerate(batches):
        now += step
        store.batch(now, *puts, deletes=tuple(deletes), reads=tuple(reads))
        for key in puts:
            model[key] = (now, number)
        for key in deletes:
            model.pop(key, None)
        for key in reads:
            if key in model:
                model[key] = (model[key][0], number)
        if spec.ttl_ms is not None:
            model = {key: at for key, at in model.items() if at[0] + spec.ttl_ms >= now}
        if spec.max_entries is not None:
            used = sorted(model, key=lambda key: (model[key][1], key))
            model = {key: model[key] for key in used[max(0, len(used) - spec.max_entries) :]}
        assert store.keys == sorted(model)
