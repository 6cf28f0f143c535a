"""The retention check: whether state is kept for as long as it is needed, and no longer. One verdict per store.

A pure function of samples and `now`. Expiry is measured in event time: keys of windows and sessions contain it, and a store
removes expired entries by its task's stream time. A broker deletes by the records' own timestamps, which are the wall
clock (docs/checks.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tidemark.stream_times import NO_STREAM_TIME
from tidemark.topology.durations import about_ms, format_ms
from tidemark.verdict import Finding, Verdict, worst

_Fault = tuple[Verdict, str]


@dataclass(frozen=True)
class DiskCopy:
    """A store's segments in the folder of one holder, ascending by number; each covers the store's `segment_ms`.

    `stream_time_ms` is that of its checkpoint. `unreadable` is the reason if the copy cannot be read.
    """

    task: str
    holder: str
    segments: tuple[int, ...]
    stream_time_ms: int
    unreadable: str = ""


@dataclass(frozen=True)
class ChangelogSample:
    """The beginning of one changelog partition. `scanned_records` were read from `low_offset` on.

    `expired_records` of them belong to windows past the store's retention. Times are the oldest of the records read, in epoch
    milliseconds; None if none was read.
    """

    task: str
    stream_time_ms: int
    low_offset: int
    end_offset: int
    scanned_records: int
    expired_records: int
    oldest_event_ms: int | None
    oldest_record_ms: int | None


@dataclass(frozen=True)
class TopicSettings:
    """Settings of a changelog topic. `wanted_retention_ms`: what the topology asks for, None if nothing is deleted by time.

    `is_source`: it is the user's own topic, of a table that is its own changelog. `retention_bytes` is -1 if nothing is
    deleted by size.
    """

    topic: str
    cleanup_policy: frozenset[str]
    retention_ms: int
    segment_ms: int
    wanted_retention_ms: int | None
    is_source: bool = False
    retention_bytes: int = -1

    @property
    def deletes_by_size(self) -> bool:
        """Return whether the broker deletes the oldest records of a partition that is too large, however young they are."""
        return "delete" in self.cleanup_policy and self.retention_bytes >= 0

    @property
    def deletes_after_ms(self) -> int | None:
        """Return the age at which the broker deletes records; None if it never does."""
        return self.retention_ms if "delete" in self.cleanup_policy and self.retention_ms >= 0 else None


@dataclass(frozen=True)
class StoreRetention:
    """One store. `span_ms`: size and grace of its windows, for which a window is open; None if the store has no windows.

    `topic` is None if there is none, for the reason `no_topic`.
    """

    store: str
    span_ms: int | None
    retention_ms: int | None
    segment_ms: int | None
    topic: TopicSettings | None
    no_topic: str
    changelogs: tuple[ChangelogSample, ...]
    copies: tuple[DiskCopy, ...]


@dataclass(frozen=True)
class RetentionRules:
    """Limits of the check. A record may outlive its topic's retention by a segment and by `deletion_slack_ms`."""

    deletion_slack_ms: int = 3_600_000


def retention_findings(
    stores: Sequence[StoreRetention], topology: str, now_ms: int, rules: RetentionRules
) -> list[Finding]:
    """Return one finding per store, in the given order. `topology` names the module, for remedies."""
    return [_of_store(store, topology, now_ms, rules) for store in stores]


def _of_store(store: StoreRetention, topology: str, now_ms: int, rules: RetentionRules) -> Finding:
    """Return the first of the worst faults: a lesser one must not hide that state is lost, whatever the order of tasks."""
    faults = [
        *_settings_faults(store, topology),
        *_disk_faults(store, topology),
        *_topic_faults(store, topology, now_ms, rules),
    ]
    evidence = _evidence(store, now_ms)
    found = [Finding(store.store, *fault, evidence) for fault in faults or [_fine(store)]]
    verdict = worst(found)
    return next(finding for finding in found if finding.verdict is verdict)


