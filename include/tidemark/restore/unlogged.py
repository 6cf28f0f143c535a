"""Stores without a changelog in a restore: carried over where they stand where Kafka stands, as nobody can rebuild them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemark.errors import SavepointFailed, TaskCorrupted
from tidemark.names import TaskId
from tidemark.restore.building import StoreOpener
from tidemark.start.evidence import Standing
from tidemark.stores.directory import folder_of
from tidemark.stores.marker import Marker
from tidemark.stores.rocksdb import opened
from tidemark.topology.plan import StoreSpec


def carry_over(
    opener: StoreOpener,
    task: TaskId,
    specs: Sequence[StoreSpec],
    standing: Standing,
    held: Sequence[Path],
    built: Path,
    say: Callable[[str], None],
) -> None:
    """Copy each store of a task in `specs` from the first folder in `held` that is level with `standing` to `built`.

    `held` and `built` are laid out as a holder's folder of the application; nobody has a store open. A store that is level
    nowhere begins empty, which `say` is told. May be repeated.
    """
    for spec in specs:
        target = folder_of(built, task, spec.name)
        sources = (folder_of(holder, task, spec.name) for holder in held)
        if not any(_is_taken(opener, source, target, spec, standing) for source in sources):
            say(
                f"store {task}/{spec.name} is not logged, and no folder here holds it where Kafka stands: it begins empty, "
                "what it held cannot be restored"
            )


def _is_taken(opener: StoreOpener, source: Path, target: Path, spec: StoreSpec, standing: Standing) -> bool:
    """Whether `target` is a copy of the store in `source` now; removed again where that is not level."""
    shutil.rmtree(target, ignore_errors=True)
    if not source.exists():
        return False
    try:
        marker = _copied(opener, source, target, spec)
    except (TaskCorrupted, SavepointFailed):
        marker = None
    if marker is not None and is_level(marker, standing):
        return True
    shutil.rmtree(target, ignore_errors=True)
    return False


def _copied(opener: StoreOpener, source: Path, target: Path, spec: StoreSpec) -> Marker | None:
    """Copy a store; its marker."""
    if spec.is_rocksdb:
        with opened(source) as store:
            store.checkpoint(target)
            return store.marker
    shutil.copytree(source, target)
    copy = opener.open(target, spec)
    try:
        return copy.marker
    finally:
        copy.close()


def is_level(marker: Marker, standing: Standing) -> bool:
    """Whether a store holds the last batch that was committed, and nothing else."""
    # The batch tells two states of the same offsets apart: a tick commits without source offsets.
    return marker.batch == standing.batch and dict(marker.source_offsets) == dict(standing.next_offsets)
