"""The record cache: a store as a batch sees it, with the batch's own changes on top of the committed values.

The nodes of a task read and write through it, so a node sees what another node has written before it in the same batch. Only
the last value of a key is passed on, once per commit, to the changelog and to the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sortedcontainers import SortedList

from tidemark.stores.protocol import Store, Writes

Undo = list[tuple[int, bytes, list[bytes | None]]]
"""For each put: segment, key, and a list with the value that the batch had put before, if any."""


@dataclass
class StoreReads:
    """The reads of a store in one batch. Keys that the batch itself has written are not looked up in the store."""

    get_calls: int = 0
    get_records: int = 0
    get_ns: int = 0
    range_calls: int = 0


class PendingStore:
    """Reads `store` and never changes it. `writes()` returns the combined changes of the batch; `measured` are its reads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[int, dict[bytes, bytes | None]] = {}
        # Aggregations write hundreds of thousands of keys and never scan them, so keys are sorted only for the first scan.
        self._ordered: dict[int, SortedList[bytes]] = {}
        self._reads: dict[bytes, None] = {}
        self.measured = StoreReads()

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the keys' order; None for a key that does not exist."""
        pending = self._pending.get(segment)
        if not pending:
            return self.get_committed_many(segment, keys)
        if all(key in pending for key in keys):
            return [pending[key] for key in keys]
        found = self.get_committed_many(segment, keys)
        return [pending.get(key, value) for key, value in zip(keys, found, strict=True)]

    def get_committed_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values from before the batch, in the keys' order; None for a key that did not exist."""
        measured, started_ns = self.measured, time.perf_counter_ns()
        found = self._store.get_many(segment, keys)
        measured.get_ns += time.perf_counter_ns() - started_ns
        measured.get_calls += 1
        measured.get_records += len(keys)
        return found

    def put_many(
        self, segment: int, keys: Sequence[bytes], values: Sequence[bytes | None], undo: Undo | None = None
    ) -> None:
        """Set values; None deletes. If a key occurs twice, its last value counts. Fills `undo` for `take_back`."""
        pending = self._pending.setdefault(segment, {})
        if undo is not None:
            undo += [(segment, key, [pending[key]] if key in pending else []) for key in keys]
        if (ordered := self._ordered.get(segment)) is not None:
            ordered.update({key for key in keys if key not in pending})
        pending.update(zip(keys, values, strict=True))

    def take_back(self, undo: Undo) -> None:
        """Undo everything that was put since `undo` was empty."""
        for segment, key, before in reversed(undo):
            self._ordered.pop(segment, None)
            if before:
                (self._pending[segment][key],) = before
            else:
                self._pending[segment].pop(key, None)

    def range(self, segment: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys from `start` to before `end` (None: to the last), ascending, with their values.

        If values are put while the iterator runs, keys that it knew at the start have the newest value, and new keys may be
        missed.
        """
        self.measured.range_calls += 1
        pending = self._pending.get(segment)
        stored = self._store.range(segment, start, end)
        if not pending:
            yield from stored
            return
        ours = list(self._in_order(segment).irange(start, end, inclusive=(True, False)))
        at = 0
        for key, value in stored:
            while at < len(ours) and ours[at] < key:
                if (newer := pending[ours[at]]) is not None:
                    yield ours[at], newer
                at += 1
            if at < len(ours) and ours[at] == key:
                if (newer := pending[key]) is not None:
                    yield key, newer
                at += 1
            else:
                yield key, value
        for key in ours[at:]:
            if (newer := pending[key]) is not None:
                yield key, newer

    def note_reads(self, keys: Iterable[bytes]) -> None:
        """Record that keys were used without being written, for a store that keeps its most recently used keys."""
        self._reads.update(dict.fromkeys(keys))

    def reads(self) -> list[bytes]:
        """Return the recorded keys, each once."""
        return list(self._reads)

    def segments(self) -> list[int]:
        """Return the numbers of the segments that may hold something, ascending."""
        return sorted({*self._store.segments(), *self._pending})

    def writes(self) -> tuple[Writes, ...]:
        """Return the batch's changes by segment, each key once, in the order in which the keys were first put."""
        return tuple(
            Writes(segment, list(pending.keys()), list(pending.values()))
            for segment, pending in sorted(self._pending.items())
            if pending
        )

    def _in_order(self, segment: int) -> SortedList[bytes]:
        if segment not in self._ordered:
            self._ordered[segment] = SortedList(self._pending[segment])
        return self._ordered[segment]