def _settings_faults(store: StoreRetention, topology: str) -> Iterator[_Fault]:
    """Yield the faults of the settings alone, which lose state sooner or later, whatever the topic holds now."""
    kept, topic = store.retention_ms, store.topic
    if kept is not None and store.span_ms is not None and kept < store.span_ms:
        yield (
            Verdict.FAILED,
            f"keeps {format_ms(kept)}, its windows are open for {format_ms(store.span_ms)} (size and grace): windows are "
            f"dropped while records may still come; raise retention= above {format_ms(store.span_ms)}",
        )
    if topic is None:
        return
    remedy, deleted_ms = _remedy(topic, topology), topic.deletes_after_ms
    if kept is None and "delete" in topic.cleanup_policy:
        yield (
            Verdict.FAILED,
            f"{topic.topic} has cleanup.policy={','.join(sorted(topic.cleanup_policy))}: a restore loses keys that were not "
            f"written for long; {remedy}",
        )
    if topic.deletes_by_size:
        yield (
            Verdict.FAILED,
            f"{topic.topic} has retention.bytes={topic.retention_bytes}: the broker deletes windows that are still live once "
            f"a partition is larger; {remedy}",
        )
    if kept is not None and deleted_ms is not None and deleted_ms < kept:
        yield (
            Verdict.FAILED,
            f"{topic.topic} deletes after {format_ms(deleted_ms)}, the store keeps {format_ms(kept)}: a restore lacks "
            f"windows that are still live; {remedy}",
        )
    wanted_ms = topic.wanted_retention_ms
    if wanted_ms is not None and deleted_ms is not None and deleted_ms < wanted_ms:
        yield (
            Verdict.WARNING,
            f"{topic.topic} deletes after {format_ms(deleted_ms)}, less than the {format_ms(wanted_ms)} that the topology "
            f"asks for: an instance that is stopped for long finds windows deleted; {remedy}",
        )
    if "compact" not in topic.cleanup_policy:
        yield (
            Verdict.WARNING,
            f"{topic.topic} is not compacted: a restore reads every value that a key ever had; {remedy}",
        )


def _disk_faults(store: StoreRetention, topology: str) -> Iterator[_Fault]:
    if store.topic is None and store.no_topic and not store.copies:
        yield Verdict.NOT_ENOUGH_EVIDENCE, f"{store.no_topic}, and no copy of it is on this machine"
    for copy in store.copies:
        if copy.unreadable:
            yield Verdict.NOT_ENOUGH_EVIDENCE, f"the copy of task {copy.task} in {copy.holder}: {copy.unreadable}"
        if expired := expired_segments(store, copy):
            yield (
                Verdict.WARNING,
                f"task {copy.task} in {copy.holder} still has {len(expired)} segments of windows past retention; they are "
                f"removed at the task's next commit: check whether it commits (`tidemark check lag {topology}`)",
            )


def _topic_faults(store: StoreRetention, topology: str, now_ms: int, rules: RetentionRules) -> Iterator[_Fault]:
    if store.topic is None or store.retention_ms is None:
        return
    known = [sample for sample in store.changelogs if sample.stream_time_ms != NO_STREAM_TIME]
    if not known:
        yield (
            Verdict.NOT_ENOUGH_EVIDENCE,
            "no task has committed a record yet, so nothing can have expired; check again when one has",
        )
    for sample in known:
        yield from _lost(store, store.topic, sample, topology, now_ms)
    oldest_ms = min((s.oldest_record_ms for s in known if s.oldest_record_ms is not None), default=now_ms)
    deleted_ms = store.topic.deletes_after_ms
    if deleted_ms is not None and now_ms - oldest_ms > deleted_ms + store.topic.segment_ms + rules.deletion_slack_ms:
        yield (
            Verdict.WARNING,
            f"{store.topic.topic} holds records {about_ms(now_ms - oldest_ms)} old; the broker should have deleted them "
            f"after {format_ms(deleted_ms)} and a segment of {format_ms(store.topic.segment_ms)}: look at its log",
        )


def _lost(
    store: StoreRetention, topic: TopicSettings, sample: ChangelogSample, topology: str, now_ms: int
) -> Iterator[_Fault]:
    """Yield a fault if live windows are missing from the changelog, or may be."""
    if (missing_ms := missing_windows_ms(store, sample)) is not None:
        yield (
            Verdict.FAILED,
            f"task {sample.task} has windows on this disk that are {about_ms(missing_ms)} older than the oldest in "
            f"{topic.topic}: they are deleted there and would be lost with the disk; run `tidemark savepoint take {topology}`, "
            "and keep the topic's settings as they are now",
        )
    # As in the start plan: the broker counts wall clock, the store counts stream time.
    oldest_live_ms = sample.stream_time_ms - (store.retention_ms or 0)
    deleted_ms = topic.deletes_after_ms
    if deleted_ms is not None and now_ms - oldest_live_ms >= deleted_ms and sample.low_offset > 0:
        yield (
            Verdict.WARNING,
            f"{topic.topic} has lost its beginning, and the stream time of task {sample.task} is "
            f"{about_ms(now_ms - sample.stream_time_ms)} behind the clock: live windows may be missing from it, so it "
            f"alone cannot restore the store; run `tidemark savepoint take {topology}`",
        )


