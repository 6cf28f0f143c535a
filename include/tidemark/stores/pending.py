"""A store as a batch sees it: what is committed, under what the batch has changed so far. The record cache (row B10).

Nodes of a task read and write through it, so a node sees what another wrote before it in the same batch. Only the last
value of a key leaves it, once per commit, to the changelog and to the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from tidemark.stores.protocol import Store, Writes


class PendingStore:
    """Reads `store`, changes nothing in it. `writes()` is what the batch adds up to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[int, SortedDict[bytes, bytes | None]] = {}

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the keys' order; None where there is none."""
        pending = self._pending.get(segment)
        found = self._store.get_many(segment, keys)
        if not pending:
            return found
        return [pending.get(key, value) for key, value in zip(keys, found, strict=True)]

    def put_many(self, segment: int, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set values; None deletes. Of a key that stands twice the last counts."""
        self._pending.setdefault(segment, SortedDict()).update(zip(keys, values, strict=True))

    def range(self, segment: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `start` on, before `end` (None: to the last), ascending, with their values."""
        pending = self._pending.get(segment)
        stored = self._store.range(segment, start, end)
        if not pending:
            yield from stored
            return
        ours = list(pending.irange(start, end, inclusive=(True, False)))
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

    def segments(self) -> list[int]:
        """Segments that may hold something, ascending."""
        return sorted({*self._store.segments(), *self._pending})

    def writes(self) -> tuple[Writes, ...]:
        """The batch's changes by segment, each key once, in the keys' order."""
        return tuple(
            Writes(segment, list(pending.keys()), list(pending.values()))
            for segment, pending in sorted(self._pending.items())
            if pending
        )
