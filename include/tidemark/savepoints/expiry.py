"""Expiry of savepoints by count and age, and deletion of the files that only they used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from tidemark.errors import CopyUnusable
from tidemark.savepoints.repository import Savepoint, SavepointRepository
from tidemark.supervision.savepoint_ids import begun_ms

GIVEN_UP_MS = 3_600_000
"""The time after which an incomplete savepoint is given up, if nothing has shown since then that it is still being taken."""
_FILES_AT_ONCE = 100


@dataclass(frozen=True)
class Expired:
    """The removed savepoints and files. `files_kept` says why unused files were not removed this time; None if they were."""

    savepoints: tuple[str, ...]
    files: int
    bytes: int
    files_kept: str | None


def expired_ids(
    savepoints: Sequence[Savepoint], keep: int | None, max_age_ms: int | None, now_ms: int
) -> tuple[str, ...]:
    """Return those of `savepoints` to remove, which are in the order of `SavepointRepository.newest_first`. Reads nothing.

    A complete savepoint is removed if `keep` newer ones are complete, or if it is older than `max_age_ms`, and so is one whose
    manifest cannot be read; an incomplete one, if it was last known to be taken at least an hour ago.
    """
    gone: list[str] = []
    whole = 0
    for savepoint in savepoints:
        if _is_unfinished(savepoint):
            if not _is_alive(savepoint, now_ms):
                gone.append(savepoint.savepoint_id)
            continue
        age_ms = now_ms - (begun_ms(savepoint.savepoint_id) or 0)
        if (keep is not None and whole >= keep) or (max_age_ms is not None and age_ms > max_age_ms):
            gone.append(savepoint.savepoint_id)
        whole += savepoint.is_complete
    return tuple(gone)


def expire(repository: SavepointRepository, keep: int | None, max_age_ms: int | None, now_ms: int) -> Expired:
    """Remove manifests, then files that no manifest names. Blocks; raises `SavepointFailed`.

    All files are kept while another savepoint is being written, and while a manifest cannot be read.
    """
    savepoints = [repository.savepoint(savepoint_id) for savepoint_id in repository.newest_first(now_ms)]
    gone = expired_ids(savepoints, keep, max_age_ms, now_ms)
    for savepoint_id in gone:
        repository.remove(savepoint_id)
    sizes = repository.file_sizes()
    try:
        named = _named_files(repository)
    except CopyUnusable as error:
        remedy = "repair that file, or delete the folder in which it lies if the savepoint is not needed"
        return Expired(gone, 0, 0, f"the files that a savepoint uses are not known: {error}; {remedy}")
    unnamed = iter(sorted(sizes.keys() - named))
    files = size = 0
    while some := list(islice(unnamed, _FILES_AT_ONCE)):
        # Checked again and again: a savepoint that is begun in the meantime may rely on a file that is about to be removed.
        reason = _being_written(repository, now_ms)
        if reason is not None:
            return Expired(gone, files, size, reason)
        repository.remove_files(some)
        files, size = files + len(some), size + sum(sizes[name] for name in some)
    reason = _being_written(repository, now_ms)
    if reason is None:
        repository.remove_unfinished()
    return Expired(gone, files, size, reason)


def _is_unfinished(savepoint: Savepoint) -> bool:
    """Return whether its manifest is not there. One that is there and cannot be read now may be readable again later."""
    return not savepoint.is_complete and not savepoint.is_unreadable


def _is_alive(savepoint: Savepoint, now_ms: int) -> bool:
    return abs(now_ms - savepoint.alive_ms) < GIVEN_UP_MS


def _being_written(repository: SavepointRepository, now_ms: int) -> str | None:
    for savepoint in repository.savepoints():
        if _is_unfinished(savepoint) and _is_alive(savepoint, now_ms):
            return f"savepoint {savepoint.savepoint_id} is being written"
    return None


def _named_files(repository: SavepointRepository) -> set[str]:
    named: set[str] = set()
    for savepoint in repository.savepoints():
        if savepoint.is_unreadable:
            raise CopyUnusable(str(savepoint.fault))
        for task in savepoint.tasks:
            named.update(file.sha256 for file in repository.task(savepoint.savepoint_id, task).files)
    return named
