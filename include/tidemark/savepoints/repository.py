"""Storage of savepoints at any location that fsspec supports, laid out as described in `docs/savepoints.md`.

Nothing counts before it is complete: each file is written under another name and moved, a task's manifest is written
after its files, the savepoint's manifest after those of its tasks. Files are named by their SHA-256, so that a
savepoint copies only what no other one has.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from tidemark.atomic_file import as_full_disk
from tidemark.errors import CopyUnusable, InvalidSettings, SavepointFailed, StoreFailed, TidemarkError
from tidemark.names import TaskId
from tidemark.savepoints.manifest import SavedFile, SavepointManifest, TaskManifest
from tidemark.supervision.savepoint_ids import begun_ms, is_ahead

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
BEGUN = "begun"
_CHUNK_BYTES = 4 << 20
_IDLE_S = 60.0
"""The time after which an unused connection is replaced. Servers close idle ones, most after five minutes or more."""

Progress = Callable[[int], None]
"""Called with the number of bytes of each chunk; may raise `SavepointFailed` to stop."""


@dataclass(frozen=True)
class Savepoint:
    """One savepoint in a list. `manifest` is None if it is not complete or unreadable; `fault` then says why, in one line."""

    savepoint_id: str
    tasks: tuple[str, ...]
    manifest: SavepointManifest | None
    fault: str | None
    alive_ms: int
    """The last time, in epoch milliseconds, at which it was still being taken, as far as is known."""
    is_unreadable: bool = False
    """Whether its manifest was written, but cannot be read now."""

    @property
    def is_complete(self) -> bool:
        """Whether every task is there."""
        return self.manifest is not None


@dataclass(frozen=True)
class _Root:
    """An application's folder, and the file system that holds it."""

    fs: AbstractFileSystem
    folder: str

    def path(self, *parts: str) -> str:
        return "/".join((self.folder, *parts))


