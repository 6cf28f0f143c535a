"""The compaction check: whether compaction keeps changelogs short, so that a restore reads little. One verdict per changelog.

Pure functions of samples and `now`. Only the broker knows which part of a partition is clean. Read from outside it is an
estimate: of two records of one key the cleaner leaves one, so the cleaned part ends before the first key that comes a
second time. The dirty part is therefore *at least* what follows that record. If the broker's log folder is given, the
position is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.checks.changelog_scan import Scan
from tidemark.names import TopicPartition
from tidemark.topology.durations import about_ms
from tidemark.verdict import Finding, Verdict, worst

_USUAL_RATIO = 0.5
_LOW_RATIO = 0.1
_SHORT_SEGMENT_MS = 600_000


@dataclass(frozen=True)
class CompactionSettings:
    """Settings of a changelog topic at the broker. `max_lag_ms` is None if nothing forces compaction.

    `wanted` are the settings that the topology asks for, by name. `retention_bytes` is -1 if nothing is deleted by size.
    """

    cleanup_policy: frozenset[str]
    min_cleanable_ratio: float
    min_lag_ms: int
    max_lag_ms: int | None
    segment_ms: int
    segment_bytes: int
    delete_retention_ms: int
    wanted: Mapping[str, str]
    retention_bytes: int = -1

    @property
    def rolls_after_ms(self) -> int:
        """Return the age of a segment's first record at which a new record begins the next segment (Kafka's
        `LogConfig.maxSegmentMs`)."""
        return self.segment_ms if self.max_lag_ms is None else min(self.segment_ms, self.max_lag_ms)


@dataclass(frozen=True)
class Dirt:
    """The result of a scan. `superseded` records are followed by another record of their key within the scan.

    `first_repeat_offset`: the cleaned part ends before it; None if no key came twice. `dirty_bytes` are the bytes from there
    on. `waiting_tombstones` are keys whose last record deletes them. Times are epoch milliseconds: `superseded_since_ms` is
    that of the first repeat, before which nothing in the scan was superseded; `rolled_ms` is that of a record by which the
    segment of the repeat had been rolled, None if none was appended late enough, so that it may be the active segment.
    """

    records: int
    keys: int
    superseded: int
    waiting_tombstones: int
    scanned_bytes: int
    dirty_bytes: int
    first_repeat_offset: int | None
    superseded_since_ms: int | None
    rolled_ms: int | None

    @property
    def superseded_share(self) -> float:
        """Return the share of superseded records among those scanned, 0 if there were none."""
        return self.superseded / self.records if self.records else 0.0


@dataclass(frozen=True)
class CleanerPosition:
    """The exact position, from the broker's log folder: bytes before the cleaner's position, after it, and in the active
    segment, which is never compacted. `active_since_ms`: the time of its first record, None if the scan did not reach it."""

    first_dirty_offset: int
    clean_bytes: int
    dirty_bytes: int
    active_bytes: int
    active_since_ms: int | None = None

    @property
    def ratio(self) -> float:
        """Return the ratio that the broker compares with `min.cleanable.dirty.ratio`."""
        cleanable = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / cleanable if cleanable else 0.0


@dataclass(frozen=True)
class CompactionSample:
    """One changelog partition. The last `scanned_offsets` of its offsets were read; `hidden_from` is the offset where reading
    stopped before the end, None if it did not. `position` is None without the broker's log folder."""

    partition: TopicPartition
    low_offset: int
    end_offset: int
    scanned_offsets: int
    hidden_from: int | None
    topic_bytes: int | None
    dirt: Dirt
    position: CleanerPosition | None = None

    @property
    def offsets(self) -> int:
        """Return the number of offsets from its beginning to its end."""
        return self.end_offset - self.low_offset

    @property
    def dirty_ratio(self) -> float:
        """Return the ratio, exact if the position is known, else at least that: the unscanned beginning counts as clean."""
        if self.position is not None:
            return self.position.ratio
        whole = max(self.dirt.scanned_bytes, 1) * self.offsets / max(self.scanned_offsets, 1)
        return min(1.0, self.dirt.dirty_bytes / max(whole, 1))


@dataclass(frozen=True)
class CompactionRules:
    """A changelog with a share of superseded records above `most_superseded_share` should be compacted, if they are at least
    `least_superseded`. `slack_ms`: delay of the cleaner beyond its settings. `offsets_per_s`: the rate of a restore."""

    offsets_per_s: float
    most_superseded_share: float = 0.5
    least_superseded: int = 10_000
    slack_ms: int = 3_600_000