def _fine(store: StoreRetention) -> _Fault:
    if store.retention_ms is None:
        where = f"{store.topic.topic} is compacted" if store.topic else store.no_topic
        return Verdict.OK, f"has no windows, nothing expires by time; {where}"
    parts = [f"keeps {format_ms(store.retention_ms)}"]
    if store.topic is not None:
        deleted_ms = store.topic.deletes_after_ms
        parts.append(f"its topic {'for ever' if deleted_ms is None else format_ms(deleted_ms)}")
    scanned = sum(sample.scanned_records for sample in store.changelogs)
    expired = sum(sample.expired_records for sample in store.changelogs)
    if scanned:
        parts.append(f"{expired} of the first {scanned} records in the topic are past the store's retention")
    upcoming = [each for each in (next_expiry_ms(store, copy) for copy in store.copies) if each is not None]
    if upcoming:
        parts.append(f"the next windows expire in {about_ms(max(0, min(upcoming)))} of stream time")
    return Verdict.OK, "; ".join(parts)


def missing_windows_ms(store: StoreRetention, sample: ChangelogSample) -> int | None:
    """Return by how much live windows on this disk are older than the topic's oldest; None if the topic has them, too.

    A changelog is written in the order of the windows except for their grace, so its beginning holds the oldest. An empty one
    lacks every live window. A window is live if it is neither past the retention of its copy nor past that of the task.
    """
    if store.segment_ms is None or sample.low_offset == 0:
        return None
    copies = [copy for copy in store.copies if copy.task == sample.task]
    # A copy that was left over keeps its old stream time, but the task has dropped what has expired since.
    up_to_date = [replace(copy, stream_time_ms=max(copy.stream_time_ms, sample.stream_time_ms)) for copy in copies]
    live = [segment for copy in up_to_date for segment in copy.segments if segment not in expired_segments(store, copy)]
    if not live:
        return None
    if sample.oldest_event_ms is None:
        return max(0, sample.stream_time_ms - min(live) * store.segment_ms)
    missing_ms = sample.oldest_event_ms - (min(live) + 1) * store.segment_ms
    return missing_ms if missing_ms >= 0 else None


def expired_segments(store: StoreRetention, copy: DiskCopy) -> list[int]:
    """Return the segments on disk of which every window is past the store's retention."""
    if store.retention_ms is None or store.segment_ms is None or copy.stream_time_ms == NO_STREAM_TIME:
        return []
    first_live = (copy.stream_time_ms - store.retention_ms) // store.segment_ms
    return [segment for segment in copy.segments if segment < first_live]


def next_expiry_ms(store: StoreRetention, copy: DiskCopy) -> int | None:
    """Return the stream time that must pass until the oldest segment is dropped; None if there is nothing to drop."""
    if store.retention_ms is None or store.segment_ms is None or not copy.segments:
        return None
    return (copy.segments[0] + 1) * store.segment_ms + store.retention_ms - copy.stream_time_ms


def _evidence(store: StoreRetention, now_ms: int) -> dict[str, object]:
    topic = store.topic
    return {
        "span_ms": store.span_ms,
        "retention_ms": store.retention_ms,
        "segment_ms": store.segment_ms,
        "topic": None if topic is None else topic.topic,
        "topic_retention_ms": None if topic is None else topic.retention_ms,
        "topic_retention_bytes": None if topic is None else topic.retention_bytes,
        "cleanup_policy": None if topic is None else ",".join(sorted(topic.cleanup_policy)),
        "tasks": {
            sample.task: {
                "stream_time_ms": sample.stream_time_ms,
                "low_offset": sample.low_offset,
                "end_offset": sample.end_offset,
                "scanned_records": sample.scanned_records,
                "expired_records": sample.expired_records,
                "oldest_event_ms": sample.oldest_event_ms,
                "oldest_record_age_ms": None if sample.oldest_record_ms is None else now_ms - sample.oldest_record_ms,
            }
            for sample in store.changelogs
        },
        "copies": {
            f"{copy.holder}/{copy.task}": {
                "segments": len(copy.segments),
                "expired_segments": len(expired_segments(store, copy)),
                "next_expiry_ms": next_expiry_ms(store, copy),
            }
            for copy in store.copies
        },
    }


def _remedy(topic: TopicSettings, topology: str) -> str:
    if topic.is_source:
        return (
            f"`tidemark kafka configs --alter --entity-type topics --entity-name {topic.topic} --add-config "
            "cleanup.policy=compact`"
        )
    return f"`tidemark topics run {topology}`"
