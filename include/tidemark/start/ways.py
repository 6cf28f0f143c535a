"""The ways a store can be brought level with Kafka, each with its cost or the reason why it cannot be gone (row A3).

A pure function weighs them for the start of a task and for `tidemark restore plan` alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.names import TopicPartition
from tidemark.start.evidence import SourceOfState, Standing, StateCopy, StoreEvidence, TaskEvidence, Watermarks
from tidemark.stores.marker import NO_STREAM_TIME, Marker


@dataclass(frozen=True)
class Rates:
    """What this machine has been measured to do, of one store; see docs/restore.md for where the figures come from."""

    changelog_offsets_per_s: float
    copied_bytes_per_s: float


MEASURED = Rates(changelog_offsets_per_s=250_000, copied_bytes_per_s=200_000_000)


@dataclass(frozen=True)
class Way:
    """One way. `copy` is None for the whole changelog.

    The changelog is read from `from_offset` to `end_offset`, nothing where the copy stands where Kafka stands. `fault`
    says in one line why the way cannot be gone; `eta_s` is an estimate from rates, in seconds.
    """

    kind: SourceOfState
    copy: StateCopy | None
    from_offset: int
    end_offset: int
    fault: str | None
    eta_s: float

    @property
    def is_ready(self) -> bool:
        """Whether nothing of the changelog is needed."""
        return self.copy is not None and self.from_offset >= self.end_offset

    @property
    def bytes_to_copy(self) -> int:
        """To be fetched before the store can be opened."""
        return self.copy.bytes_to_copy if self.copy else 0

    @property
    def location(self) -> str:
        """Where it comes from, for people."""
        return self.copy.location if self.copy else "the whole changelog"


def weigh(found: TaskEvidence, store: StoreEvidence, standing: Standing, rates: Rates) -> list[Way]:
    """All ways of one store, the fastest first, those with a fault last. Reads nothing."""
    ways = [_by_copy(found, store, standing, rates, copy) for copy in store.copies]
    ways.append(_by_whole_changelog(found, store, standing, rates))
    return sorted(ways, key=lambda way: (way.fault is not None, way.eta_s, way.kind.rank, -way.from_offset))


def is_ahead(marker: Marker, standing: Standing) -> bool:
    """Whether a copy holds more than what was committed."""
    return any(marker.source_offsets.get(topic, 0) > offset for topic, offset in standing.next_offsets.items())


def told(offsets: Mapping[str, int]) -> str:
    """Offsets for a message."""
    return ", ".join(f"{offset} of {topic}" for topic, offset in offsets.items())


def _by_copy(found: TaskEvidence, store: StoreEvidence, standing: Standing, rates: Rates, copy: StateCopy) -> Way:
    end = store.changelog_watermarks.end
    # The batch tells two lives of the same offsets apart: before and after a rewind.
    level = copy.marker.batch == standing.batch and all(
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
        return f"{copy.location} holds values {marker.value_layout}, the topology wants {store.value_layout}"
    if is_ahead(marker, standing):
        return f"{copy.location} is ahead of the committed offset"
    if is_level:
        return None
    if store.store_retention_ms is not None and marker.stream_time_ms > standing.stream_time_ms:
        # Windows that are live once more after a rewind may have expired there.
        return f"{copy.location} is ahead of the committed stream time"
    gap = gap_after(marker, store.changelog, store.changelog_watermarks, store.delete_retention_ms, found.now_ms)
    return None if gap is None else f"{copy.location} {gap}"


def gap_after(
    marker: Marker, changelog: TopicPartition, watermarks: Watermarks, delete_retention_ms: int, now_ms: int
) -> str | None:
    """What reading the changelog from a marker on would miss, in words that follow a copy's name; None where nothing."""
    if marker.changelog_offset < watermarks.low:
        return f"is older than the beginning of {changelog}"
    if marker.changelog_offset > watermarks.end:
        return f"is beyond the end of {changelog}: the topic was made anew"
    if now_ms - marker.commit_time_ms >= delete_retention_ms:
        # Tombstones may be gone by now: keys deleted since would come back.
        return "is older than delete.retention.ms"
    return None


def _by_whole_changelog(found: TaskEvidence, store: StoreEvidence, standing: Standing, rates: Rates) -> Way:
    low, end = store.changelog_watermarks.low, store.changelog_watermarks.end
    fault = None
    if _known_end(found, store) > end:
        fault = f"{store.changelog} ends at {end}, it has been longer: the topic was made anew, what it held is gone"
    elif low > 0 and store.changelog_retention_ms is not None and store.store_retention_ms is not None:
        # Rule 11: the broker counts wall clock, the store counts stream time.
        oldest_live_ms = standing.stream_time_ms - store.store_retention_ms
        if standing.stream_time_ms == NO_STREAM_TIME or found.now_ms - oldest_live_ms >= store.changelog_retention_ms:
            fault = (
                f"{store.changelog} has lost its beginning: windows that are still live may have been deleted with it"
            )
    seconds = max(0, end - low) / rates.changelog_offsets_per_s
    return Way(SourceOfState.CHANGELOG, None, low, end, fault, seconds)


def _known_end(found: TaskEvidence, store: StoreEvidence) -> int:
    """How far the changelog has certainly been."""
    record = found.last_record
    recorded = (
        0 if record is None else record.ends_before.get(store.changelog.topic, {}).get(store.changelog.partition, 0)
    )
    held = [c.marker.changelog_offset for c in store.copies if c.marker.application_id == found.application_id]
    return max([recorded, *held])