def dirt_of(scan: Scan, rolls_after_ms: int) -> Dirt:
    """Count the records of a scan. `rolls_after_ms` is that of the topic's settings."""
    last: dict[bytes, int] = {}
    first_repeat: int | None = None
    for index, key in enumerate(scan.keys):
        if first_repeat is None and key in last:
            first_repeat = index
        last[key] = index
    kept = set(last.values())
    counted = Dirt(
        records=scan.records,
        keys=len(last),
        superseded=scan.records - len(last),
        waiting_tombstones=sum(scan.tombstones[index] for index in kept),
        scanned_bytes=sum(scan.sizes_bytes),
        dirty_bytes=0,
        first_repeat_offset=None,
        superseded_since_ms=None,
        rolled_ms=None,
    )
    if first_repeat is None:
        return counted
    since_ms, *later_ms = scan.timestamps_ms[first_repeat:]
    return replace(
        counted,
        dirty_bytes=sum(scan.sizes_bytes[first_repeat:]),
        first_repeat_offset=scan.offsets[first_repeat],
        superseded_since_ms=since_ms,
        rolled_ms=next((stamp_ms for stamp_ms in later_ms if stamp_ms > since_ms + rolls_after_ms), None),
    )


def compaction_finding(
    store: str,
    found: CompactionSettings,
    samples: Sequence[CompactionSample],
    topology: str,
    now_ms: int,
    rules: CompactionRules,
) -> Finding:
    """Return the finding on one store's changelog: that of its worst partition."""
    judged = [(sample, *_of_partition(found, sample, topology, now_ms, rules)) for sample in samples]
    verdicts = [Finding("", verdict, message) for _, verdict, message in judged]
    verdict = worst(verdicts)
    place, message = next(
        ((str(sample.partition), text) for sample, each, text in judged if each is verdict),
        (store, "has no partition yet: start an instance"),
    )
    message = _fine(samples, rules) if verdict is Verdict.OK else f"{place}: {message}"
    evidence: dict[str, object] = {
        "settings": _settings(found),
        "partitions": {str(s.partition): _evidence(s, now_ms, rules) for s in samples},
    }
    if verdict is Verdict.WARNING:
        evidence["proposal"] = dict(proposal(found, now_ms, samples))
    return Finding(store, verdict, message, evidence)


def _of_partition(
    found: CompactionSettings, sample: CompactionSample, topology: str, now_ms: int, rules: CompactionRules
) -> tuple[Verdict, str]:
    if "compact" not in found.cleanup_policy:
        return (
            Verdict.FAILED,
            f"cleanup.policy={','.join(sorted(found.cleanup_policy))}, so it is never compacted; `tidemark topics run "
            f"{topology}`",
        )
    if "delete" in found.cleanup_policy and found.retention_bytes >= 0:
        return (
            Verdict.FAILED,
            f"retention.bytes={found.retention_bytes}, so the broker deletes its oldest records, also live ones; "
            f"`tidemark topics run {topology}`",
        )
    if sample.hidden_from is not None:
        return (
            Verdict.NOT_ENOUGH_EVIDENCE,
            f"reading stopped at {sample.hidden_from} of {sample.end_offset}: an open transaction hides the rest; "
            f"`tidemark check lag {topology}` names it",
        )
    overdue = _overdue(found, sample, now_ms, rules)
    if overdue is not None:
        return Verdict.FAILED, overdue
    dirt = sample.dirt
    if dirt.superseded < rules.least_superseded or dirt.superseded_share <= rules.most_superseded_share:
        return Verdict.OK, ""
    age_ms = now_ms - (dirt.superseded_since_ms or now_ms)
    if age_ms < found.min_lag_ms:
        return Verdict.OK, ""
    return (
        Verdict.WARNING,
        f"{dirt.superseded} of {dirt.records} records scanned are superseded, the first for {about_ms(age_ms)}; a restore "
        f"takes about {_seconds(restore_now_s(sample, rules))}, after compaction "
        f"{_seconds(restore_compacted_s(sample, rules))}. "
        f"{_remedy(found, proposal(found, now_ms, [sample]), topology)}",
    )


def _overdue(found: CompactionSettings, sample: CompactionSample, now_ms: int, rules: CompactionRules) -> str | None:
    """Return the fault, if by the broker's own settings the cleaner should have compacted this partition; else None.

    The cleaner may do so only after the segment was rolled, which an append does: without appends nothing is overdue.
    """
    since_ms, rolled_ms = sample.dirt.superseded_since_ms, sample.dirt.rolled_ms
    if since_ms is None or rolled_ms is None or now_ms - rolled_ms <= rules.slack_ms:
        return None
    age_ms = now_ms - since_ms
    remedy = (
        "look for the cleaner in the broker's log (`log.cleaner.enable` off? thread dead?), then restart the broker"
    )
    if found.max_lag_ms is not None and age_ms > found.max_lag_ms + found.min_lag_ms + rules.slack_ms:
        return f"superseded for {about_ms(age_ms)}, but max.compaction.lag.ms is {about_ms(found.max_lag_ms)}: {remedy}"
    position = sample.position
    if position is None or position.ratio < found.min_cleanable_ratio or position.dirty_bytes == 0:
        return None
    if age_ms > found.min_lag_ms + found.segment_ms + rules.slack_ms:
        return (
            f"{position.ratio:.0%} of the rolled segments are dirty, min.cleanable.dirty.ratio is "
            f"{found.min_cleanable_ratio:.0%}, and nothing was compacted for {about_ms(age_ms)}: {remedy}"
        )
    return None


