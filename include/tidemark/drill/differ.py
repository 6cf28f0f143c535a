"""A rebuilt store beside the one of a savepoint: every key, every value, and the first that differ by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tidemark.errors import TaskCorrupted
from tidemark.restore.difference import pairs
from tidemark.restore.rows import StoreRow, rows_of
from tidemark.restore.when import told_time
from tidemark.stores.marker import Marker
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Store, Writes
from tidemark.topology.plan import StoreSpec, SubTopology

EXAMPLES = 5
"""Keys that are named, of each kind."""


class Kind(StrEnum):
    """How a key differs. Missing and extra are said of the rebuilt store."""

    ALTERED = "altered"
    MISSING = "missing"
    EXTRA = "extra"


@dataclass(frozen=True)
class KeyDifference:
    """One key that differs; None where a side does not hold it."""

    kind: Kind
    segment: int
    key: bytes
    saved: bytes | None
    rebuilt: bytes | None


@dataclass(frozen=True)
class Bounds:
    """Which segments count. None where nothing expires.

    What lies before `first_live` has expired, and either side may have dropped it. Keys before `first_kept` that are
    missing in the rebuilt store may have been deleted by the broker, which counts wall clock (rule 11).
    """

    first_live: int | None
    first_kept: int | None


@dataclass(frozen=True)
class Compared:
    """`keys`, and `size_bytes` of keys and values, are of the rebuilt store.

    `perhaps_deleted` are missing and counted nowhere else.
    """

    keys: int
    size_bytes: int
    altered: int
    missing: int
    extra: int
    perhaps_deleted: tuple[KeyDifference, ...]
    first: tuple[KeyDifference, ...]

    @property
    def different(self) -> int:
        """Of all kinds."""
        return self.altered + self.missing + self.extra

    def with_deletions(self, tombstoned: Collection[bytes]) -> Compared:
        """With those of `perhaps_deleted` as missing that a record deletes: the broker has not."""
        found = [one for one in self.perhaps_deleted if one.key in tombstoned]
        left = tuple(one for one in self.perhaps_deleted if one.key not in tombstoned)
        first = (*self.first, *found[:EXAMPLES])
        return replace(self, missing=self.missing + len(found), perhaps_deleted=left, first=first)


def compare(saved: Store, rebuilt: Store, bounds: Bounds) -> Compared:
    """Read both stores through once, side by side. Blocks; raises nothing of its own."""
    keys = size = 0
    counts = dict.fromkeys(Kind, 0)
    first: list[KeyDifference] = []
    deleted: list[KeyDifference] = []
    for segment in sorted({*saved.segments(), *rebuilt.segments()}):
        if bounds.first_live is not None and segment < bounds.first_live:
            continue
        may_be_deleted = bounds.first_kept is not None and segment < bounds.first_kept
        for key, before, after in pairs(saved.items(segment), rebuilt.items(segment)):
            if after is not None:
                keys += 1
                size += len(key) + len(after)
            if before == after:
                continue
            kind = Kind.EXTRA if before is None else Kind.MISSING if after is None else Kind.ALTERED
            difference = KeyDifference(kind, segment, key, before, after)
            if kind is Kind.MISSING and may_be_deleted:
                deleted.append(difference)
                continue
            counts[kind] += 1
            if counts[kind] <= EXAMPLES:
                first.append(difference)
    return Compared(
        keys, size, counts[Kind.ALTERED], counts[Kind.MISSING], counts[Kind.EXTRA], tuple(deleted), tuple(first)
    )


def told(subtopology: SubTopology, spec: StoreSpec, difference: KeyDifference) -> str:
    """One key that differs, for people: its key, its window, both values."""
    saved = _row(subtopology, spec, difference, difference.saved)
    rebuilt = _row(subtopology, spec, difference, difference.rebuilt)
    row = saved or rebuilt
    name = f"0x{difference.key.hex()}" if row is None else row.key
    if row is not None and row.window_start is not None:
        name += f" of {told_time(row.window_start)}"
    values = f"savepoint {_value(saved, difference.saved)}, rebuilt {_value(rebuilt, difference.rebuilt)}"
    return f"{difference.kind} {name}: {values}"


def _value(row: StoreRow | None, raw: bytes | None) -> str:
    if raw is None:
        return "nothing"
    return f"0x{raw.hex()}" if row is None else str(row.value)


def _row(subtopology: SubTopology, spec: StoreSpec, difference: KeyDifference, value: bytes | None) -> StoreRow | None:
    """None where there is no value, or where it is none of this store's."""
    if value is None:
        return None
    one = MemoryStore()
    one.put_many([Writes(difference.segment, [difference.key], [value])], _NOWHERE, None)
    try:
        found: Iterator[StoreRow] = rows_of(subtopology, spec, one)
        return next(found)
    except (TaskCorrupted, ValueError):
        return None


_NOWHERE = Marker("", "", "", "", -1, 0, {}, 0, 0)
