"""The sources that a store can be brought up to date from, each with its cost, or with the fault that rules it out.

The same pure function compares them for the start of a task and for `tidemark restore plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.names import TopicPartition
from tidemark.recovery.evidence import (
    CLOCKS_MS,
    CommittedProgress,
    KeptDeletions,
    StateCopy,
    StoreEvidence,
    TaskEvidence,
    Watermarks,
)
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.values import generation_of

_CHANGE_NO_STORE = frozenset([CommitKind.UPGRADE, CommitKind.REPAIR])


@dataclass(frozen=True)
class Rates:
    """The rates at which a machine reads and copies one store, per second."""

    changelog_offsets_per_s: float
    copied_bytes_per_s: float
    source_offsets_per_s: float = 200_000
    spark_start_s: float = 10


MEASURED = Rates(changelog_offsets_per_s=250_000, copied_bytes_per_s=200_000_000)
"""Measured once with `make restore-bench` (see docs/restore.md); used for applications that no drill has measured."""


@dataclass(frozen=True)
class RecoveryCandidate:
    """One source that a store can be brought up to date from. `copy` is None for the whole changelog and the source topics.

    The changelog is read from `from_offset` to `end_offset`; for SOURCE, the source topics are, and their offsets are
    added up. Nothing is read if the copy is up to date. `fault` says in one line why the source cannot be used; None if
    it can. `eta_s` is an estimate from rates, in seconds.
    """

    kind: SourceOfState
    copy: StateCopy | None
    from_offset: int
    end_offset: int
    fault: str | None
    eta_s: float

    @property
    def is_ready(self) -> bool:
        """Whether the copy can be used without reading the changelog."""
        return self.copy is not None and self.from_offset >= self.end_offset

    @property
    def bytes_to_copy(self) -> int:
        """The bytes to fetch before the store can be opened."""
        return self.copy.bytes_to_copy if self.copy else 0

    @property
    def location(self) -> str:
        """The place that the contents come from, for messages."""
        if self.copy is not None:
            return self.copy.location
        return "the source topics" if self.kind is SourceOfState.SOURCE else "the whole changelog"


def rank_candidates(
    found: TaskEvidence,
    store: StoreEvidence,
    committed: CommittedProgress,
    rates: Rates,
    only: SourceOfState | None = None,
) -> list[RecoveryCandidate]:
    """Return all sources of one store, or only those of one kind: the fastest first, those with a fault last. Reads nothing."""
    if only is SourceOfState.SOURCE:
        return [_by_source_topics(found, store, committed, rates)]
    candidates = [_by_copy(found, store, committed, rates, copy) for copy in store.copies]
    candidates.append(_by_whole_changelog(found, store, committed, rates))
    candidates = [candidate for candidate in candidates if only in (None, candidate.kind)]
    return sorted(
        candidates,
        key=lambda candidate: (
            candidate.fault is not None,
            candidate.eta_s,
            candidate.kind.rank,
            -candidate.from_offset,
        ),
    )


def is_ahead(checkpoint: StoreCheckpoint, committed: CommittedProgress) -> bool:
    """Whether a copy holds more than what was committed."""
    return any(checkpoint.source_offsets.get(topic, 0) > offset for topic, offset in committed.next_offsets.items())


def level_batches(record: CommitRecord | None, committed: CommittedProgress) -> set[int]:
    """Return the batches that a store in an instance's folder may have and still be up to date.

    `record` is the task's last one.

    The commit of an upgrade or a repair is a batch that changes no store, so the batch before it will do. A copy that
    is not in an instance's folder must have the changelog records that such a commit wrote.
    """
    changes_none = record is not None and record.kind in _CHANGE_NO_STORE and record.batch == committed.batch
    return {committed.batch, committed.batch - 1} if changes_none else {committed.batch}


def format_offsets(offsets: Mapping[str, int]) -> str:
    """Format offsets for a message."""
    return ", ".join(f"{offset} of {topic}" for topic, offset in offsets.items())


def _by_copy(
    found: TaskEvidence, store: StoreEvidence, committed: CommittedProgress, rates: Rates, copy: StateCopy
) -> RecoveryCandidate:
    end = store.changelog_watermarks.end
    # Equal offsets can belong to two histories, before and after a rewind; the batch distinguishes them.
    record = found.last_record
    is_held = copy.kind is not SourceOfState.LOCAL and record is not None and store.changelog.topic in record.changelogs
    level = copy.checkpoint.batch in level_batches(None if is_held else record, committed) and all(
        copy.checkpoint.source_offsets.get(topic) == offset for topic, offset in committed.next_offsets.items()
    )
    start = end if level else copy.checkpoint.changelog_offset
    seconds = copy.bytes_to_copy / rates.copied_bytes_per_s + max(0, end - start) / rates.changelog_offsets_per_s
    return RecoveryCandidate(copy.kind, copy, start, end, _fault_of(found, store, committed, copy, level), seconds)


def _fault_of(
    found: TaskEvidence, store: StoreEvidence, committed: CommittedProgress, copy: StateCopy, is_level: bool
) -> str | None:
    checkpoint = copy.checkpoint
    if checkpoint.application_id != found.application_id or checkpoint.store != store.store:
        return f"{copy.location} belongs to {checkpoint.application_id}/{checkpoint.store}"
    if checkpoint.value_layout != store.value_layout:
        return f"{copy.location} holds values of layout {checkpoint.value_layout}, but the topology needs {store.value_layout}"
    if copy.suspected is not None:
        return f"{copy.location} {copy.suspected}"
    if is_ahead(checkpoint, committed):
        return f"{copy.location} is ahead of the committed offset"
    if is_level:
        return None
    if store.lost is not None:
        return f"{copy.location} needs the tail of {store.changelog}, and {store.lost.reason}"
    if store.store_retention_ms is not None and checkpoint.stream_time_ms > committed.stream_times.of(store.store):
        # Windows that a rewind has made live again may have expired in the copy.
        return f"{copy.location} is ahead of the committed stream time"
    gap = gap_after(checkpoint, store.changelog, store.changelog_watermarks, store.kept_deletions, found.now_ms)
    return None if gap is None else f"{copy.location} {gap}"


def gap_after(
    checkpoint: StoreCheckpoint,
    changelog: TopicPartition,
    watermarks: Watermarks,
    kept: KeptDeletions,
    now_ms: int,
) -> str | None:
    """Return what reading the changelog from a checkpoint on would miss; None if nothing.

    The result is a clause that follows the name of the copy.
    """
    if checkpoint.changelog_offset < watermarks.low:
        return f"is older than the beginning of {changelog}"
    if checkpoint.changelog_offset > watermarks.end:
        return f"is beyond the end of {changelog}: the topic was created again"
    # Tombstones may have been compacted away: keys that were deleted since would come back.
    return kept.gap_since(checkpoint.commit_time_ms, now_ms)


def holds_last_commit(copy: StateCopy, found: TaskEvidence, store: StoreEvidence) -> bool:
    """Whether a copy contains all that the last commit wrote to the store's changelog, whatever the changelog holds now."""
    record = found.last_record
    return record is not None and has_changes_of(
        record, copy.checkpoint, store.store, store.value_layout, store.changelog
    )


