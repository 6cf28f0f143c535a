"""The start plan of a task: a pure function of what was found (row A3, rule 4).

`tests/start/test_start_plan.py` goes through every combination of the table in `docs/start-plan.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.commit.record import CommitRecord
from tidemark.start.evidence import SourceEvidence, SourceOfState, Standing, StoreEvidence, TaskEvidence
from tidemark.start.identities import BEGIN_WITHOUT_STATE, CHANGELOG_REMEDY
from tidemark.start.ways import MEASURED, Rates, Way, changelog_fault, is_ahead, level_batches, told, weigh
from tidemark.stores.marker import Marker
from tidemark.tasks.values import generation_of
from tidemark.topology.plan import Guarantee


@dataclass(frozen=True)
class Fresh:
    """Nothing was ever done: commit the start offsets first, then go. `next_offsets` are by source topic."""

    next_offsets: Mapping[str, int]


@dataclass(frozen=True)
class Resume:
    """Go on from `standing` once each store has gone its way."""

    standing: Standing
    stores: Mapping[str, Way]


@dataclass(frozen=True)
class Refuse:
    """Do not start. `remedy` is what to do about `reason`."""

    reason: str
    remedy: str


StartPlan = Fresh | Resume | Refuse


def plan_start(found: TaskEvidence, rates: Rates = MEASURED, only: SourceOfState | None = None) -> StartPlan:
    """Decide how a task starts. Reads nothing, writes nothing; `only` rules every other source of state out."""
    standing = standing_of(found)
    if isinstance(standing, Fresh | Refuse):
        return standing
    plans: dict[str, Way] = {}
    for store in found.stores:
        plan = (
            _blocked_by(found, store, standing)
            or _without_changelog(found, store)
            or best_way(found, store, standing, rates, only)
        )
        if isinstance(plan, Refuse):
            return plan
        plans[store.store] = plan
    return Resume(standing, plans)


def standing_of(found: TaskEvidence) -> Standing | Fresh | Refuse:
    """Where Kafka says a task stands, if its sources still hold what comes next."""
    standing = witnessed(found)
    if isinstance(standing, Fresh | Refuse):
        return standing
    for source in found.sources:
        if source.lost is not None:
            return Refuse(f"task {found.task}: {source.lost.reason}", source.lost.remedy)
        next_offset = standing.next_offsets[source.partition.topic]
        if next_offset < source.watermarks.low:
            return Refuse(
                f"task {found.task}: {source.partition} begins at offset {source.watermarks.low}, the application has "
                f"processed up to {next_offset}: the records in between are deleted",
                f"raise retention.ms of {source.partition.topic}; to go on without them: `tidemark offsets reset NAME --to "
                f"offsets --state keep --offset {source.partition.topic}:{source.partition.partition}="
                f"{source.watermarks.low}`, with the committed offsets of the other partitions (`tidemark lag NAME`)",
            )
        if next_offset > source.watermarks.end:
            return Refuse(
                f"task {found.task}: {source.partition} ends at offset {source.watermarks.end}, the application has "
                f"processed up to {next_offset}: the topic was truncated",
                f"to go on with what it holds: `tidemark offsets reset NAME --to offsets --state keep --offset "
                f"{source.partition.topic}:{source.partition.partition}={source.watermarks.end}`, with the committed offsets "
                "of the other partitions (`tidemark lag NAME`)",
            )
    return standing


def witnessed(found: TaskEvidence) -> Standing | Fresh | Refuse:
    """Where the application stands: the committed offset and the last commit record are two witnesses of one fact."""
    record = found.last_record
    committed = {s.partition.topic: s.committed_offset for s in found.sources if s.committed_offset is not None}
    if record is None:
        traces = _traces(found)
        if traces:
            beside = ", ".join(f"{offset} of {topic}" for topic, offset in committed.items())
            return Refuse(
                f"task {found.task}: there is state ({traces}) but no commit record"
                + (f" beside the committed offset {beside}" if beside else ""),
                f"bring {found.application_id}-commits back; {BEGIN_WITHOUT_STATE}",
            )
        return Fresh({s.partition.topic: committed.get(s.partition.topic, s.fresh_offset) for s in found.sources})
    recorded = record.end_offsets
    known = found.committed_metadata
    is_whole = committed.keys() >= {s.partition.topic for s in found.sources}
    if found.guarantee is Guarantee.AT_LEAST_ONCE and is_whole and committed != recorded and known is not None:
        # Offsets follow the record, so they may be behind it (rule 18): what is between them is processed once more.
        return Standing(committed, known.batch, known.stream_times)
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
    stream_times = record.stream_times if known is None else known.stream_times
    return Standing({s.partition.topic: recorded[s.partition.topic] for s in found.sources}, record.batch, stream_times)


def _traces(found: TaskEvidence) -> str:
    traces = [
        f"{copy.kind.name.lower()} copy of {s.store} in {copy.location}" for s in found.stores for copy in s.copies
    ]
    traces += [
        f"{s.changelog} holds records"
        for s in found.stores
        if not s.is_source
        and (s.changelog_watermarks.end > s.changelog_watermarks.low or s.changelog_watermarks.low > 0)
    ]
    return ", ".join(traces)


def _reset(found: TaskEvidence, source: SourceEvidence, offset: int) -> str:
    return (
        f"tidemark kafka consumer-groups --group {found.application_id} --topic {source.partition.topic}:"
        f"{source.partition.partition} --reset-offsets --to-offset {offset} --execute"
    )


def _blocked_by(found: TaskEvidence, store: StoreEvidence, standing: Standing) -> Refuse | None:
    """A local store that no instance may run beside, and that only a person may throw away."""
    for copy in store.copies:
        if copy.kind is not SourceOfState.LOCAL or generation_of(copy.marker.value_layout) < generation_of(
            store.value_layout
        ):
            continue  # What an upgrade or a rescale has written anew elsewhere is merely of no use.
        if copy.marker.value_layout != store.value_layout:
            return Refuse(
                f"task {found.task}: store {store.store} in {copy.location} holds values {copy.marker.value_layout}, "
                f"the topology now wants {store.value_layout}",
                "bring the old aggregates back, or give the store another name",
            )
        if is_ahead(copy.marker, standing):
            return Refuse(
                f"task {found.task}: store {store.store} in {copy.location} stands at {told(copy.marker.source_offsets)}, "
                f"Kafka only at {told(standing.next_offsets)}: the store is ahead of what was committed",
                "the folder is from another life of this application: `tidemark restore run` replaces it, and keeps it "
                "aside",
            )
    return None


def _without_changelog(found: TaskEvidence, store: StoreEvidence) -> Refuse | None:
    """Also beside a level store: the next disk that is lost would take the state with it (rule 27)."""
    fault = changelog_fault(found, store)
    return None if fault is None else Refuse(f"task {found.task}: {fault}", CHANGELOG_REMEDY)


def best_way(
    found: TaskEvidence, store: StoreEvidence, standing: Standing, rates: Rates, only: SourceOfState | None
) -> Way | Refuse:
    """The fastest way without a fault, of `only` that kind where one is asked for."""
    ways = weigh(found, store, standing, rates, only)
    best = next((way for way in ways if way.fault is None), None)
    if best is not None:
        return best
    faults = [f"{way.kind.value}: {way.fault}" for way in ways]
    if only is not None and not faults:
        faults = [f"there is no {only.value} copy"]
    return Refuse(
        f"task {found.task}: no source of state will do for store {store.store}: {'; '.join(faults)}",
        f"bring a copy of the state folder or a savepoint back; or raise retention.ms of {store.changelog.topic} and "
        "start anew under another application id",
    )


def unlogged_fault(
    marker: Marker | None, value_layout: str, standing: Standing, record: CommitRecord | None
) -> str | None:
    """Why a store without a changelog cannot go on with what its folder holds; None where it is level with the last commit.

    Offsets do not tell: a tick leaves them where they are, and so may a new life of the application. The batch does.
    """
    if marker is None:
        return "its folder holds nothing that was committed"
    if marker.value_layout != value_layout:
        return f"its folder holds values {marker.value_layout}, the topology wants {value_layout}"
    if marker.batch not in level_batches(record, standing) or dict(marker.source_offsets) != dict(
        standing.next_offsets
    ):
        last = f"the last commit is batch {standing.batch}" if standing.batch >= 0 else "nothing was ever committed"
        return f"its folder holds batch {marker.batch}, while {last}"
    return None
