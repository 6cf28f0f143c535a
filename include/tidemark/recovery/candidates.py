"""The sources that a store can be brought up to date from, each with its cost, or with the fault that rules it out.

The same pure function compares them for the start of a task and for `tidemark restore plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.names import TopicPartition
from tidemark.recovery.evidence import SourceOfState, Standing, StateCopy, StoreEvidence, TaskEvidence, Watermarks
from tidemark.stores.store_checkpoint import Marker
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.values import generation_of

_CHANGE_NO_STORE = frozenset([CommitKind.UPGRADE, CommitKind.REPAIR])


@dataclass(frozen=True)
class Rates:
    """What a machine reads or copies per second, for one store."""

    changelog_offsets_per_s: float
    copied_bytes_per_s: float
    source_offsets_per_s: float = 200_000
    spark_start_s: float = 10


MEASURED = Rates(changelog_offsets_per_s=250_000, copied_bytes_per_s=200_000_000)
"""Measured once with `make restore-bench` (see docs/restore.md); used for applications that no drill has measured."""


@dataclass(frozen=True)
class Way:
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


def weigh(
    found: TaskEvidence, store: StoreEvidence, standing: Standing, rates: Rates, only: SourceOfState | None = None
) -> list[Way]:
    """Return all sources of one store, or only those of one kind: the fastest first, those with a fault last. Reads nothing."""
    if only is SourceOfState.SOURCE:
        return [_by_source_topics(found, store, standing, rates)]
    ways = [_by_copy(found, store, standing, rates, copy) for copy in store.copies]
    ways.append(_by_whole_changelog(found, store, standing, rates))
    ways = [way for way in ways if only in (None, way.kind)]
    return sorted(ways, key=lambda way: (way.fault is not None, way.eta_s, way.kind.rank, -way.from_offset))


def is_ahead(marker: Marker, standing: Standing) -> bool:
    """Whether a copy holds more than what was committed."""
    return any(marker.source_offsets.get(topic, 0) > offset for topic, offset in standing.next_offsets.items())


def level_batches(record: CommitRecord | None, standing: Standing) -> set[int]:
    """Return the batches that a store in an instance's folder may have and still be up to date.

    `record` is the task's last one.

    The commit of an upgrade or a repair is a batch that changes no store, so the batch before it will do. A copy that
    is not in an instance's folder must have the changelog records that such a commit wrote.
    """
    changes_none = record is not None and record.kind in _CHANGE_NO_STORE and record.batch == standing.batch
    return {standing.batch, standing.batch - 1} if changes_none else {standing.batch}


def told(offsets: Mapping[str, int]) -> str:
    """Format offsets for a message."""
    return ", ".join(f"{offset} of {topic}" for topic, offset in offsets.items())


def _by_copy(found: TaskEvidence, store: StoreEvidence, standing: Standing, rates: Rates, copy: StateCopy) -> Way:
    end = store.changelog_watermarks.end
    # Equal offsets can belong to two histories, before and after a rewind; the batch distinguishes them.
    record = found.last_record
    is_held = copy.kind is not SourceOfState.LOCAL and record is not None and store.changelog.topic in record.changelogs
    level = copy.marker.batch in level_batches(None if is_held else record, standing) and all(
        copy.marker.source_offsets.get(topic) == offset for topic, offset in standing.next_offsets.items()
    )
    start = end if level else copy.marker.changelog_offset
    seconds = copy.bytes_to_copy / rates.copied_bytes_per_s + max(0, end - start) / rates.changelog_offsets_per_s
    return Way(copy.kind, copy, start, end, _fault_of(found, store, standing, copy, level), seconds)


def _fault_of(
    found: TaskEvidence, store: StoreEvidence, standing: Standing, copy: StateCopy, is_level: bool
) -> str | None:
    marker = copy.marker
    if marker.application_id != found.application_id or marker.store != store.store:
        return f"{copy.location} belongs to {marker.application_id}/{marker.store}"
    if marker.value_layout != store.value_layout:
        return (
            f"{copy.location} holds values of layout {marker.value_layout}, but the topology needs {store.value_layout}"
        )
    if copy.suspected is not None:
        return f"{copy.location} {copy.suspected}"
    if is_ahead(marker, standing):
        return f"{copy.location} is ahead of the committed offset"
    if is_level:
        return None
    if store.lost is not None:
        return f"{copy.location} needs the tail of {store.changelog}, and {store.lost.reason}"
    if store.store_retention_ms is not None and marker.stream_time_ms > standing.stream_times.of(store.store):
        # Windows that a rewind has made live again may have expired in the copy.
        return f"{copy.location} is ahead of the committed stream time"
    gap = gap_after(marker, store.changelog, store.changelog_watermarks, store.delete_retention_ms, found.now_ms)
    return None if gap is None else f"{copy.location} {gap}"


def gap_after(
    marker: Marker, changelog: TopicPartition, watermarks: Watermarks, delete_retention_ms: int, now_ms: int
) -> str | None:
    """Return what reading the changelog from a marker on would miss; None if nothing.

    The result is a clause that follows the name of the copy.
    """
    if marker.changelog_offset < watermarks.low:
        return f"is older than the beginning of {changelog}"
    if marker.changelog_offset > watermarks.end:
        return f"is beyond the end of {changelog}: the topic was created again"
    if now_ms - marker.commit_time_ms >= delete_retention_ms:
        # Tombstones may have been compacted away: keys that were deleted since would come back.
        return "is older than delete.retention.ms"
    return None


def holds_last_commit(copy: StateCopy, found: TaskEvidence, store: StoreEvidence) -> bool:
    """Whether a copy contains all that the last commit wrote to the store's changelog, whatever the changelog holds now.

    The records of the commit come after its `ends_before`, in one transaction: a read_committed reader has all or none
    of them.
    """
    record, marker = found.last_record, copy.marker
    if record is None or (marker.application_id, marker.store) != (found.application_id, store.store):
        return False
    topic = store.changelog.topic
    before = record.ends_before.get(topic, {}).get(store.changelog.partition)
    wrote = record.changelogs.get(topic, 0)
    return (
        marker.value_layout == store.value_layout and before is not None and marker.changelog_offset >= before + wrote
    )


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
        store.changelog_retention_ms is None or found.now_ms - at_ms < store.changelog_retention_ms
    ):
        return (
            f"{store.changelog} begins at offset {low}: everything up to offset {offset} was deleted sooner than "
            "retention.ms allows, so the changelog was truncated"
        )
    if store.young_offset is not None and low > store.young_offset:
        return (
            f"{store.changelog} begins at offset {low}, but the records from offset {store.young_offset} on are too young "
            "for retention.ms to have deleted them: the changelog was truncated"
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
        ends = record.ends_before.get(store.changelog.topic, {})
        known.append((ends.get(store.changelog.partition, 0), record.commit_time_ms))
    generation = generation_of(store.value_layout)
    known += [
        (copy.marker.changelog_offset, copy.marker.commit_time_ms)
        for copy in store.copies
        if copy.kind is SourceOfState.LOCAL
        and copy.marker.application_id == found.application_id
        and generation_of(copy.marker.value_layout) == generation
    ]
    return known


def _by_whole_changelog(found: TaskEvidence, store: StoreEvidence, standing: Standing, rates: Rates) -> Way:
    low, end = store.changelog_watermarks.low, store.changelog_watermarks.end
    fault = _incomplete(found, store, standing) or changelog_fault(found, store)
    seconds = max(0, end - low) / rates.changelog_offsets_per_s
    return Way(SourceOfState.CHANGELOG, None, low, end, fault, seconds)


def _incomplete(found: TaskEvidence, store: StoreEvidence, standing: Standing) -> str | None:
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
        stream_time_ms = standing.stream_times.of(store.store)
        oldest_live_ms = stream_time_ms - store.store_retention_ms
        if stream_time_ms == NO_STREAM_TIME or found.now_ms - oldest_live_ms >= store.changelog_retention_ms:
            return (
                f"{store.changelog} has lost its beginning: windows that are still live may have been deleted with it"
            )
    return None


def _by_source_topics(found: TaskEvidence, store: StoreEvidence, standing: Standing, rates: Rates) -> Way:
    offsets = sum(standing.next_offsets.values())
    seconds = rates.spark_start_s + offsets / rates.source_offsets_per_s
    return Way(SourceOfState.SOURCE, None, 0, offsets, _impure(found, store), seconds)


def _impure(found: TaskEvidence, store: StoreEvidence) -> str | None:
    if store.impure is not None:
        return f"its contents cannot be computed from its source topics alone: {store.impure}"
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
    record = found.last_record
    recorded = (
        0 if record is None else record.ends_before.get(store.changelog.topic, {}).get(store.changelog.partition, 0)
    )
    # An earlier generation's copy counts the offsets of another changelog.
    generation = generation_of(store.value_layout)
    own = (c.marker for c in store.copies if c.marker.application_id == found.application_id)
    held = [marker.changelog_offset for marker in own if generation_of(marker.value_layout) == generation]
    return max([recorded, *held])