def proposal(found: CompactionSettings, now_ms: int, samples: Sequence[CompactionSample]) -> Mapping[str, str]:
    """Return settings, by name, with which superseded records would be compacted; those of the topology come first.

    Empty if every value that could be proposed is set already.
    """
    asked: dict[str, float] = {
        "min.cleanable.dirty.ratio": found.min_cleanable_ratio,
        "segment.ms": found.segment_ms,
        "segment.bytes": found.segment_bytes,
    }
    ours = {name: found.wanted[name] for name, now in asked.items() if float(found.wanted.get(name, now)) != now}
    if ours:
        return ours
    changes: dict[str, str] = {}
    if found.min_cleanable_ratio > _USUAL_RATIO:
        changes["min.cleanable.dirty.ratio"] = str(_USUAL_RATIO)
    # The active segment is never compacted, and a small partition has no other.
    if all(sample.topic_bytes is None or sample.topic_bytes < found.segment_bytes for sample in samples):
        since_ms = min((s.dirt.superseded_since_ms for s in samples if s.dirt.superseded_since_ms), default=now_ms)
        if now_ms - since_ms < found.segment_ms and found.segment_ms > _SHORT_SEGMENT_MS:
            changes["segment.ms"] = str(_SHORT_SEGMENT_MS)
    if not changes and found.min_cleanable_ratio > _LOW_RATIO:
        changes["min.cleanable.dirty.ratio"] = str(_LOW_RATIO)
    return changes


def _remedy(found: CompactionSettings, changes: Mapping[str, str], topology: str) -> str:
    if not changes:
        return (
            f"No setting delays the cleaner: `tidemark check compaction {topology} --log-dir FOLDER`, with the log folder of a "
            "broker, shows its position, and the broker's log shows whether it runs"
        )
    summary = ", ".join(f"{name}={value}" for name, value in changes.items())
    if all(found.wanted.get(name) == value for name, value in changes.items()):
        return f"The topology asks for {summary}: `tidemark topics run {topology}`"
    return (
        f"Give the store topic_config or profile='aggressive_compaction' ({summary}), then `tidemark topics run "
        f"{topology}`"
    )


def restore_now_s(sample: CompactionSample, rules: CompactionRules) -> float:
    """Return the estimated seconds to read the partition as it is."""
    return sample.offsets / rules.offsets_per_s


def restore_compacted_s(sample: CompactionSample, rules: CompactionRules) -> float:
    """Return the same if each key had one record; the unscanned beginning is assumed to be like the scanned part."""
    return restore_now_s(sample, rules) * (1 - sample.dirt.superseded_share)


def _fine(samples: Sequence[CompactionSample], rules: CompactionRules) -> str:
    records = sum(sample.dirt.records for sample in samples)
    if not records:
        return "holds no records"
    superseded = sum(sample.dirt.superseded for sample in samples)
    slowest = max(restore_now_s(sample, rules) for sample in samples)
    return f"{superseded} of {records} records scanned are superseded; a restore of one task takes {_seconds(slowest)}"


def _settings(found: CompactionSettings) -> dict[str, object]:
    return {
        "cleanup.policy": ",".join(sorted(found.cleanup_policy)),
        "min.cleanable.dirty.ratio": found.min_cleanable_ratio,
        "min.compaction.lag.ms": found.min_lag_ms,
        "max.compaction.lag.ms": found.max_lag_ms,
        "segment.ms": found.segment_ms,
        "segment.bytes": found.segment_bytes,
        "delete.retention.ms": found.delete_retention_ms,
        "retention.bytes": found.retention_bytes,
    }


def _evidence(sample: CompactionSample, now_ms: int, rules: CompactionRules) -> dict[str, object]:
    dirt, position = sample.dirt, sample.position
    return {
        "offsets": sample.offsets,
        "bytes": sample.topic_bytes,
        "scanned_offsets": sample.scanned_offsets,
        "scanned_records": dirt.records,
        "keys": dirt.keys,
        "superseded": dirt.superseded,
        "records_per_key": round(dirt.records / dirt.keys, 2) if dirt.keys else None,
        "waiting_tombstones": dirt.waiting_tombstones,
        "superseded_for_ms": None if dirt.superseded_since_ms is None else now_ms - dirt.superseded_since_ms,
        "dirty_ratio": round(sample.dirty_ratio, 4),
        "dirty_ratio_is": "at least, estimated from the scan" if position is None else "exact, from the log folder",
        "first_dirty_offset": dirt.first_repeat_offset if position is None else position.first_dirty_offset,
        "active_segment_bytes": None if position is None else position.active_bytes,
        "active_segment_age_ms": None
        if position is None or position.active_since_ms is None
        else now_ms - position.active_since_ms,
        "restore_now_s": round(restore_now_s(sample, rules), 4),
        "restore_compacted_s": round(restore_compacted_s(sample, rules), 4),
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s"
