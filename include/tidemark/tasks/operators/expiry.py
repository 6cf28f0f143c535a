"""TTL and LRU of a key-value store: at the end of a batch old keys are deleted, from the store and its changelog.

The order of the keys is kept in a second store (`topology.stores.with_order`), logged like the first, so that a restored task
expires the same keys at the same time. Its records are these, with all numbers eight bytes big-endian:

    0 time key     -> nothing               by the stream time at which the key was last written, if there is a TTL
    1 use key      -> nothing               by the number of the batch that last used it, if there is a bound
    2 key          -> time use              the values above of one key
    3              -> use entries           the last batch's number and the number of keys, if there is a bound

All keys of one batch were used at the same time; ties are ordered by the keys' bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.tasks.operator import BatchTime
from tidemark.topology.plan import StoreSpec

_BY_TIME, _BY_USE, _BY_KEY, _COUNTS = b"\0", b"\1", b"\2", b"\3"
_PAIR = struct.Struct(">qQ")
_TIME = struct.Struct(">q")
_PREFIX_BYTES = 9


def expire(spec: StoreSpec, pending: PendingStore, order: PendingStore, at: BatchTime) -> None:
    """Delete from `pending` keys that are too old or too many. Call it once per batch or tick, after the nodes.

    TTL deletes keys that were not written for more than `ttl_ms` of stream time; a key's time is the stream time at the end of
    the batch that wrote it. LRU deletes the least recently used keys beyond `max_entries`. A write is a use, and so is a read
    that was noted (`PendingStore.note_reads`; processors do that). A key that was in the store before it had a TTL or bound is
    not in the order until it is written.
    """
    if not spec.has_order:
        return
    book = _Book(spec, order)
    written = {key: value for writes in pending.writes() for key, value in zip(writes.keys, writes.values, strict=True)}
    book.note(written, pending.reads() if spec.max_entries is not None else [], at.after_ms)
    gone = list(book.expired(at.after_ms))
    book.forget(gone)
    evicted = list(book.least_used())
    book.forget(evicted)
    gone += evicted
    pending.put_many(WHOLE, gone, [None] * len(gone))
    book.close()


@dataclass
class _Book:
    """The order store during one batch."""

    spec: StoreSpec
    order: PendingStore
    use: int = field(init=False)
    entries: int = field(init=False)

    def __post_init__(self) -> None:
        (counts,) = self.order.get_many(WHOLE, [_COUNTS])
        self.use, self.entries = (0, 0) if counts is None else struct.unpack(">QQ", counts)
        self._opened = (self.use, self.entries)

    def note(self, written: dict[bytes, bytes | None], reads: list[bytes], now_ms: int) -> None:
        """Record the keys that the batch wrote (None: deleted), and the keys that it only read."""
        self.forget([key for key, value in written.items() if value is None])
        only_read = [key for key in reads if key not in written]
        live = [key for key, value in written.items() if value is not None]
        if not live and not only_read:
            return
        # A store with only a TTL needs no batch numbers: then a key that is written again at the same time is not moved.
        self.use += self.spec.max_entries is not None
        old = self._held(live + only_read)
        for key in live:
            # Before the first record there is no stream time; a key that is written then is as old as the epoch.
            self._move(key, old[key], (max(now_ms, 0), self.use))
        for key in only_read:
            if (held := old[key]) is not None:
                self._move(key, held, (held[0], self.use))

    def expired(self, now_ms: int) -> Iterator[bytes]:
        """Yield the keys past their TTL, oldest first."""
        if self.spec.ttl_ms is None or now_ms <= self.spec.ttl_ms:
            return
        # Written at now - ttl is not yet *more* than the TTL ago.
        end = _BY_TIME + _TIME.pack(now_ms - self.spec.ttl_ms)
        yield from (key[_PREFIX_BYTES:] for key, _ in self.order.range(WHOLE, _BY_TIME, end))

    def least_used(self) -> Iterator[bytes]:
        """Yield the least recently used keys, as many as exceed the bound."""
        surplus = 0 if self.spec.max_entries is None else self.entries - self.spec.max_entries
        if surplus <= 0:
            return
        for key, _ in self.order.range(WHOLE, _BY_USE, _BY_KEY):
            yield key[_PREFIX_BYTES:]
            surplus -= 1
            if surplus == 0:
                return

    def forget(self, keys: list[bytes]) -> None:
        """Remove keys from the order."""
        for key, held in self._held(keys).items():
            if held is not None:
                self._move(key, held, None)

    def close(self) -> None:
        """Write the counts, if they changed."""
        if (self.use, self.entries) != self._opened:
            self.order.put_many(WHOLE, [_COUNTS], [struct.pack(">QQ", self.use, self.entries)])

    def _held(self, keys: list[bytes]) -> dict[bytes, tuple[int, int] | None]:
        found = self.order.get_many(WHOLE, [_BY_KEY + key for key in keys])
        return {k: None if v is None else _PAIR.unpack(v) for k, v in zip(keys, found, strict=True)}

    def _move(self, key: bytes, old: tuple[int, int] | None, new: tuple[int, int] | None) -> None:
        if old == new:
            return
        changes: dict[bytes, bytes | None] = {}
        if old is not None:
            changes |= dict.fromkeys(self._indexes(key, old))
        if new is not None:
            changes |= dict.fromkeys(self._indexes(key, new), b"")
        changes[_BY_KEY + key] = None if new is None else _PAIR.pack(*new)
        self.order.put_many(WHOLE, list(changes), list(changes.values()))
        if self.spec.max_entries is not None:
            self.entries += (new is not None) - (old is not None)

    def _indexes(self, key: bytes, at: tuple[int, int]) -> list[bytes]:
        indexes = []
        if self.spec.ttl_ms is not None:
            indexes.append(_BY_TIME + _TIME.pack(at[0]) + key)
        if self.spec.max_entries is not None:
            indexes.append(_BY_USE + at[1].to_bytes(8, "big") + key)
        return indexes
