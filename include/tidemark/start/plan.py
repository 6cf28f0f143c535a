"""The start plan of a task: a pure function of what was found (row A3, rule 4).

`tests/start/test_plan.py` goes through every combination of the table in `docs/start-plan.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitRecord
from tidemark.names import TaskId, TopicPartition
from tidemark.stores.marker import NO_STREAM_TIME, Marker
from tidemark.topology.plan import Guarantee


class CopyKind(Enum):
    """Where a copy of a store lies. The order is the order of preference between equally new ones."""

    LOCAL = 0
    STANDBY = 1
    SAVEPOINT = 2


@dataclass(frozen=True)
class StateCopy:
    """A copy of one store and its marker; `location` is for the message."""

    kind: CopyKind
    marker: Marker
    location: str


@dataclass(frozen=True)
class Watermarks:
    """`low` is the first offset that exists, `end` the read_uncommitted end."""

    low: int
    end: int


@dataclass(frozen=True)
class StoreEvidence:
    """What was found of one store. `changelog_retention_ms` is None where the topic is only compacted."""

    store: str
    value_layout: str
    copies: tuple[StateCopy, ...]
    changelog: TopicPartition
    changelog_watermarks: Watermarks
    delete_retention_ms: int
    store_retention_ms: int | None
    changelog_retention_ms: int | None


@dataclass(frozen=True)
class SourceEvidence:
    """What was found of one source partition. `fresh_offset` is where a new application would begin."""

    partition: TopicPartition
    committed_offset: int | None
    watermarks: Watermarks
    fresh_offset: int


@dataclass(frozen=True)
class TaskEvidence:
    """Everything that decides how a task starts. The first source leads."""

    application_id: str
    task: TaskId
    sources: tuple[SourceEvidence, ...]
    committed_metadata: OffsetMetadata | None
    last_record: CommitRecord | None
    guarantee: Guarantee
    stores: tuple[StoreEvidence, ...]
    now_ms: int


@dataclass(frozen=True)
class Standing:
    """Where Kafka says a task stands; `next_offsets` by source topic."""

    next_offsets: Mapping[str, int]
    batch: int
    stream_time_ms: int


@dataclass(frozen=True)
class Fresh:
    """Nothing was ever done: commit the start offsets first, then go. `next_offsets` are by source topic."""

    next_offsets: Mapping[str, int]


@dataclass(frozen=True)
class UseReady:
    """A copy stands where Kafka stands."""

    copy: StateCopy


@dataclass(frozen=True)
class ReplayTail:
    """A copy is behind: replay the changelog from `from_offset`."""

    copy: StateCopy
    from_offset: int


@dataclass(frozen=True)
class RestoreWhole:
    """No copy will do: rebuild from the whole changelog. `why` says what was wrong with each copy."""

    from_offset: int
    why: str


StorePlan = UseReady | ReplayTail | RestoreWhole


@dataclass(frozen=True)
class Resume:
    """Go on from `standing` once each store is as its plan says."""

    standing: Standing
    stores: Mapping[str, StorePlan]


@dataclass(frozen=True)
class Refuse:
    """Do not start. `remedy` is what to do about `reason`."""

    reason: str
    remedy: str


StartPlan = Fresh | Resume | Refuse


def plan_start(found: TaskEvidence) -> StartPlan:
    """Decide how a task starts. Reads nothing, writes nothing."""
    standing = _standing(found)
    if isinstance(standing, Fresh | Refuse):
        return standing
    for source in found.sources:
        next_offset = standing.next_offsets[source.partition.topic]
        if next_offset < source.watermarks.low:
            return Refuse(
                f"task {found.task}: {source.partition} begins at offset {source.watermarks.low}, the application has "
                f"processed up to {next_offset}: the records in between are deleted",
                f"raise retention.ms of {source.partition.topic}; to go on without them: "
                f"{_reset(found, source, source.watermarks.low)}",
            )
        if next_offset > source.watermarks.end:
            return Refuse(
                f"task {found.task}: {source.partition} ends at offset {source.watermarks.end}, the application has "
                f"processed up to {next_offset}: the topic was deleted or made anew",
                "bring the topic back, or give the topology another application id to start afresh",
            )
    plans: dict[str, StorePlan] = {}
    for store in found.stores:
        plan = _plan_store(found, store, standing)
        if isinstance(plan, Refuse):
            return plan
        plans[store.store] = plan
    return Resume(standing, plans)


def _standing(found: TaskEvidence) -> Standing | Fresh | Refuse:
    """The committed offset and the last commit record are two witnesses of one fact."""
    record = found.last_record
    committed = {s.partition.topic: s.committed_offset for s in found.sources if s.committed_offset is not None}
    if record is None:
        traces = _traces(found)
        if traces:
            beside = ", ".join(f"{offset} of {topic}" for topic, offset in committed.items())
            return Refuse(
                f"task {found.task}: there is state ({traces}) but no commit record"
                + (f" beside the committed offset {beside}" if beside else ""),
                f"bring {found.application_id}-commits back; to begin anew, delete the application's changelog topics "
                "and state folder, or give the topology another application id",
            )
        return Fresh({s.partition.topic: committed.get(s.partition.topic, s.fresh_offset) for s in found.sources})
    recorded = record.end_offsets
    known = found.committed_metadata
    is_whole = committed.keys() >= {s.partition.topic for s in found.sources}
    if found.guarantee is Guarantee.AT_LEAST_ONCE and is_whole and committed != recorded and known is not None:
        # Offsets follow the record, so they may be behind it (rule 18): what is between them is processed once more.
        return Standing(committed, known.batch, known.stream_time_ms)
    for source in found.sources:
        topic = source.partition.topic
        if topic not in recorded:
            return Refuse(
                f"task {found.task}: the last commit record (batch {record.batch}) knows nothing of {source.partition}, "
                f"so the topology has changed what it reads",
                "bring the old topology back, or give it another application id to start afresh",
            )
        if topic in committed and committed[topic] != recorded[topic]:
            return Refuse(
                f"task {found.task}: group {found.application_id} stands at {committed[topic]} of {source.partition}, the "
                f"last commit record (batch {record.batch}) says {recorded[topic]}: somebody moved the offsets",
                f"move them back: {_reset(found, source, recorded[topic])}",
            )
    stream_time_ms = record.stream_time_ms if known is None else known.stream_time_ms
    return Standing(
        {s.partition.topic: recorded[s.partition.topic] for s in found.sources}, record.batch, stream_time_ms
    )


def _traces(found: TaskEvidence) -> str:
    traces = [
        f"{copy.kind.name.lower()} copy of {s.store} in {copy.location}" for s in found.stores for copy in s.copies
    ]
    traces += [
        f"{s.changelog} holds records"
        for s in found.stores
        if s.changelog_watermarks.end > s.changelog_watermarks.low or s.changelog_watermarks.low > 0
    ]
    return ", ".join(traces)


def _reset(found: TaskEvidence, source: SourceEvidence, offset: int) -> str:
    return (
        f"tidemark kafka consumer-groups --group {found.application_id} --topic {source.partition.topic}:"
        f"{source.partition.partition} --reset-offsets --to-offset {offset} --execute"
    )


def _told(offsets: Mapping[str, int]) -> str:
    return ", ".join(f"{offset} of {topic}" for topic, offset in offsets.items())


def _plan_store(found: TaskEvidence, store: StoreEvidence, standing: Standing) -> StorePlan | Refuse:
    usable: list[StateCopy] = []
    faults: list[str] = []
    for copy in store.copies:
        offsets = {topic: copy.marker.source_offsets.get(topic, 0) for topic in standing.next_offsets}
        if copy.marker.application_id != found.application_id or copy.marker.store != store.store:
            faults.append(f"{copy.location} belongs to {copy.marker.application_id}/{copy.marker.store}")
        elif copy.marker.value_layout != store.value_layout:
            return Refuse(
                f"task {found.task}: store {store.store} in {copy.location} holds values {copy.marker.value_layout}, "
                f"the topology now wants {store.value_layout}",
                "bring the old aggregates back, or give the store another name",
            )
        elif any(offset > standing.next_offsets[topic] for topic, offset in offsets.items()):
            if copy.kind is CopyKind.LOCAL:
                return Refuse(
                    f"task {found.task}: store {store.store} in {copy.location} stands at {_told(offsets)}, "
                    f"Kafka only at {_told(standing.next_offsets)}: the store is ahead of what was committed",
                    f"the folder is from another life of this application: move {copy.location} away, the state is "
                    "rebuilt from the changelog",
                )
            faults.append(f"{copy.location} is ahead of the committed offset")
        elif offsets == standing.next_offsets:
            return UseReady(copy)
        elif copy.marker.changelog_offset < store.changelog_watermarks.low:
            faults.append(f"{copy.location} is older than the beginning of {store.changelog}")
        elif found.now_ms - copy.marker.commit_time_ms >= store.delete_retention_ms:
            # Tombstones may be gone by now: keys deleted since would come back.
            faults.append(f"{copy.location} is older than delete.retention.ms")
        else:
            usable.append(copy)
    if usable:
        best = max(usable, key=lambda copy: (copy.marker.changelog_offset, -copy.kind.value))
        return ReplayTail(best, best.marker.changelog_offset)
    return _plan_whole(found, store, standing, "; ".join(faults) or "no copy of the store")


def _plan_whole(found: TaskEvidence, store: StoreEvidence, standing: Standing, why: str) -> StorePlan | Refuse:
    low = store.changelog_watermarks.low
    if low > 0 and store.changelog_retention_ms is not None and store.store_retention_ms is not None:
        # Rule 11: the broker counts wall clock, the store counts stream time.
        oldest_live_ms = standing.stream_time_ms - store.store_retention_ms
        if standing.stream_time_ms == NO_STREAM_TIME or found.now_ms - oldest_live_ms >= store.changelog_retention_ms:
            return Refuse(
                f"task {found.task}: {why}, and {store.changelog} has lost its beginning: windows that are still live "
                f"may have been deleted with it",
                f"bring a copy of the state folder back; or raise retention.ms of {store.changelog.topic} and start "
                "anew under another application id",
            )
    return RestoreWhole(low, why)
