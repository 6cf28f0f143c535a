"""A store in memory, which is rebuilt from its changelog at every start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from sortedcontainers import SortedDict

from tidemark.errors import SnapshotReleased
from tidemark.stores.protocol import StoreFigures, Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint

_STEP_KEYS = 256
"""Keys that a snapshot reads in one step, for which a writer may wait."""


class MemoryStore:
    """Implements `Store` with sorted dictionaries. Used by one thread, except `snapshot` and `figures`."""

    def __init__(self) -> None:
        self._segments: dict[int, SortedDict[bytes, bytes]] = {}
        self._checkpoint: StoreCheckpoint | None = None
        # Held while the contents change, and by snapshots for each step.
        self._changing = threading.Lock()
        self._snapshots: set[MemorySnapshot] = set()

    @property
    def checkpoint(self) -> StoreCheckpoint | None:
        return self._checkpoint

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        held = self._segments.get(segment, {})
        return [held.get(key) for key in keys]

    def put_many(self, writes: Sequence[Writes], checkpoint: StoreCheckpoint, first_live_segment: int | None) -> None:
        with self._changing:
            for write in writes:
                if first_live_segment is not None and write.segment < first_live_segment:
                    continue
                held = self._segments.setdefault(write.segment, SortedDict())
                for snapshot in self._snapshots:
                    snapshot.keep(write.segment, write.keys, held)
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

    def snapshot(self) -> MemorySnapshot:
        """Return the contents after the last `put_many`; see `SnapshotStore`."""
        with self._changing:
            snapshot = MemorySnapshot(self._segments, self._checkpoint, self._changing, self._snapshots.discard)
            self._snapshots.add(snapshot)
        return snapshot

    def figures(self) -> StoreFigures:
        """Return the number of keys; see `MeasuredStore`."""
        with self._changing:
            return StoreFigures(sum(map(len, self._segments.values())), {})

    def close(self) -> None:
        for snapshot in list(self._snapshots):
            snapshot.release()


class MemorySnapshot:
    """Implements `StoreSnapshot`: the store's present contents, and the earlier values of what has changed since."""

    def __init__(
        self,
        segments: Mapping[int, SortedDict[bytes, bytes]],
        checkpoint: StoreCheckpoint | None,
        changing: threading.Lock,
        on_release: Callable[[MemorySnapshot], None],
    ) -> None:
        """`changing` is the store's lock, which the caller holds. A segment that the store drops later is kept here."""
        self._segments = dict(segments)
        self._before: dict[int, SortedDict[bytes, bytes | None]] = {segment: SortedDict() for segment in segments}
        self.checkpoint = checkpoint
        self.approximate_count = sum(map(len, segments.values()))
        self._changing = changing
        self._on_release = on_release
        self._is_released = False

    def keep(self, segment: int, keys: Sequence[bytes], held: Mapping[bytes, bytes]) -> None:
        """Keep the values that `keys` had, before the store writes them. The store holds the lock."""
        before = self._before.get(segment)
        if before is not None:
            for key in keys:
                before.setdefault(key, held.get(key))

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._changing:
            self._require_open()
            held, before = self._segments.get(segment, {}), self._before.get(segment, {})
            return [before[key] if key in before else held.get(key) for key in keys]

    def segments(self) -> list[int]:
        with self._changing:
            self._require_open()
            return sorted(self._segments)

    def range(self, segment: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        while True:
            with self._changing:
                self._require_open()
                found, start_of_next = self._step(segment, start, end)
            yield from found
            if start_of_next is None:
                return
            start = start_of_next

    def _step(self, segment: int, start: bytes, end: bytes | None) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return some items from `start`, and where the next step begins; None if there is nothing more."""
        held = self._segments.get(segment)
        if held is None:
            return [], None
        present = list(islice(held.irange(start, end, inclusive=(True, False)), _STEP_KEYS))
        start_of_next = present[-1] + b"\0" if len(present) == _STEP_KEYS else None
        until = end if start_of_next is None else start_of_next
        rows = {key: held[key] for key in present}
        before = self._before[segment]
        for key in before.irange(start, until, inclusive=(True, False)):
            value = before[key]
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        return sorted(rows.items()), start_of_next

    def _require_open(self) -> None:
        if self._is_released:
            raise SnapshotReleased("the store was closed while it was read, because its task moved: ask again")

    def release(self) -> None:
        with self._changing:
            if not self._is_released:
                self._is_released = True
                self._segments.clear()
                self._before.clear()
                self._on_release(self)
