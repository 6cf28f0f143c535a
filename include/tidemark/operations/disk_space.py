"""The disk space that a restore needs for the stores that it builds and for comparing them."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import PreflightFailed
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.facts import TaskFacts, Witnesses
from tidemark.recovery.restore_plan import StoreRestore
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.settings import Settings
from tidemark.store_sizes import TopicBytes, folder_bytes, topic_bytes
from tidemark.topology.plan import StoreSpec

ASSUMED_BYTES_PER_OFFSET = 100
"""Assumed for a changelog whose size no broker reports."""


@dataclass(frozen=True)
class Changelog:
    """A changelog partition and its offsets."""

    partition: TopicPartition
    low_offset: int
    end_offset: int

    def bytes_of(self, offsets: int, known: TopicBytes) -> int:
        """Return the bytes of so many offsets. This is an estimate: all records are assumed to be equally long."""
        spanned = self.end_offset - self.low_offset
        whole = known.of.get(self.partition, spanned * ASSUMED_BYTES_PER_OFFSET)
        return 0 if spanned <= 0 else whole * min(max(0, offsets), spanned) // spanned


@dataclass(frozen=True)
class StoreRoom:
    """The bytes that one store needs: for its folder, and for the comparison, whose files are removed afterwards."""

    name: str
    to_build: int
    to_compare: int


def room_of(store: StoreRestore, changelog: Changelog, known: TopicBytes) -> StoreRoom:
    """Return the space that one store of a plan needs. Reads the size of a local folder that it is copied from."""
    whole = changelog.bytes_of(changelog.end_offset - changelog.low_offset, known)
    if store.source in (SourceOfState.LOCAL, SourceOfState.STANDBY):
        # These are hard links at first, but compaction may rewrite every byte while the old folder is kept.
        copied = folder_bytes(Path(store.location))
    else:
        copied = store.bytes_to_copy
    if store.source in (SourceOfState.CHANGELOG, SourceOfState.SOURCE):
        built = whole
    else:
        built = copied + changelog.bytes_of(store.end_offset - store.from_offset, known)
    # The comparison's database holds the changelog and the store.
    return StoreRoom(f"{store.task}/{store.store}", built, whole + built)


def room_of_both_states(name: str, changelog: Changelog, known: TopicBytes) -> StoreRoom:
    """Return the space that one store of a rewind needs, which builds the state of that time and the present one."""
    whole = changelog.bytes_of(changelog.end_offset - changelog.low_offset, known)
    return StoreRoom(name, 2 * whole, 2 * whole)


def bytes_needed(stores: Sequence[StoreRoom], side_by_side: int) -> int:
    """Return the bytes for all stores, if `side_by_side` are compared at a time: in the worst case, the largest ones."""
    comparing = sorted((store.to_compare for store in stores), reverse=True)[: max(1, side_by_side)]
    return sum(store.to_build for store in stores) + sum(comparing)


def bytes_to_upgrade(copied: Sequence[StoreRoom], emptied: Sequence[StoreRoom]) -> int:
    """Return the bytes for an upgrade, which builds and compares one store at a time.

    A copied store is also written in its new form, and both folders stay. An emptied one is removed before the next is built.
    """
    kept = sum(2 * store.to_build for store in copied)
    passing = [store.to_compare for store in copied] + [store.to_build + store.to_compare for store in emptied]
    return kept + max(passing, default=0)


def bytes_to_drill(saved_bytes: int, changelog: Changelog, known: TopicBytes) -> int:
    """Return the bytes for the drill of one store, which has `saved_bytes` in the savepoint.

    The store that is built from the whole changelog is not compacted, so it is assumed to be as large as the changelog.
    Beside it are the savepoint's store and the one that is built from an older savepoint.
    """
    return changelog.bytes_of(changelog.end_offset - changelog.low_offset, known) + 2 * saved_bytes


def require_room(
    witnesses: Witnesses,
    facts: Mapping[TaskId, TaskFacts],
    planned: Sequence[StoreRestore] | None,
    scratch: Sequence[Path] = (),
) -> None:
    """Check that the file system has room for what is built. Raises `PreflightFailed`. Blocks: reads the sizes of topics.

    `planned` are the stores that a restore has yet to build. None means a rewind, which builds both states of every
    store, also in the folders `scratch`. Files that are there already are not deducted: they may be gone by then.
    """
    settings = witnesses.settings
    changelogs = _changelogs(witnesses, facts)
    known = _sizes(changelogs.values(), settings)
    if planned is None:
        stores = [room_of_both_states(f"{task}/{name}", log, known) for (task, name), log in changelogs.items()]
    else:
        # A store that does not exist is refused when it is to be built.
        known_stores = (store for store in planned if (store.task, store.store) in changelogs)
        stores = [room_of(store, changelogs[store.task, store.store], known) for store in known_stores]
    _require(bytes_needed(stores, settings.restore_threads), (*scratch, settings.state_dir))


def require_room_to_build(
    witnesses: Witnesses, facts: Mapping[TaskId, TaskFacts], folder: Path, stores: Collection[str]
) -> None:
    """Check that `folder` has room for one copy of each of these stores and for its comparison. Raises `PreflightFailed`.

    A copy is assumed to be as large as the store's changelog. Stores without a changelog of their own are left out. Blocks:
    reads the sizes of topics.
    """
    changelogs = {place: log for place, log in _changelogs(witnesses, facts).items() if place[1] in stores}
    known = _sizes(changelogs.values(), witnesses.settings)
    rooms = []
    for (task, name), log in changelogs.items():
        whole = log.bytes_of(log.end_offset - log.low_offset, known)
        rooms.append(StoreRoom(f"{task}/{name}", whole, 2 * whole))
    _require(bytes_needed(rooms, witnesses.settings.restore_threads), [folder])


def require_room_to_drill(
    witnesses: Witnesses,
    facts: Mapping[TaskId, TaskFacts],
    folder: Path,
    saved_bytes: Mapping[tuple[TaskId, str], int],
) -> None:
    """Check that `folder` has room for a drill of these stores, see `bytes_to_drill`. Raises `PreflightFailed`.

    `saved_bytes` are the bytes in the savepoint, by task and store. Blocks: reads the sizes of topics.
    """
    read = {
        (task, spec.name): changelog
        for task, spec, changelog in _rebuilt_from(witnesses, facts)
        if (task, spec.name) in saved_bytes
    }
    known = _sizes(read.values(), witnesses.settings)
    _require(sum(bytes_to_drill(saved_bytes[name], changelog, known) for name, changelog in read.items()), [folder])


def require_room_to_upgrade(
    witnesses: Witnesses,
    facts: Mapping[TaskId, TaskFacts],
    folder: Path,
    copied: Sequence[StoreRestore],
    emptied: Sequence[StoreRestore],
) -> None:
    """Check that `folder` has room for what an upgrade builds, see `bytes_to_upgrade`. Raises `PreflightFailed`.

    Blocks: reads the sizes of topics and of local folders.
    """
    changelogs = _changelogs(witnesses, facts)
    known = _sizes([changelogs[store.task, store.store] for store in (*copied, *emptied)], witnesses.settings)
    of_copied, of_emptied = (
        [room_of(store, changelogs[store.task, store.store], known) for store in stores] for stores in (copied, emptied)
    )
    _require(bytes_to_upgrade(of_copied, of_emptied), [folder])


def _changelogs(witnesses: Witnesses, facts: Mapping[TaskId, TaskFacts]) -> dict[tuple[str, str], Changelog]:
    """Return the changelogs of all stores that have one of their own, by task and store."""
    return {
        (str(task), spec.name): changelog
        for task, spec, changelog in _rebuilt_from(witnesses, facts)
        if spec.source_topic is None
    }


def _rebuilt_from(
    witnesses: Witnesses, facts: Mapping[TaskId, TaskFacts]
) -> Iterator[tuple[TaskId, StoreSpec, Changelog]]:
    """Yield each logged store with what it is rebuilt from: a changelog of its own, or a source topic."""
    for task, found in facts.items():
        for spec in witnesses.logged_stores(task):
            marks = found.changelogs[spec.name]
            yield task, spec, Changelog(witnesses.changelog_of(task, spec), marks.low, marks.end)


def _sizes(changelogs: Iterable[Changelog], settings: Settings) -> TopicBytes:
    return topic_bytes(sorted({changelog.partition.topic for changelog in changelogs}), settings)


def _require(needed: int, folders: Iterable[Path]) -> None:
    for folder in folders:
        free = shutil.disk_usage(existing_part(folder)).free
        if free < needed:
            raise PreflightFailed(
                f"about {needed} bytes are needed in {folder} to build and compare the state, but {free} are free: free "
                "disk space"
            )


def existing_part(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists, which is on the same file system."""
    return next(path for path in (folder, *folder.parents) if path.exists())
