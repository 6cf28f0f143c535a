"""The rank of a task's folder among those of one machine, for the choice of the folder that a start continues with."""

from __future__ import annotations

from pathlib import Path

from tidemark.errors import StoreUnavailable, TaskCorrupted, UserCodeFailed
from tidemark.recovery.candidates import is_ahead
from tidemark.recovery.evidence import CommittedProgress
from tidemark.recovery.facts import TaskFacts
from tidemark.recovery.start_plan import unlogged_fault
from tidemark.restore.local_copies import read_store_checkpoint
from tidemark.restore.store_builder import StoreOpener
from tidemark.stores.directory import STORES_FOLDER, UNKNOWN_RANK, FolderRank, FolderState
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.values import generation_of, value_layouts, value_signature
from tidemark.topology.plan import StoreSpec, SubTopology


def rank_folder(
    opener: StoreOpener, subtopology: SubTopology, facts: TaskFacts, committed: CommittedProgress, folder: Path
) -> FolderRank:
    """Return how up to date the stores in a task's folder are, by their checkpoints.

    RocksDB stores are opened read-only. No process may have a custom store open, because only its own class can read it.
    The state is unknown if a store cannot be read, or if it is of another history than `committed`. Stores in memory and
    custom stores with a changelog are not judged, because they can be rebuilt; if there are no others, the state is unknown,
    too.
    """
    layouts = value_layouts(subtopology)
    are_level: list[bool] = []
    usable: set[str] = set()
    records = 0
    for spec in subtopology.stores:
        path = folder / STORES_FOLDER / spec.name
        if spec.in_memory or (spec.custom is not None and spec.is_logged):
            continue
        if not path.exists():
            are_level.append(False)
            continue
        try:
            checkpoint = read_store_checkpoint(path) if spec.custom is None else _custom_checkpoint(opener, path, spec)
        except (TaskCorrupted, StoreUnavailable, UserCodeFailed):
            return UNKNOWN_RANK
        if checkpoint is None:
            are_level.append(False)
            continue
        layout = value_signature(spec, layouts[spec.name])
        is_level = unlogged_fault(checkpoint, layout, committed, facts.record) is None
        are_level.append(is_level)
        if is_level:
            usable.add(spec.name)
        if generation_of(checkpoint.value_layout) < generation_of(layout):
            continue
        if (
            checkpoint.value_layout != layout
            or checkpoint.batch > committed.batch
            or is_ahead(checkpoint, committed)
            or _is_beyond_changelog(spec, facts, checkpoint.changelog_offset)
        ):
            return UNKNOWN_RANK
        records += checkpoint.changelog_offset
    if not are_level:
        return UNKNOWN_RANK
    unlogged_stores = sum(
        len(group) for group in subtopology.unlogged_groups if usable.issuperset(spec.name for spec in group)
    )
    return FolderRank(FolderState.LEVEL if all(are_level) else FolderState.BEHIND, unlogged_stores, records)


def _custom_checkpoint(opener: StoreOpener, path: Path, spec: StoreSpec) -> StoreCheckpoint | None:
    store = opener.open(path, spec)
    try:
        return store.checkpoint
    finally:
        store.close()


def _is_beyond_changelog(spec: StoreSpec, facts: TaskFacts, changelog_offset: int) -> bool:
    """Whether the store has read more than its changelog holds: it is of an earlier application of the same id."""
    return spec.is_logged and changelog_offset > facts.changelogs[spec.name].end
