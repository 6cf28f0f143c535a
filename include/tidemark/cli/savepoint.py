"""Take, list, verify and expire savepoints."""

from __future__ import annotations

import sys

from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tidemark.cli.output import Output
from tidemark.clock import wall_clock_ms
from tidemark.errors import SavepointFailed, StartRefused
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import partition_counts, task_ids
from tidemark.listing import Listing
from tidemark.operations.savepoint import Copied, SavepointCommand
from tidemark.registry.reader import named_plan
from tidemark.savepoints import expiry, verification
from tidemark.savepoints.repository import Savepoint, SavepointRepository
from tidemark.settings import Settings
from tidemark.supervision.savepoint_ids import begun_ms
from tidemark.topology.durations import duration_ms
from tidemark.topology_loader import load


def take(topology: str, output: Output) -> None:
    """Take a savepoint of all tasks. Blocks until it is copied."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    plan = named_plan(load(topology).plan(), settings, admin)
    tasks = task_ids(plan, partition_counts(admin, settings))
    with _progress() as progress:
        bar = progress.add_task("savepoint", total=None)

        def watch(copied: Copied) -> None:
            progress.update(bar, total=copied.total_bytes or None, completed=copied.done_bytes)

        taken = SavepointCommand(plan, settings, admin, tasks, watch, wall_clock_ms).take()
    manifest = taken.manifest
    output.show(
        {
            "id": manifest.savepoint_id,
            "tasks": list(manifest.tasks),
            "total_bytes": manifest.total_bytes,
            "copied_bytes": taken.copied_bytes,
            "held_ms": taken.held_ms,
        },
        f"savepoint {manifest.savepoint_id}: {len(manifest.tasks)} tasks, {decimal(manifest.total_bytes)}, of which "
        f"{decimal(taken.copied_bytes)} are new; the stream paused for {taken.held_ms} ms",
    )


def list_savepoints(topology: str, output: Output) -> None:
    """List all savepoints, the newest first."""
    repository = _repository(topology)
    found = [repository.savepoint(savepoint_id) for savepoint_id in repository.newest_first(wall_clock_ms())]
    listing = Listing(
        "savepoint", "age", "tasks", "bytes", "topology", "", title=f"savepoints in {repository.location}"
    )
    for savepoint in found:
        manifest = savepoint.manifest
        age_s = (wall_clock_ms() - (begun_ms(savepoint.savepoint_id) or 0)) // 1000
        listing.add(
            savepoint.savepoint_id,
            f"{age_s // 3600}:{age_s // 60 % 60:02d}:{age_s % 60:02d}",
            str(len(savepoint.tasks)),
            decimal(manifest.total_bytes) if manifest else "",
            manifest.topology_version if manifest else "",
            "complete"
            if manifest
            else f"{'unreadable' if savepoint.is_unreadable else 'incomplete'}: {savepoint.fault}",
        )
    nothing = (
        f"no savepoints of {repository.application_id} in {repository.location}: take one with "
        "`tidemark savepoint take NAME`"
    )
    output.show([_form(savepoint) for savepoint in found], listing if found else nothing)


def verify(topology: str, savepoint_id: str, output: Output) -> None:
    """Compare every file of a savepoint, or of the newest complete one, with its checksum. Ends with 1 if one is wrong.

    Raises `StartRefused` if there is no savepoint with this id.
    """
    repository = _repository(topology)
    # What is not an id must not become a part of a path.
    if savepoint_id and savepoint_id not in repository.ids():
        raise StartRefused(
            f"there is no savepoint {savepoint_id} of {repository.application_id} in {repository.location}; "
            f"`tidemark savepoint list {topology}` shows them"
        )
    chosen = savepoint_id or _newest(repository)
    manifest = repository.manifest(chosen)
    with _progress() as progress:
        bar = progress.add_task("reading", total=manifest.total_bytes)
        found = verification.verify(repository, chosen, lambda size: progress.advance(bar, size))
    right = (
        f"savepoint {chosen}: {found.tasks} tasks, {found.files} files, {decimal(found.bytes)}, all as they were saved"
    )
    output.show(
        {"id": chosen, "tasks": found.tasks, "files": found.files, "bytes": found.bytes, "faults": found.faults},
        *([f"savepoint {chosen}: {fault}" for fault in found.faults] or [right]),
    )
    if found.faults:
        sys.exit(1)


def expire(topology: str, keep: int | None, max_age: str | None, output: Output) -> None:
    """Remove savepoints by count and age, then the files that no other savepoint uses."""
    settings = Settings.load()
    repository = _repository(topology)
    max_age_ms = None if max_age is None else duration_ms(max_age, "--max-age")
    gone = expiry.expire(repository, settings.savepoints_kept if keep is None else keep, max_age_ms, wall_clock_ms())
    kept = [] if gone.files_kept is None else [f"no files were removed this time: {gone.files_kept}"]
    output.show(gone, f"removed {len(gone.savepoints)} savepoints and {gone.files} files, {decimal(gone.bytes)}", *kept)


def _repository(topology: str) -> SavepointRepository:
    return SavepointRepository(Settings.load().savepoint_location, load(topology).plan().application_id)


def _newest(repository: SavepointRepository) -> str:
    ids = repository.newest_first(wall_clock_ms())
    newest = next((savepoint_id for savepoint_id in ids if repository.savepoint(savepoint_id).is_complete), None)
    if newest is None:
        raise SavepointFailed(
            f"no complete savepoint of {repository.application_id} in {repository.location}; take one with "
            "`tidemark savepoint take`"
        )
    return newest


def _form(savepoint: Savepoint) -> dict[str, object]:
    manifest = savepoint.manifest
    return {
        "id": savepoint.savepoint_id,
        "begun_ms": begun_ms(savepoint.savepoint_id),
        "is_complete": savepoint.is_complete,
        "fault": savepoint.fault,
        "tasks": list(savepoint.tasks),
        "total_bytes": manifest.total_bytes if manifest else None,
        "topology_version": manifest.topology_version if manifest else None,
    }


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
