"""A store in memory, which is rebuilt from its changelog at every start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from tidemark.stores.protocol import Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint


class MemoryStore:
    """Implements `Store` with sorted dictionaries."""

    def __init__(self) -> None:
        self._segments: dict[int, SortedDict[bytes, bytes]] = {}
        self._checkpoint: StoreCheckpoint | None = None

    @property
    def checkpoint(self) -> StoreCheckpoint | None:
        return self._checkpoint

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        held = self._segments.get(segment, {})
        return [held.get(key) for key in keys]

    def put_many(self, writes: Sequence[Writes], checkpoint: StoreCheckpoint, first_live_segment: int | None) -> None:
        for write in writes:
            if first_live_segment is not None and write.segment < first_live_segment:
                continue
            held = self._segments.setdefault(write.segment, SortedDict())
            for key, value in zip(write.keys, write.values, strict=True):
                if value is None:
                    held.pop(key, None)
                else:
                    held[key] = value
        self._checkpoint = checkpoint
        if first_live_segment is not None:
            for expired in [segment for segment in self._segments if segment < first_live_segment]:
                del self._segments[expired]

    def segments(self) -> list[int]:
        return sorted(self._segments)

    def items(self, segment: int) -> Iterator[tuple[bytes, bytes]]:
        yield from self.range(segment, b"", None)

    def range(self, segment: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        held = self._segments.get(segment)
        if held is not None:
            for key in held.irange(start, end, inclusive=(True, False)):
                yield key, held[key]

    def close(self) -> None:
        return
