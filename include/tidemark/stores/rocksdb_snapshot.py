"""A snapshot of a RocksDB store: one iterator per column family, because an iterator sees the database as it was created.

`rocksdict` has a class `Snapshot`, but in version 0.3.29 its iterators see later writes; only its `[]` does not.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rocksdict import Rdict, RdictIter

from tidemark.errors import SnapshotReleased, TaskCorrupted
from tidemark.stores.store_checkpoint import StoreCheckpoint

APPROXIMATE_KEYS = "rocksdb.estimate-num-keys"
_DAMAGED = ("Corruption", f"IO error: {os.strerror(errno.ENOENT)}")
"""The beginnings of messages about files that are damaged or missing."""
_UNREADABLE = (os.strerror(errno.EIO), os.strerror(errno.EUCLEAN))
"""The ends of messages about a disk that cannot read what was written."""
_STEP_KEYS = 256
_STEP_BYTES = 1 << 20
"""Keys, and bytes of keys and values, after which a step ends. `release` waits for one step, which is in memory as a whole."""


class RocksSnapshot:
    """Implements `StoreSnapshot`. Made by `RocksStore.snapshot`."""

    def __init__(
        self,
        families: Mapping[int, Rdict],
        checkpoint: StoreCheckpoint | None,
        on_release: Callable[[RocksSnapshot], None],
    ) -> None:
        """Open an iterator of each segment's family, while nothing is written. `on_release` is called once."""
        self._iterators = {segment: family.iter() for segment, family in families.items()}
        # An iterator of a dropped family without any handle makes the process crash.
        self._families = dict(families)
        self.checkpoint = checkpoint
        self._on_release = on_release
        self._reading = threading.Lock()
        self._is_released = False

    @property
    def approximate_count(self) -> int:
        # Computed on demand, because it would take a tenth of the time of a read of one key.
        with self._reading, intact_bytes():
            self._require_open()
            return sum(family.property_int_value(APPROXIMATE_KEYS) or 0 for family in self._families.values())

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._reading, intact_bytes():
            iterator = self._of(segment)
            return [None] * len(keys) if iterator is None else [_value_at(iterator, key) for key in keys]

    def segments(self) -> list[int]:
        with self._reading:
            self._require_open()
            return sorted(self._iterators)

    def range(self, segment: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        while True:
            found, is_last = self._step(segment, start, end)
            yield from found
            if is_last:
                return
            start = found[-1][0] + b"\0"

    def _step(self, segment: int, start: bytes, end: bytes | None) -> tuple[list[tuple[bytes, bytes]], bool]:
        # Not part of `range`: a generator that waits for its reader would keep the iterator, and with it the database, open.
        with self._reading, intact_bytes():
            iterator = self._of(segment)
            return ([], True) if iterator is None else _items_from(iterator, start, end)

    def _of(self, segment: int) -> RdictIter | None:
        self._require_open()
        return self._iterators.get(segment)

    def _require_open(self) -> None:
        if self._is_released:
            raise SnapshotReleased("the store was closed while it was read, because its task moved: ask again")

    def release(self) -> None:
        with self._reading:
            if self._is_released:
                return
            self._is_released = True
            # An iterator keeps the database open, and so its folder locked.
            self._iterators.clear()
            self._families.clear()
        self._on_release(self)


def shows_damage(error: Exception) -> bool:
    """Return whether an error of RocksDB says that bytes are damaged or unreadable, or a file is missing."""
    return str(error).startswith(_DAMAGED) or str(error).endswith(_UNREADABLE)


@contextmanager
def intact_bytes(store: str = "the store") -> Iterator[None]:
    """Raise `TaskCorrupted`, which names `store`, for an error of RocksDB about damaged contents."""
    try:
        yield
    except Exception as error:
        if not shows_damage(error):
            raise
        raise TaskCorrupted(f"{store} cannot be read: {error}") from error


def _value_at(iterator: RdictIter, key: bytes) -> bytes | None:
    iterator.seek(key)
    if not iterator.valid():
        # An iterator that met an error is not valid either: that is no answer about the key.
        iterator.status()
        return None
    if iterator.key() != key:
        return None
    value: bytes = iterator.value()
    return value


def _items_from(iterator: RdictIter, start: bytes, end: bytes | None) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Return the items of one step from `start` to before `end`, and whether there are no more."""
    found: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    iterator.seek(start)
    while iterator.valid():
        key: bytes = iterator.key()
        if end is not None and key >= end:
            break
        value: bytes = iterator.value()
        found.append((key, value))
        size_bytes += len(key) + len(value)
        if len(found) == _STEP_KEYS or size_bytes >= _STEP_BYTES:
            return found, False
        iterator.next()
    # An iterator that met an error is not valid either.
    iterator.status()
    return found, True
