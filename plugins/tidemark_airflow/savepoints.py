"""The tasks of the DAG `savepoint`: take a savepoint, read it back, and remove old ones.

Tasks import this module when they run, because it loads clients and stores.
"""

from __future__ import annotations

import logging

from airflow.sdk.exceptions import AirflowSkipException
from confluent_kafka.admin import AdminClient

from tidemark.clock import wall_clock_ms
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import partition_counts, task_ids
from tidemark.names import commits_topic
from tidemark.operations.savepoint import SavepointCommand
from tidemark.registry.reader import named_plan
from tidemark.savepoints import expiry, verification
from tidemark.savepoints.repository import SavepointRepository
from tidemark.settings import Settings
from tidemark.topology.durations import duration_ms
from tidemark.topology_loader import load
from tidemark.verdict import Finding, Verdict
from tidemark_airflow.operations import conclude

log = logging.getLogger(__name__)


def take(topology: str) -> str:
    """Take a savepoint and return its id. Skips an application that has never run. Raises `SavepointFailed`."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    plan = named_plan(load(topology).plan(), settings, admin)
    partitions = partition_counts(admin, settings)
    if commits_topic(plan.application_id) not in partitions:
        raise AirflowSkipException(f"{plan.application_id} has never run: unpause stream__{topology}")
    tasks = task_ids(plan, partitions)
    taken = SavepointCommand(plan, settings, admin, tasks, lambda _copied: None, wall_clock_ms).take()
    manifest = taken.manifest
    log.info(
        "savepoint %s: %d tasks, %d bytes, %d of them new; the stream was paused for %d ms",
        manifest.savepoint_id, len(manifest.tasks), manifest.total_bytes, taken.copied_bytes, taken.held_ms,
    )  # fmt: skip
    return manifest.savepoint_id


def verify(topology: str, savepoint_id: str) -> str:
    """Read every file of a savepoint back and end the task as the verdict requires (see `conclude`)."""
    found = verification.verify(_repository(topology), savepoint_id)
    fine = f"savepoint {savepoint_id}: {found.tasks} tasks, {found.files} files, {found.bytes} bytes, all as they were saved"
    evidence = {"tasks": found.tasks, "files": found.files, "bytes": found.bytes}
    findings = [Finding(savepoint_id, Verdict.FAILED, fault, evidence) for fault in found.faults]
    return conclude("savepoint", topology, findings or [Finding(savepoint_id, Verdict.OK, fine, evidence)])


def expire(topology: str, keep: int | None, max_age: str) -> int:
    """Remove savepoints by count and age, and return how many were removed. Raises `SavepointFailed`."""
    settings = Settings.load()
    kept = settings.savepoints_kept if keep is None else keep
    max_age_ms = duration_ms(max_age, "parameter max_age") if max_age else None
    gone = expiry.expire(_repository(topology), kept, max_age_ms, wall_clock_ms())
    log.info(
        "removed savepoints %s and %d files, %d bytes", ", ".join(gone.savepoints) or "none", gone.files, gone.bytes
    )
    if gone.files_kept is not None:
        log.warning("files are not removed this time: %s", gone.files_kept)
    return len(gone.savepoints)


def _repository(topology: str) -> SavepointRepository:
    return SavepointRepository(Settings.load().savepoint_location, load(topology).plan().application_id)
