"""The manifests of a savepoint: one per task, and one over all tasks, which is written last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.errors import CopyUnusable, TaskCorrupted
from tidemark.names import TaskId, is_legal_name
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.plan import StoreSpec

MANIFEST_VERSION = 1


@dataclass(frozen=True)
class SavedFile:
    """One file of a store's RocksDB folder. `sha256` is hexadecimal, and the file's name in the repository."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class SavedStore:
    """One store as it was at `checkpoint`."""

    store: str
    checkpoint: StoreCheckpoint
    files: tuple[SavedFile, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all its files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class LeftOut:
    """A store that the savepoint does not contain, and why."""

    store: str
    reason: str


@dataclass(frozen=True)
class TaskManifest:
    """One task's part of a savepoint, written once all of its files are there."""

    savepoint_id: str
    application_id: str
    topology_version: str
    task: str
    taken_ms: int
    stores: tuple[SavedStore, ...]
    left_out: tuple[LeftOut, ...]

    def store(self, name: str) -> SavedStore | None:
        """Return the store of that name; None if it is left out."""
        return next((store for store in self.stores if store.store == name), None)

    @property
    def files(self) -> list[SavedFile]:
        """The files of all stores."""
        return [file for store in self.stores for file in store.files]

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON."""
        return _encoded(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskManifest:
        """Read what `to_bytes` wrote. Raises `CopyUnusable`."""
        try:
            body = _decoded(data)
            body["stores"] = tuple(_saved_store(store) for store in body["stores"])
            body["left_out"] = tuple(LeftOut(**store) for store in body["left_out"])
            return cls(**body)
        except (ValueError, KeyError, TypeError, TaskCorrupted) as error:
            raise CopyUnusable(f"it cannot be read ({error})") from error


@dataclass(frozen=True)
class SavepointManifest:
    """The manifest of a whole savepoint. It exists only if every task that it names is there with all of its files."""

    savepoint_id: str
    application_id: str
    topology_version: str
    taken_ms: int
    tasks: tuple[str, ...]
    total_bytes: int

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON."""
        return _encoded(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> SavepointManifest:
        """Read what `to_bytes` wrote. Raises `CopyUnusable`."""
        try:
            body = _decoded(data)
            body["tasks"] = tuple(body["tasks"])
            for task in body["tasks"]:
                TaskId.parse(task)
            return cls(**body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CopyUnusable(f"it cannot be read ({error})") from error


def left_out(spec: StoreSpec) -> LeftOut | None:
    """Return why savepoints do not contain stores of this kind; None if they do."""
    return None if spec.uncopied is None else LeftOut(spec.name, spec.uncopied)


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": MANIFEST_VERSION, **body}, indent=1).encode()


def _decoded(data: bytes) -> dict[str, Any]:
    body = json.loads(data)
    if not isinstance(body, dict) or body.pop("version") != MANIFEST_VERSION:
        raise ValueError("it has another version")
    return body


def _saved_store(body: Mapping[str, Any]) -> SavedStore:
    checkpoint = StoreCheckpoint.from_bytes(json.dumps(body["checkpoint"]).encode())
    return SavedStore(body["store"], checkpoint, _saved_files(body["files"]))


def _saved_files(body: Sequence[Mapping[str, Any]]) -> tuple[SavedFile, ...]:
    files = tuple(SavedFile(**file) for file in body)
    for file in files:
        # The names become paths, so none may point outside the store's folder.
        if not (is_legal_name(file.name) and len(file.sha256) == 64 and file.sha256.isalnum()):
            raise ValueError(f"{file.name!r} is not the name of a store's file")
    return files
