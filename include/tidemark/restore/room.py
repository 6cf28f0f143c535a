"""Disk that a restore needs: what it will build, and what it writes to compare that, whatever lies there already."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import PreflightFailed
from tidemark.names import TaskId, TopicPartition
from tidemark.restore.kit import RestoreKit
from tidemark.restore.plans import StoreRestore
from tidemark.start.evidence import SourceOfState
from tidemark.start.witnesses import TaskFacts
from tidemark.store_sizes import TopicBytes, folder_bytes, topic_bytes

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


def require_room(
    kit: RestoreKit,
    facts: Mapping[TaskId, TaskFacts],
    planned: Sequence[StoreRestore] | None,
    scratch: Sequence[Path] = (),
) -> None:
    """There must be room for what is built, on the file system that it is built on. Raises `PreflightFailed`.

    `planned` are the stores that a restore is yet to build; None is a rewind, which builds both states of every store, in the
    folders `scratch`, too. What lies there already says nothing of it: it may be gone. Blocks: the sizes of topics are asked
    for.
    """
    settings, witnesses = kit.settings, kit.witnesses
    changelogs = {
        (str(task), spec.name): Changelog(witnesses.changelog_of(task, spec), marks.low, marks.end)
        for task, found in facts.items()
        for spec in witnesses.logged_stores(task)
        if spec.source_topic is None
        for marks in [found.changelogs[spec.name]]
    }
    known = topic_bytes(sorted({changelog.partition.topic for changelog in changelogs.values()}), settings)
    if planned is None:
        stores = [room_of_both_states(f"{task}/{name}", log, known) for (task, name), log in changelogs.items()]
    else:
        # A store that there is not is refused when it is to be built.
        known_stores = (store for store in planned if (store.task, store.store) in changelogs)
        stores = [room_of(store, changelogs[store.task, store.store], known) for store in known_stores]
    needed = bytes_needed(stores, settings.restore_threads)
    for folder in (*scratch, settings.state_dir):
        free = shutil.disk_usage(existing_part(folder)).free
        if free < needed:
            raise PreflightFailed(
                f"about {needed} bytes are built and compared in {folder}, beside what lies there, and {free} are free: free "
                "its disk"
            )


def existing_part(folder: Path) -> Path:
    """The folder or the nearest above it that exists: what is made in it lies on that file system."""
    return next(path for path in (folder, *folder.parents) if path.exists())
