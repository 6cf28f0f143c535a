"""Verification of a savepoint: every file of every store is read and compared with its manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.errors import CopyUnusable
from tidemark.savepoints.repository import SavepointRepository


@dataclass(frozen=True)
class Verified:
    """The result of reading a savepoint back. Each fault is one line.

    A file that several stores share is read once, and its fault is listed for each.
    """

    savepoint_id: str
    tasks: int
    files: int
    bytes: int
    faults: tuple[str, ...]


def verify(
    repository: SavepointRepository, savepoint_id: str, tick: Callable[[int], None] = lambda _: None
) -> Verified:
    """Read everything. `tick` is called with the bytes of each chunk. Blocks.

    Raises `CopyUnusable` if the savepoint has no readable manifest, `SavepointFailed` if the location does not answer.
    """
    manifest = repository.manifest(savepoint_id)
    faults: list[str] = []
    seen: dict[str, str | None] = {}
    size = 0
    for task in manifest.tasks:
        try:
            found = repository.task(savepoint_id, task)
        except CopyUnusable as error:
            faults.append(str(error))
            continue
        for store in found.stores:
            for file in store.files:
                if file.sha256 not in seen:
                    size += file.size_bytes
                    seen[file.sha256] = None
                    try:
                        repository.fetch_file(file, None, tick)
                    except CopyUnusable as error:
                        seen[file.sha256] = str(error)
                if (fault := seen[file.sha256]) is not None:
                    faults.append(
                        f"{file.name} of store {store.store} of task {task}: {fault}; remove files/{file.sha256}, so that "
                        "the next savepoint copies it again"
                    )
    return Verified(savepoint_id, len(manifest.tasks), len(seen), size, tuple(faults))