class SavepointRepository:
    """All savepoints of one application at one location. Safe to use from several threads; every method blocks.

    Connects at first use, and again after an error or a minute without use, because a server may have closed the connection.
    """

    def __init__(self, location: str, application_id: str) -> None:
        """Use `location`, a folder or a URL. Raises `InvalidSettings` if fsspec does not support it; does not access it yet."""
        self.location = location.rstrip("/")
        self.application_id = application_id
        self._url = location
        self._root: _Root | None = None
        self._used_s = 0.0
        self._connecting = threading.Lock()
        # Of a chain such as `simplecache::sftp://host/folder`, each link, which may be a name alone.
        self._protocols = [
            split_protocol(url)[0] or (url if url in fsspec.available_protocols() else "file")
            for url in location.split("::")
        ]
        try:
            for protocol in self._protocols:
                fsspec.get_filesystem_class(protocol)
        except (ValueError, ImportError) as error:
            raise InvalidSettings(
                f"setting savepoint_location: {location} cannot be used ({error}); set TIDEMARK_SAVEPOINT_LOCATION to a "
                f"folder, or to a URL whose fsspec package is installed"
            ) from error

    def url(self, savepoint_id: str, name: str = MANIFEST) -> str:
        """Return the URL of a manifest, for messages."""
        return f"{self.location}/{self.application_id}/savepoints/{savepoint_id}/{name}"

    @contextmanager
    def _reaching(self, what: str, missing: type[TidemarkError] = CopyUnusable) -> Iterator[_Root]:
        """Connect, and translate the errors of any file system; raise `missing` if a file does not exist."""
        root = self._connected()
        try:
            yield root
        except (SavepointFailed, CopyUnusable, StoreFailed):
            raise
        except FileNotFoundError as error:
            raise missing(f"{what} is missing") from error
        except Exception as error:
            self._root = None
            raise SavepointFailed(f"{what} cannot be reached: {_format(error)}") from error

    def _connected(self) -> _Root:
        """Return the folder of the application. Raises `SavepointFailed`."""
        with self._connecting:
            root, used_s, self._used_s = self._root, self._used_s, time.monotonic()
            if root is None or self._used_s - used_s >= _IDLE_S:
                try:
                    # fsspec caches file systems, and a cached one may have a connection that its server has closed since.
                    options = {protocol: {"skip_instance_cache": True} for protocol in self._protocols}
                    fs, folder = fsspec.url_to_fs(self._url, **options)
                except Exception as error:
                    raise SavepointFailed(f"{self.location} cannot be reached: {_format(error)}") from error
                root = self._root = _Root(fs, f"{folder.rstrip('/')}/{self.application_id}")
            return root

    def begin(self, savepoint_id: str, now_ms: int) -> None:
        """Note that a savepoint is being written now, so that no file is removed in the meantime. Raises `SavepointFailed`.

        Must be called again from time to time while it is being written.
        """
        self._write(("savepoints", savepoint_id, BEGUN), str(now_ms).encode())

    def put_file(self, source: Path, tick: Progress) -> tuple[SavedFile, int]:
        """Copy a file unless it is there already. Returns the file, and the number of bytes that were copied.

        `tick` is called for each chunk of the checksumming, so once for every byte. Raises `SavepointFailed`, and
        `OSError` if `source` cannot be read.
        """
        digest, size = hashlib.sha256(), 0
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                tick(len(chunk))
        saved = SavedFile(source.name, size, digest.hexdigest())
        with self._reaching(f"{self.location}/{self.application_id}/files", SavepointFailed) as root:
            target = root.path("files", saved.sha256)
            root.fs.invalidate_cache()
            if root.fs.exists(target) and root.fs.size(target) == size:
                return saved, 0
        with source.open("rb") as file:
            self._write(("files", saved.sha256), iter(lambda: file.read(_CHUNK_BYTES), b""), tick)
        return saved, size

    def put_task(self, manifest: TaskManifest) -> None:
        """Write a task's manifest; all of its files must be there. Raises `SavepointFailed`."""
        self._write(("savepoints", manifest.savepoint_id, f"{manifest.task}.json"), manifest.to_bytes())

    def complete(
        self, savepoint_id: str, topology_version: str, taken_ms: int, tasks: Collection[TaskId]
    ) -> SavepointManifest:
        """Check everything that the savepoint names, and write its manifest.

        Raises `SavepointFailed`, which names the tasks or files that are missing.
        """
        there = _tasks_among(self._names("savepoints", savepoint_id))
        missing = sorted(task for task in tasks if str(task) not in there)
        if missing:
            raise SavepointFailed(
                f"savepoint {savepoint_id} of {self.application_id} lacks task {', '.join(map(str, missing))}: "
                "no instance here held them; take another once `tidemark status` shows every instance RUNNING"
            )
        manifests = [self.task(savepoint_id, str(task)) for task in sorted(tasks)]
        sizes = self.file_sizes()
        for manifest in manifests:
            for file in manifest.files:
                if sizes.get(file.sha256) != file.size_bytes:
                    raise SavepointFailed(
                        f"savepoint {savepoint_id}: {file.name} of task {manifest.task} is missing or has another size"
                    )
        whole = SavepointManifest(
            savepoint_id,
            self.application_id,
            topology_version,
            taken_ms,
            tuple(manifest.task for manifest in manifests),
            sum(file.size_bytes for manifest in manifests for file in manifest.files),
        )
        self._write(("savepoints", savepoint_id, MANIFEST), whole.to_bytes())
        with suppress(CopyUnusable, SavepointFailed):
            self._remove("savepoints", savepoint_id, BEGUN)
        return whole

    def ids(self) -> list[str]:
        """Return the ids of all savepoints, complete or not, the last first. Raises `SavepointFailed`."""
        found = (name for name in self._names("savepoints") if begun_ms(name) is not None)
        return sorted(found, reverse=True)

    def newest_first(self, now_ms: int) -> list[str]:
        """Return what `ids` does, but those that were named by a clock that was ahead come last. Raises `SavepointFailed`."""
        return sorted(self.ids(), key=lambda savepoint_id: is_ahead(savepoint_id, now_ms))

    def savepoints(self) -> list[Savepoint]:
        """Return all savepoints in the order of `ids`. Raises `SavepointFailed`."""
        return [self.savepoint(savepoint_id) for savepoint_id in self.ids()]

    def savepoint(self, savepoint_id: str) -> Savepoint:
        """Return one savepoint. Raises `SavepointFailed`."""
        names = self._names("savepoints", savepoint_id)
        tasks = tuple(_tasks_among(names))
        alive_ms = self._alive_ms(savepoint_id) if BEGUN in names else begun_ms(savepoint_id) or 0
        try:
            return Savepoint(savepoint_id, tasks, self.manifest(savepoint_id), None, alive_ms)
        except CopyUnusable as error:
            return Savepoint(savepoint_id, tasks, None, str(error), alive_ms, is_unreadable=MANIFEST in names)

    def _alive_ms(self, savepoint_id: str) -> int:
        with suppress(CopyUnusable, ValueError):
            return int(self._read(savepoint_id, BEGUN))
        return begun_ms(savepoint_id) or 0

    def manifest(self, savepoint_id: str) -> SavepointManifest:
        """Return the manifest of a savepoint.

        Raises `CopyUnusable` if it is missing, unreadable, or of another application; `SavepointFailed`.
        """
        where = self.url(savepoint_id)
        try:
            found = SavepointManifest.from_bytes(self._read(savepoint_id, MANIFEST))
        except CopyUnusable as error:
            raise CopyUnusable(f"{where}: {error}") from error
        self._check_owner(where, found, savepoint_id)
        return found

    def task(self, savepoint_id: str, task: str) -> TaskManifest:
        """Return the manifest of a task.

        Raises `CopyUnusable` if it is missing, unreadable, or of another application or task; `SavepointFailed`.
        """
        where = self.url(savepoint_id, f"{task}.json")
        try:
            found = TaskManifest.from_bytes(self._read(savepoint_id, f"{task}.json"))
        except CopyUnusable as error:
            raise CopyUnusable(f"{where}: {error}") from error
        self._check_owner(where, found, savepoint_id)
        if found.task != task:
            raise CopyUnusable(f"{where}: it belongs to task {found.task}")
        return found

    def _check_owner(self, where: str, found: SavepointManifest | TaskManifest, savepoint_id: str) -> None:
        if found.application_id != self.application_id:
            raise CopyUnusable(f"{where}: it belongs to application {found.application_id}")
        if found.savepoint_id != savepoint_id:
            raise CopyUnusable(f"{where}: it belongs to savepoint {found.savepoint_id}")

    def fetch_file(self, file: SavedFile, target: Path | None, tick: Progress = lambda _: None) -> None:
        """Read a file, into `target` if given, and verify it.

        Raises `CopyUnusable`, which says what is wrong, `StoreFailed` if this machine's disk is full.
        """
        digest, size = hashlib.sha256(), 0
        try:
            with (
                _created(target or Path(os.devnull)) as copied,
                self._reaching("it") as root,
                root.fs.open(root.path("files", file.sha256), "rb") as source,
            ):
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    tick(len(chunk))
                    _write_to(copied, chunk)
        except SavepointFailed as error:
            raise CopyUnusable(str(error)) from error
        if size != file.size_bytes:
            raise CopyUnusable(f"it has {size} bytes instead of {file.size_bytes}")
        if digest.hexdigest() != file.sha256:
            raise CopyUnusable("its sha256 differs: the file was changed")

    def _read(self, savepoint_id: str, name: str) -> bytes:
        with self._reaching("it") as root:
            data: bytes = root.fs.cat_file(root.path("savepoints", savepoint_id, name))
            return data

    def _write(self, name: tuple[str, ...], chunks: bytes | Iterator[bytes], tick: Progress = lambda _: None) -> None:
        """Write under another name first, so that an interrupted write leaves nothing that counts."""
        with self._reaching(f"{self.location}/{self.application_id}", SavepointFailed) as root:
            temporary = root.path("unfinished", uuid.uuid4().hex)
            try:
                for parent in (root.path("unfinished"), root.path(*name[:-1])):
                    root.fs.makedirs(parent, exist_ok=True)
                with root.fs.open(temporary, "wb") as file:
                    for chunk in [chunks] if isinstance(chunks, bytes) else chunks:
                        file.write(chunk)
                        tick(0)
                    if isinstance(root.fs, LocalFileSystem):
                        # A name that survives a power loss must not refer to contents that do not.
                        file.flush()
                        os.fsync(file.fileno())
                root.fs.mv(temporary, root.path(*name))
            except BaseException:
                with suppress(Exception):
                    root.fs.rm_file(temporary)
                raise

    def remove(self, savepoint_id: str) -> None:
        """Remove the manifests of a savepoint, the one over all tasks first. Raises `SavepointFailed`."""
        names = self._names("savepoints", savepoint_id)
        for name in sorted(names, key=lambda name: name != MANIFEST):
            with suppress(CopyUnusable):
                self._remove("savepoints", savepoint_id, name)
        # Object stores have no folders to remove.
        root = self._connected()
        with suppress(OSError, NotImplementedError):
            root.fs.rmdir(root.path("savepoints", savepoint_id))

    def remove_files(self, names: Collection[str]) -> None:
        """Remove files that no savepoint names. Raises `SavepointFailed`."""
        for name in names:
            with suppress(CopyUnusable):
                self._remove("files", name)

    def remove_unfinished(self) -> None:
        """Remove what writers that were killed left behind; no process may be writing. Raises `SavepointFailed`."""
        for name in self._names("unfinished"):
            with suppress(CopyUnusable):
                self._remove("unfinished", name)

    def _remove(self, *name: str) -> None:
        with self._reaching("/".join((self.location, self.application_id, *name))) as root:
            root.fs.rm_file(root.path(*name))

    def _entries(self, *folder: str) -> list[dict[str, Any]]:
        """Return the entries of a folder; none if it does not exist."""
        with suppress(CopyUnusable), self._reaching(f"{self.location}/{self.application_id}") as root:
            root.fs.invalidate_cache()
            found: list[dict[str, Any]] = root.fs.ls(root.path(*folder), detail=True)
            return found
        return []

    def _names(self, *folder: str) -> list[str]:
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in self._entries(*folder)]

    def file_sizes(self) -> dict[str, int]:
        """Return the bytes of every file by its SHA-256, whether a savepoint names it or not. Raises `SavepointFailed`."""
        entries = [entry for entry in self._entries("files") if entry["type"] == "file"]
        return {entry["name"].rpartition("/")[2]: int(entry["size"]) for entry in entries}


def _tasks_among(names: Iterable[str]) -> list[str]:
    return sorted(filter(_is_task, (name.removesuffix(".json") for name in names)))


def _is_task(name: str) -> bool:
    try:
        TaskId.parse(name)
    except ValueError:
        return False
    return True


@contextmanager
def _created(target: Path) -> Iterator[BinaryIO]:
    """Create a file on this machine's disk. Raises `StoreFailed` if the disk is full, else `CopyUnusable`."""
    try:
        with target.open("wb") as file:
            yield file
    except OSError as error:
        raise as_full_disk(error) or CopyUnusable(f"it cannot be copied to {target}: {error.strerror}") from error


def _write_to(file: BinaryIO, chunk: bytes) -> None:
    """Write all of it to this machine's disk. If the disk is full, the savepoint is not at fault: raises `StoreFailed`."""
    try:
        file.write(chunk)
        file.flush()
    except OSError as error:
        raise StoreFailed(f"{file.name} cannot be written ({error.strerror}): free its disk") from error


def _format(error: BaseException) -> str:
    strerror = getattr(error, "strerror", None)
    return " ".join(str(strerror or error or type(error).__name__).split())