def has_changes_of(
    record: CommitRecord, checkpoint: StoreCheckpoint, store: str, value_layout: str, changelog: TopicPartition
) -> bool:
    """Whether a copy contains all that the commit of `record` wrote to the changelog of a store, which has this value layout.

    A read_committed reader has all that a transaction wrote, or none of it. A copy of another application, store or value
    layout counts the offsets of another changelog.
    """
    if (checkpoint.application_id, checkpoint.store) != (record.application_id, store):
        return False
    end = end_after(record, changelog)
    return checkpoint.value_layout == value_layout and end is not None and checkpoint.changelog_offset >= end


def changelog_fault(found: TaskEvidence, store: StoreEvidence) -> str | None:
    """Return why a changelog is not what was written to it, whatever the local store holds; None if it is intact.

    It has a fault if it was deleted or created again, if it ends before an offset that was certainly written, if it
    lost records sooner than `retention.ms` allows, or if it is only compacted and lost any. A source topic that serves
    as a changelog is not checked: its owner may shorten it. See invariant: topic identity.
    """
    if store.is_source:
        return None
    if store.lost is not None:
        return store.lost.reason
    offset, at_ms = max(_known(found, store), default=(0, 0))
    low, end = store.changelog_watermarks.low, store.changelog_watermarks.end
    if offset > end:
        return (
            f"{store.changelog} ends at offset {end}, but was written up to {offset}: it was truncated or created again"
        )
    if low > offset > 0 and (
        store.changelog_retention_ms is None or found.now_ms - at_ms < store.changelog_retention_ms - CLOCKS_MS
    ):
        return (
            f"{store.changelog} begins at offset {low}: everything up to offset {offset} was deleted sooner than "
            "retention.ms allows, so the changelog was truncated, or the clock of this machine is hours behind the brokers'"
        )
    if store.young_offset is not None and low > store.young_offset:
        return (
            f"{store.changelog} begins at offset {low}, but the records from offset {store.young_offset} on are too young "
            "for retention.ms to have deleted them: the changelog was truncated, or the clock of this machine is hours behind "
            "the brokers'"
        )
    if has_lost_beginning(store):
        return (
            f"{store.changelog} has lost its beginning, up to offset {low}, although it is only compacted: keys that were not "
            "written since then exist only in local stores, standbys and savepoints"
        )
    return None


