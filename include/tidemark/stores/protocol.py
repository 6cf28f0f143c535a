"""What a store must do. RocksDB and the in-memory store both do it; a custom one may.

A window store keeps its keys in segments of stream time, numbered `window_start // segment_ms`; a key-value store has
the one segment `WHOLE`. Everything is batched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemark.stores.marker import Marker

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
    def marker(self) -> Marker | None:
        """Where the contents stand; None in a new store."""

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the keys' order; None where there is none."""

    def put_many(self, writes: Sequence[Writes], marker: Marker, first_live_segment: int | None) -> None:
        """Write all, and the marker, atomically; then drop segments before `first_live_segment`."""

    def segments(self) -> list[int]:
        """Segments that exist, ascending."""

    def items(self, segment: int) -> Iterator[tuple[bytes, bytes]]:
        """Everything in one segment, in the keys' order."""

    def range(self, segment: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Keys of one segment from `start` on, before `end` (None: to the last), ascending, with their values."""

    def close(self) -> None:
        """Flush and release. May be called twice."""


def in_chunks(store: Store, segment: int, most: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """A segment's keys and values in the keys' order, at most so many at a time."""
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
