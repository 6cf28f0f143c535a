"""Comparison of a rebuilt store with that of a savepoint: every key, every value, with examples of differing keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tidemark.errors import TaskCorrupted
from tidemark.operations.rewind.store_diff import pairs
from tidemark.operations.times import format_time
from tidemark.restore.bounds import Absence, EvidenceBounds, Figures
from tidemark.store_rows import StoreRow, rows_of
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Store, Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.plan import StoreSpec, SubTopology

EXAMPLES = 5
"""The number of keys that are named, of each kind."""


class DifferenceKind(StrEnum):
    """The kind of difference of a key. MISSING and EXTRA refer to the rebuilt store."""

    ALTERED = "altered"
    MISSING = "missing"
    EXTRA = "extra"


@dataclass(frozen=True)
class KeyDifference:
    """One key that differs; a value is None if that side does not hold the key."""

    kind: DifferenceKind
    segment: int
    key: bytes
    saved: bytes | None
    rebuilt: bytes | None


@dataclass(frozen=True)
class Compared:
    """The result of a comparison. Every key that either side holds is in `compared` or in `left_out`.

    Those that differ are among the compared ones. `keys`, and `size_bytes` of keys and values, are those of the rebuilt
    store. Left out are `expired` keys and those missing ones whose records may be deleted: by age (`aged`), or with a
    beginning whose deletion no age explains (`deleted`).
    """

    keys: int
    size_bytes: int
    compared: int
    altered: int
    missing: int
    extra: int
    expired: int
    aged: int
    deleted: int
    is_whole: bool
    first: tuple[KeyDifference, ...]

    @property
    def different(self) -> int:
        """The differing keys of all kinds."""
        return self.altered + self.missing + self.extra

    @property
    def left_out(self) -> int:
        """The keys left out for any reason."""
        return self.expired + self.aged + self.deleted

    @property
    def figures(self) -> Figures:
        """The figures as every verification has them."""
        return Figures(self.compared, self.left_out, self.different, self.deleted, self.is_whole)


def compare(
    saved: Store, rebuilt: Store, bounds: EvidenceBounds, tombstoned: Collection[bytes] = frozenset()
) -> Compared:
    """Read both stores once, side by side, and compare them. Blocks; raises no errors of its own.

    A missing key in `tombstoned` is deleted by a record that still exists, so the broker has not deleted it.
    """
    keys = size = compared = expired = 0
    counts = dict.fromkeys(DifferenceKind, 0)
    absent = dict.fromkeys(Absence, 0)
    first: list[KeyDifference] = []
    for segment in sorted({*saved.segments(), *rebuilt.segments()}):
        has_expired, absence = bounds.has_expired(segment), bounds.absence(segment)
        for key, before, after in pairs(saved.items(segment), rebuilt.items(segment)):
            if after is not None:
                keys += 1
                size += len(key) + len(after)
            if has_expired:
                expired += 1
                continue
            if after is None and absence is not Absence.DIFFERENCE and key not in tombstoned:
                absent[absence] += 1
                continue
            compared += 1
            if before == after:
                continue
            kind = (
                DifferenceKind.EXTRA
                if before is None
                else DifferenceKind.MISSING
                if after is None
                else DifferenceKind.ALTERED
            )
            counts[kind] += 1
            if counts[kind] <= EXAMPLES:
                first.append(KeyDifference(kind, segment, key, before, after))
    return Compared(
        keys=keys,
        size_bytes=size,
        compared=compared,
        altered=counts[DifferenceKind.ALTERED],
        missing=counts[DifferenceKind.MISSING],
        extra=counts[DifferenceKind.EXTRA],
        expired=expired,
        aged=absent[Absence.AGED],
        deleted=absent[Absence.DELETED],
        is_whole=bounds.is_whole,
        first=tuple(first),
    )


def summary(subtopology: SubTopology, spec: StoreSpec, difference: KeyDifference) -> str:
    """Format one differing key: its key, its window, both values."""
    saved = _row(subtopology, spec, difference, difference.saved)
    rebuilt = _row(subtopology, spec, difference, difference.rebuilt)
    row = saved or rebuilt
    name = f"0x{difference.key.hex()}" if row is None else row.key
    if row is not None and row.window_start is not None:
        name += f" of {format_time(row.window_start)}"
    values = f"savepoint {_value(saved, difference.saved)}, rebuilt {_value(rebuilt, difference.rebuilt)}"
    return f"{difference.kind} {name}: {values}"


def _value(row: StoreRow | None, raw: bytes | None) -> str:
    if raw is None:
        return "nothing"
    return f"0x{raw.hex()}" if row is None else str(row.value)


def _row(subtopology: SubTopology, spec: StoreSpec, difference: KeyDifference, value: bytes | None) -> StoreRow | None:
    """Decode a value. Returns None if there is no value, or if it does not belong to this store."""
    if value is None:
        return None
    one = MemoryStore()
    one.put_many([Writes(difference.segment, [difference.key], [value])], _NOWHERE, None)
    try:
        found: Iterator[StoreRow] = rows_of(subtopology, spec, one)
        return next(found)
    except (TaskCorrupted, ValueError):
        return None


_NOWHERE = StoreCheckpoint("", "", "", "", -1, 0, {}, 0, 0)
