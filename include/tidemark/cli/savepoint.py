"""Savepoints of an application: take, list, verify, expire."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.errors import SavepointFailed
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import partition_counts, task_ids
from tidemark.operations.savepoint import Copied, SavepointCommand
from tidemark.registry.reader import named_plan
from tidemark.savepoints import expiry, verification
from tidemark.savepoints.repository import Savepoint, SavepointRepository
from tidemark.settings import Settings
from tidemark.supervision.savepoint_ids import begun_ms
from tidemark.topology.durations import duration_ms
from tidemark.topology_loader import load


def take(topology: str) -> None:
    """Take a savepoint of all tasks. Blocks until it is copied."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    plan = named_plan(load(topology).plan(), settings, admin)
    tasks = task_ids(plan, partition_counts(admin, settings))
    with _progress() as progress:
        bar = progress.add_task("savepoint", total=None)

        def watch(copied: Copied) -> None:
            progress.update(bar, total=copied.total_bytes or None, completed=copied.done_bytes)

        taken = SavepointCommand(plan, settings, tasks, watch, wall_clock_ms).take()
    manifest = taken.manifest
    print(
        f"savepoint {manifest.savepoint_id}: {len(manifest.tasks)} tasks, {decimal(manifest.total_bytes)}, of which "
        f"{decimal(taken.copied_bytes)} are new; the stream paused for {taken.held_ms} ms"
    )


def list_savepoints(topology: str, *, as_json: bool) -> None:
    """List all savepoints, the newest first."""
    repository = _repository(topology)
    found = repository.savepoints()
    if as_json:
        print(json.dumps([_row(savepoint) for savepoint in found], indent=2))
        return
    if not found:
        print(
            f"no savepoints of {repository.application_id} in {repository.location}: take one with `tidemark savepoint take`"
        )
        return
    table = Table("savepoint", "age", "tasks", "bytes", "topology", "", title=f"savepoints in {repository.location}")
    for savepoint in found:
        manifest = savepoint.manifest
        age_s = (wall_clock_ms() - (begun_ms(savepoint.savepoint_id) or 0)) // 1000
        table.add_row(
            savepoint.savepoint_id,
            f"{age_s // 3600}:{age_s // 60 % 60:02d}:{age_s % 60:02d}",
            str(len(savepoint.tasks)),
            decimal(manifest.total_bytes) if manifest else "",
            manifest.topology_version if manifest else "",
            "complete" if manifest else f"incomplete: {savepoint.fault}",
        )
    Console(highlight=False).print(table)


def verify(topology: str, savepoint_id: str) -> None:
    """Compare every file of a savepoint, or of the newest complete one, with its checksum. Ends with 1 if one is wrong."""
    repository = _repository(topology)
    chosen = savepoint_id or _newest(repository)
    manifest = repository.manifest(chosen)
    with _progress() as progress:
        bar = progress.add_task("reading", total=manifest.total_bytes)
        found = verification.verify(repository, chosen, lambda size: progress.advance(bar, size))
    for fault in found.faults:
        print(f"savepoint {chosen}: {fault}")
    if found.faults:
        sys.exit(1)
    print(
        f"savepoint {chosen}: {found.tasks} tasks, {found.files} files, {decimal(found.bytes)}, all as they were saved"
    )


def expire(topology: str, keep: int | None, max_age: str | None) -> None:
    """Remove savepoints by count and age, then the files that no other savepoint uses."""
    settings = Settings.load()
    repository = _repository(topology)
    max_age_ms = None if max_age is None else duration_ms(max_age, "--max-age")
    gone = expiry.expire(repository, settings.savepoints_kept if keep is None else keep, max_age_ms, wall_clock_ms())
    print(f"removed {len(gone.savepoints)} savepoints and {gone.files} files, {decimal(gone.bytes)}")
    if gone.files_kept is not None:
        print(f"no files were removed this time: {gone.files_kept}")


def _repository(topology: str) -> SavepointRepository:
    return SavepointRepository(Settings.load().savepoint_location, load(topology).plan().application_id)


def _newest(repository: SavepointRepository) -> str:
    whole = [savepoint.savepoint_id for savepoint in repository.savepoints() if savepoint.is_complete]
    if not whole:
        raise SavepointFailed(f"no complete savepoint of {repository.application_id} in {repository.location}")
    return whole[0]


def _row(savepoint: Savepoint) -> dict[str, object]:
    manifest = savepoint.manifest
    begun = datetime.fromtimestamp((begun_ms(savepoint.savepoint_id) or 0) / 1000, UTC)
    return {
        "id": savepoint.savepoint_id,
        "begun": begun.isoformat(),
        "is_complete": savepoint.is_complete,
        "fault": savepoint.fault,
        "tasks": list(savepoint.tasks),
        "total_bytes": manifest.total_bytes if manifest else None,
        "topology_version": manifest.topology_version if manifest else None,
    }


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