def has_lost_beginning(store: StoreEvidence) -> bool:
    """Whether a changelog that is only compacted has lost its beginning, and with it keys that were not written since."""
    return not store.is_source and store.changelog_retention_ms is None and store.changelog_watermarks.low > 0


def _known(found: TaskEvidence, store: StoreEvidence) -> list[tuple[int, int]]:
    """Return offsets up to which the changelog was certainly written, each with its time.

    They come from the last commit record and the local store.
    """
    record = found.last_record
    known: list[tuple[int, int]] = []
    if record is not None:
        known.append((end_after(record, store.changelog) or 0, record.commit_time_ms))
    generation = generation_of(store.value_layout)
    known += [
        (copy.checkpoint.changelog_offset, copy.checkpoint.commit_time_ms)
        for copy in store.copies
        if copy.kind is SourceOfState.LOCAL
        and copy.checkpoint.application_id == found.application_id
        and generation_of(copy.checkpoint.value_layout) == generation
    ]
    return known


def end_after(record: CommitRecord, changelog: TopicPartition) -> int | None:
    """Return the offset up to which a changelog was certainly written when the commit of `record` ended.

    None if the record does not name the changelog. Markers and aborted records may have made it longer.
    """
    before = record.ends_before.get(changelog.topic, {}).get(changelog.partition)
    if before is None or record.has_filled(changelog.topic):
        return before
    return before + record.changelogs.get(changelog.topic, 0)


def _by_whole_changelog(
    found: TaskEvidence, store: StoreEvidence, committed: CommittedProgress, rates: Rates
) -> RecoveryCandidate:
    low, end = store.changelog_watermarks.low, store.changelog_watermarks.end
    fault = _incomplete(found, store, committed) or changelog_fault(found, store)
    seconds = max(0, end - low) / rates.changelog_offsets_per_s
    return RecoveryCandidate(SourceOfState.CHANGELOG, None, low, end, fault, seconds)


def _incomplete(found: TaskEvidence, store: StoreEvidence, committed: CommittedProgress) -> str | None:
    """Return what reading the whole changelog would miss; None if nothing."""
    low, end = store.changelog_watermarks.low, store.changelog_watermarks.end
    if _known_end(found, store) > end:
        return (
            f"{store.changelog} ends at offset {end} but was longer before: the topic was created again, its contents "
            "are lost"
        )
    if low > 0 and not store.is_source and None in (store.changelog_retention_ms, store.store_retention_ms):
        return f"{store.changelog} has lost its beginning: keys that were not written since may have been in it"
    if low > 0 and store.changelog_retention_ms is not None and store.store_retention_ms is not None:
        # The broker counts wall clock, the store counts stream time (see invariant: two retentions).
        stream_time_ms = committed.stream_times.of(store.store)
        oldest_live_ms = stream_time_ms - store.store_retention_ms
        if store.lost_until_ms is not None:
            # At that commit the store held no newer window, so whatever is live now was written later.
            is_lost = store.lost_until_ms >= oldest_live_ms
        else:
            is_lost = found.now_ms - oldest_live_ms >= store.changelog_retention_ms
        if stream_time_ms == NO_STREAM_TIME or is_lost:
            return (
                f"{store.changelog} has lost its beginning: windows that are still live may have been deleted with it"
            )
    return None


def _by_source_topics(
    found: TaskEvidence, store: StoreEvidence, committed: CommittedProgress, rates: Rates
) -> RecoveryCandidate:
    offsets = sum(committed.next_offsets.values())
    seconds = rates.spark_start_s + offsets / rates.source_offsets_per_s
    return RecoveryCandidate(SourceOfState.SOURCE, None, 0, offsets, _not_recomputable(found, store), seconds)


def _not_recomputable(found: TaskEvidence, store: StoreEvidence) -> str | None:
    if store.not_recomputable_reason is not None:
        return f"its contents cannot be computed from its source topics alone: {store.not_recomputable_reason}"
    for source in found.sources:
        if source.watermarks.low > 0:
            return f"{source.partition} has lost its beginning, up to offset {source.watermarks.low}"
        if source.fresh_offset > 0:
            return f"auto_offset_reset is latest: the application has not processed {source.partition} from its start"
        if source.is_compacted:
            return f"{source.partition.topic} is compacted: it does not hold all records that were processed"
    return None


def _known_end(found: TaskEvidence, store: StoreEvidence) -> int:
    """Return the highest offset up to which the changelog was certainly written."""
    recorded = 0 if found.last_record is None else end_after(found.last_record, store.changelog) or 0
    # An earlier generation's copy counts the offsets of another changelog.
    generation = generation_of(store.value_layout)
    own = (c.checkpoint for c in store.copies if c.checkpoint.application_id == found.application_id)
    held = [checkpoint.changelog_offset for checkpoint in own if generation_of(checkpoint.value_layout) == generation]
    return max([recorded, *held])
