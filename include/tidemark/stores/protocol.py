"""The protocol of a state store, implemented by the RocksDB store, the in-memory store and custom stores.

A window store keeps its keys in segments of stream time, numbered `window_start // segment_ms`. A key-value store has only
the segment `WHOLE`. All methods work on batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tidemark.stores.store_checkpoint import StoreCheckpoint

WHOLE = 0
"""The only segment of a key-value store."""


@dataclass(frozen=True)
class Writes:
    """New values of one segment; None deletes the key."""

    segment: int
    keys: Sequence[bytes]
    values: Sequence[bytes | None]


class Store(Protocol):
    """One state store of one task."""

    @property
    def checkpoint(self) -> StoreCheckpoint | None:
        """The position of the contents in the history of the task; None in a new store."""

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the keys' order; None for a key that does not exist."""

    def put_many(self, writes: Sequence[Writes], checkpoint: StoreCheckpoint, first_live_segment: int | None) -> None:
        """Write everything and the checkpoint atomically, then drop the segments before `first_live_segment`."""

    def segments(self) -> list[int]:
        """Return the numbers of the existing segments, ascending."""

    def items(self, segment: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys and values of one segment, in the keys' order."""

    def range(self, segment: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys of one segment from `start` to before `end` (None: to the last), ascending, with their values."""

    def close(self) -> None:
        """Flush and release the store. May be called twice."""


class StoreSnapshot(Protocol):
    """The contents of a store after one `put_many`, unchanged while the store is written. For one thread.

    The store's own thread never waits for a reader longer than for one step of it. All methods raise `SnapshotReleased` once
    the snapshot was released, by its reader or because the store was closed.
    """

    @property
    def checkpoint(self) -> StoreCheckpoint | None:
        """The checkpoint that was written with the contents; None in a new store."""

    @property
    def approximate_count(self) -> int:
        """The approximate number of keys."""

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the keys' order; None for a key that does not exist."""

    def segments(self) -> list[int]:
        """Return the numbers of the existing segments, ascending."""

    def range(self, segment: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys of one segment from `start` to before `end` (None: to the last), ascending, with their values."""

    def release(self) -> None:
        """Release the contents. May be called twice, and by any thread."""


@runtime_checkable
class SnapshotStore(Protocol):
    """A store that other threads can read while its task writes it. A custom store without this cannot be queried."""

    def snapshot(self) -> StoreSnapshot:
        """Return the contents after the last `put_many`. Waits for a `put_many` that runs. Raises `SnapshotReleased`."""


@dataclass(frozen=True)
class StoreFigures:
    """The size of a store. `properties` are RocksDB's, by name, summed over column families; empty for other stores."""

    keys: int
    properties: Mapping[str, int]


@runtime_checkable
class MeasuredStore(Protocol):
    """A store whose size can be asked for. A custom store without this has no such metrics."""

    def figures(self) -> StoreFigures | None:
        """Return the present size; None once the store is closed. Any thread may call it. Waits for a `put_many` that runs."""


def in_chunks(store: Store, segment: int, most: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield a segment's keys and values in the keys' order, at most `most` at a time."""
    keys: list[bytes] = []
    values: list[bytes] = []
    for key, value in store.items(segment):
        keys.append(key)
        values.append(value)
        if len(keys) == most:
            yield keys, values
            keys, values = [], []
    if keys:
        yield keys, values
