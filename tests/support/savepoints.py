"""Stores with contents and folders of links, made by hand for tests of savepoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidemark.names import TaskId
from tidemark.savepoints.repository import SavepointRepository
from tidemark.savepoints.upload import CopyCount, LinkedSavepoint, copy_linked, link_task
from tidemark.stores.protocol import Writes
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.supervision.savepoint_ids import begun_ms
from tidemark.topology.plan import StoreKind, StoreSpec

APP = "app"
SPEC = StoreSpec("counts", StoreKind.WINDOW, 60_000, 10_000)
TASKS = (TaskId(0, 0), TaskId(0, 1))


def a_checkpoint(batch: int, app: str = APP) -> StoreCheckpoint:
    return StoreCheckpoint(app, "1", "counts", "3:n=count<i8", batch, batch * 10, {"t": batch * 100}, 7, batch * 3)


def open_store(folder: Path) -> RocksStore:
    return RocksStore(folder, write_buffer_bytes=1 << 20)


def put(store: RocksStore, batch: int, segments: Mapping[int, int], app: str = APP) -> None:
    """So many keys in each segment, their values naming the batch."""
    writes = [
        Writes(segment, [b"%06d" % key for key in range(keys)], [b"%d" % batch * 20] * keys)
        for segment, keys in segments.items()
    ]
    store.put_many(writes, a_checkpoint(batch, app), None)


def contents(store: RocksStore) -> dict[int, list[tuple[bytes, bytes]]]:
    return {segment: list(store.items(segment)) for segment in store.segments()}


def save(
    repository: SavepointRepository, stores: Mapping[TaskId, RocksStore], links: Path, savepoint_id: str
) -> CopyCount:
    """A whole savepoint of these stores."""
    repository.begin(savepoint_id, begun_ms(savepoint_id))
    folder = links / savepoint_id
    tasks = tuple(link_task(task, {SPEC: store}, folder) for task, store in stores.items())
    linked = LinkedSavepoint(savepoint_id, repository.application_id, "1", 5, folder, tasks)
    count = CopyCount(lambda: None)
    copy_linked(linked, repository, count)
    repository.complete(savepoint_id, "1", 5, list(stores))
    return count
