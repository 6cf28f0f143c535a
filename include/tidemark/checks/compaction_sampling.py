"""The samples of the compaction check: topic settings, the newest part of each changelog, a broker's log folder if given."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tidemark.checks.changelog_scan import Scan, scan_changelog
from tidemark.checks.compaction import (
    CleanerPosition,
    CompactionRules,
    CompactionSample,
    CompactionSettings,
    Dirt,
    compaction_finding,
    dirt_of,
)
from tidemark.checks.never_ran import never_ran
from tidemark.clock import wall_clock_ms
from tidemark.errors import PreflightFailed, TaskCorrupted
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topic_config import changelog_policy
from tidemark.kafka.topics import partition_counts
from tidemark.names import TopicPartition
from tidemark.recovery.candidates import MEASURED
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.store_sizes import topic_bytes
from tidemark.stores.checkpoint_file import read_checkpoint
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import StoreSpec, TopologyPlan
from tidemark.verdict import Finding

SCANNED_OFFSETS = 200_000
"""Offsets read at the end of each partition; this takes about a second."""
_STALLED_S = 5.0
_CLEANER_FILE = "cleaner-offset-checkpoint"
_NEVER_MS = 2**63 - 1


@dataclass(frozen=True)
class CompactionLook:
    """Limits of one run. `log_dir` is a broker's log folder on this machine, which gives the cleaner's exact position."""

    scanned_offsets: int = SCANNED_OFFSETS
    log_dir: Path | None = None


def check_compaction(
    plan: TopologyPlan,
    settings: Settings,
    topology: str,
    look: CompactionLook | None = None,
    clock: Callable[[], int] = wall_clock_ms,
    rules: CompactionRules | None = None,
) -> list[Finding]:
    """Return a verdict per changelog. Blocks, for about a second per partition.

    Raises `OutcomeUnknown` if no broker answers, `PreflightFailed` if `log_dir` is not a broker's log folder.
    """
    used, how = rules or CompactionRules(MEASURED.changelog_offsets_per_s), look or CompactionLook()
    admin = AdminClient(librdkafka_config(settings))
    if unknown := never_ran(plan, settings, admin):
        return unknown
    plan = named_plan(plan, settings, admin)
    partitions = partition_counts(admin, settings)
    specs = {changelog_of(plan.application_id, spec): spec for spec in plan.stores if spec.is_logged}
    existing = [topic for topic in specs if topic in partitions]
    configs = topic_configs(admin, existing, settings)
    sizes = topic_bytes(existing, settings)
    positions = {} if how.log_dir is None else cleaner_offsets(how.log_dir)
    ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
    findings = []
    for topic, spec in specs.items():
        places = [TopicPartition(topic, number) for number in range(partitions.get(topic, 0))]
        low, end = ends.beginnings(places), ends.of(places)
        found = compaction_settings(spec, configs[topic]) if topic in configs else _nothing()
        samples = []
        for place in places:
            scan = _scan(place, low[place], end[place], how, settings)
            position = None if how.log_dir is None else cleaner_position(how.log_dir, place, positions.get(place), scan)
            dirt = dirt_of(scan, found.rolls_after_ms)
            samples.append(_sample(scan, dirt, low[place], end[place], sizes.of.get(place), position))
        findings.append(compaction_finding(spec.name, found, samples, topology, clock(), used))
    return findings


def compaction_settings(spec: StoreSpec, config: Mapping[str, str]) -> CompactionSettings:
    """Return a topic's settings, together with those that the topology asks for."""
    max_lag_ms = int(config["max.compaction.lag.ms"])
    return CompactionSettings(
        cleanup_policy=frozenset(config["cleanup.policy"].split(",")),
        min_cleanable_ratio=float(config["min.cleanable.dirty.ratio"]),
        min_lag_ms=int(config["min.compaction.lag.ms"]),
        max_lag_ms=None if max_lag_ms >= _NEVER_MS else max_lag_ms,
        segment_ms=int(config["segment.ms"]),
        segment_bytes=int(config["segment.bytes"]),
        delete_retention_ms=int(config["delete.retention.ms"]),
        wanted={} if spec.source_topic else changelog_policy(spec).config(),
        retention_bytes=int(config["retention.bytes"]),
    )


def _nothing() -> CompactionSettings:
    return CompactionSettings(frozenset({"compact"}), 0.5, 0, None, 0, 0, 0, {})


def _scan(place: TopicPartition, low: int, end: int, look: CompactionLook, settings: Settings) -> Scan:
    start = max(low, end - look.scanned_offsets)
    return scan_changelog(librdkafka_config(settings), place, start, end, look.scanned_offsets, _STALLED_S)


def _sample(
    scan: Scan, dirt: Dirt, low: int, end: int, size_bytes: int | None, position: CleanerPosition | None
) -> CompactionSample:
    return CompactionSample(
        partition=scan.partition,
        low_offset=low,
        end_offset=end,
        scanned_offsets=scan.next_offset - scan.from_offset,
        hidden_from=None if scan.is_whole else scan.next_offset,
        topic_bytes=size_bytes,
        dirt=dirt,
        position=position,
    )


def cleaner_offsets(log_dir: Path) -> dict[TopicPartition, int]:
    """Return the first dirty offset of each partition that was ever cleaned. Raises `PreflightFailed`."""
    file = log_dir / _CLEANER_FILE
    if not file.exists():
        raise PreflightFailed(
            f"{log_dir} is not a broker's log folder, as it has no {_CLEANER_FILE}: give a folder of log.dirs, on the "
            "broker's own machine"
        )
    if not file.stat().st_size:
        # A broker creates the file at its start, and fills it after the cleaner has worked.
        return {}
    try:
        return read_checkpoint(file)
    except TaskCorrupted as error:
        raise PreflightFailed(
            f"{file} cannot be read as a checkpoint file of Kafka: try again, or leave --log-dir out"
        ) from error


def cleaner_position(
    log_dir: Path, place: TopicPartition, first_dirty: int | None, scan: Scan
) -> CleanerPosition | None:
    """Return the sizes of a partition's segments on both sides of the cleaner's position; None if the folder has none."""
    segments = sorted((int(file.stem), file) for file in (log_dir / f"{place.topic}-{place.partition}").glob("*.log"))
    if not segments:
        return None
    start = segments[0][0] if first_dirty is None else first_dirty
    active_base, active = segments[-1]
    rolled = [(base, file.stat().st_size) for base, file in segments[:-1]]
    first_active = bisect_left(scan.offsets, active_base)
    in_scan = scan.from_offset <= active_base and first_active < scan.records
    return CleanerPosition(
        first_dirty_offset=start,
        clean_bytes=sum(size for base, size in rolled if base < start),
        dirty_bytes=sum(size for base, size in rolled if base >= start),
        active_bytes=active.stat().st_size,
        active_since_ms=scan.timestamps_ms[first_active] if in_scan else None,
    )
