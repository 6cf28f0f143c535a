"""Disk that a restore needs: what it will build, and what it writes to compare that, whatever lies there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemark.names import TopicPartition
from tidemark.restore.plans import StoreRestore
from tidemark.start.evidence import SourceOfState
from tidemark.store_sizes import TopicBytes, folder_bytes

ASSUMED_BYTES_PER_OFFSET = 100
"""Of a changelog whose size no broker tells."""


@dataclass(frozen=True)
class Changelog:
    """A changelog partition and how many offsets it spans."""

    partition: TopicPartition
    low_offset: int
    end_offset: int

    def bytes_of(self, offsets: int, known: TopicBytes) -> int:
        """The part of so many offsets. An estimate: records are taken for equally long."""
        spanned = self.end_offset - self.low_offset
        whole = known.of.get(self.partition, spanned * ASSUMED_BYTES_PER_OFFSET)
        return 0 if spanned <= 0 else whole * min(max(0, offsets), spanned) // spanned


@dataclass(frozen=True)
class StoreRoom:
    """Bytes of one store: of its folder while it is built, and of what is written to compare it and removed behind that."""

    name: str
    to_build: int
    to_compare: int


def room_of(store: StoreRestore, changelog: Changelog, known: TopicBytes) -> StoreRoom:
    """What one store of a plan takes. Reads the size of the folder that it is copied from, where that is on this machine."""
    whole = changelog.bytes_of(changelog.end_offset - changelog.low_offset, known)
    if store.source in (SourceOfState.LOCAL, SourceOfState.STANDBY):
        # Hard links at first, but compaction may write every byte anew while the old folder is kept.
        copied = folder_bytes(Path(store.location))
    else:
        copied = store.bytes_to_copy
    if store.source in (SourceOfState.CHANGELOG, SourceOfState.SOURCE):
        built = whole
    else:
        built = copied + changelog.bytes_of(store.end_offset - store.from_offset, known)
    # The fold holds the changelog, and beside it the store.
    return StoreRoom(f"{store.task}/{store.store}", built, whole + built)


def room_of_both_states(name: str, changelog: Changelog, known: TopicBytes) -> StoreRoom:
    """What one store of a rewind takes, which builds the state of that time and the present one."""
    whole = changelog.bytes_of(changelog.end_offset - changelog.low_offset, known)
    return StoreRoom(name, 2 * whole, 2 * whole)


def bytes_needed(stores: Sequence[StoreRoom], side_by_side: int) -> int:
    """Of all stores, when so many are compared at a time: the largest ones, at worst."""
    comparing = sorted((store.to_compare for store in stores), reverse=True)[: max(1, side_by_side)]
    return sum(store.to_build for store in stores) + sum(comparing)


def existing_part(folder: Path) -> Path:
    """The folder or the nearest above it that exists: what is made in it lies on that file system."""
    return next(path for path in (folder, *folder.parents) if path.exists())
