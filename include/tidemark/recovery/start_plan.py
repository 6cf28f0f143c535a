"""The start plan of a task, decided by a pure function of the evidence. See invariant: fresh only when nothing exists.

`tests/unit/recovery/test_start_plan.py` goes through every combination of the table in `docs/start-plan.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.commit.record import CommitRecord
from tidemark.names import TopicPartition, commits_topic, is_repartition_topic
from tidemark.recovery.candidates import (
    MEASURED,
    Rates,
    RecoveryCandidate,
    changelog_fault,
    format_offsets,
    is_ahead,
    level_batches,
    rank_candidates,
)
from tidemark.recovery.evidence import CommittedProgress, SourceEvidence, StoreEvidence, TaskEvidence
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.registry.topic_identities import BEGIN_WITHOUT_STATE, CHANGELOG_REMEDY
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.values import generation_of
from tidemark.topology.plan import Guarantee


@dataclass(frozen=True)
class Fresh:
    """The task has never run: commit the start offsets first. `next_offsets` are by source topic."""

    next_offsets: Mapping[str, int]


@dataclass(frozen=True)
class Resume:
    """Continue from `committed` once each store was brought up to date from its source of state."""

    committed: CommittedProgress
    stores: Mapping[str, RecoveryCandidate]


@dataclass(frozen=True)
class Refuse:
    """Do not start, because of `reason`. `remedy` is what to do about it."""

    reason: str
    remedy: str


StartPlan = Fresh | Resume | Refuse


def plan_start(found: TaskEvidence, rates: Rates = MEASURED, only: SourceOfState | None = None) -> StartPlan:
    """Decide how a task starts. Reads and writes nothing. If `only` is given, other sources of state are not considered."""
    committed = committed_progress_of(found)
    if isinstance(committed, Fresh | Refuse):
        return committed
    plans: dict[str, RecoveryCandidate] = {}
    for store in found.stores:
        plan = (
            _blocked_by(found, store, committed)
            or _without_changelog(found, store)
            or best_candidate(found, store, committed, rates, only)
        )
        if isinstance(plan, Refuse):
            return plan
        plans[store.store] = plan
    return Resume(committed, plans)


def is_decided_by_lost_writes(found: TaskEvidence, plan: StartPlan) -> bool:
    """Whether `lost_until_ms` can change a plan that was made without it.

    It decides only whether a shortened changelog is a source of state, and a store in the instance's own folder that can be
    used is preferred to that in any case.
    """
    if isinstance(plan, Fresh):
        return False
    shortened = [s.store for s in found.stores if not s.is_source and s.changelog_watermarks.low > 0]
    return any(isinstance(plan, Refuse) or plan.stores[name].kind is not SourceOfState.LOCAL for name in shortened)


def committed_progress_of(found: TaskEvidence) -> CommittedProgress | Fresh | Refuse:
    """Return the committed progress of a task. Refuses if its sources no longer hold the next record to read."""
    committed = witnessed(found)
    if isinstance(committed, Fresh | Refuse):
        return committed
    for source in found.sources:
        if source.lost is not None:
            return Refuse(f"task {found.task}: {source.lost.reason}", source.lost.remedy)
        next_offset = committed.next_offsets[source.partition.topic]
        if next_offset < source.watermarks.low:
            return Refuse(
                f"task {found.task}: {source.partition} begins at offset {source.watermarks.low}, the application has "
                f"processed up to {next_offset}: the records in between have been deleted",
                f"raise retention.ms of {source.partition.topic}; to continue without them: "
                f"{_continuing(found, source.partition, source.watermarks.low)}",
            )
        if next_offset > source.watermarks.end:
            return Refuse(
                f"task {found.task}: {source.partition} ends at offset {source.watermarks.end}, the application has "
                f"processed up to {next_offset}: the topic was truncated",
                "to continue with the records that it holds: "
                f"{_continuing(found, source.partition, source.watermarks.end)}",
            )
    return committed


def _continuing(found: TaskEvidence, partition: TopicPartition, offset: int) -> str:
    """Return the command that continues with an offset of a source partition which exists.

    The offsets of the application's own topics are not given: a reset moves them to the nearest offset that exists.
    """
    command = "tidemark reset run NAME --to offsets --state keep --offset"
    if is_repartition_topic(found.application_id, partition.topic):
        return (
            f"`{command} TOPIC:PARTITION=OFFSET`, with the committed offset of every partition that the application reads of "
            "other topics than its own (`tidemark lag NAME`)"
        )
    return (
        f"`{command} {partition.topic}:{partition.partition}={offset}`, with the committed offsets of the other partitions "
        "(`tidemark lag NAME`)"
    )


def witnessed(found: TaskEvidence) -> CommittedProgress | Fresh | Refuse:
    """Return the committed progress of a task. The committed offsets and the last commit record must agree on it."""
    record = found.last_record
    committed = {s.partition.topic: s.committed_offset for s in found.sources if s.committed_offset is not None}
    if record is None:
        traces = _traces(found)
        if traces:
            beside = ", ".join(f"{offset} of {topic}" for topic, offset in committed.items())
            return Refuse(
                f"task {found.task}: there is state ({traces}) but no commit record"
                + (f", although the group has committed offset {beside}" if beside else ""),
                f"bring the topic {found.application_id}-commits back; {BEGIN_WITHOUT_STATE}",
            )
        return Fresh({s.partition.topic: committed.get(s.partition.topic, s.fresh_offset) for s in found.sources})
    recorded = record.end_offsets
    known = found.committed_metadata
    is_whole = committed.keys() >= {s.partition.topic for s in found.sources}
    if record.guarantee is Guarantee.AT_LEAST_ONCE and is_whole and committed != recorded and known is not None:
        # Offsets are committed after the commit record is written, so they may lag (see invariant: order of
        # at_least_once): the records in between are processed once more.
        return CommittedProgress(committed, known.batch, known.stream_times)
    is_exact = record.guarantee is Guarantee.EXACTLY_ONCE
    if known is not None and known.batch > record.batch and (is_exact or committed != recorded):
        # Only Tidemark commits this metadata, so the offsets are right, and the changelogs have the batch.
        commits = commits_topic(found.application_id)
        return Refuse(
            f"task {found.task}: group {found.application_id} has committed batch {known.batch} with offset "
            f"{format_offsets(committed)}, but the last commit record is of batch {record.batch} with offset "
            f"{format_offsets(recorded)}: topic {commits} lost its last records",
            f"bring the last records of {commits} back, for example from a broker that still has them, and leave the offsets "
            f"as they are; {BEGIN_WITHOUT_STATE}",
        )
    for source in found.sources:
        topic = source.partition.topic
        if topic not in recorded:
            return Refuse(
                f"task {found.task}: the last commit record (batch {record.batch}) does not contain {source.partition}: "
                f"the topology has been changed to read other topics",
                "bring the old topology back, or give the new one another application id to start it from nothing",
            )
        if topic in committed and committed[topic] != recorded[topic]:
            return Refuse(
                f"task {found.task}: group {found.application_id} has committed offset {committed[topic]} of "
                f"{source.partition}, but the last commit record (batch {record.batch}) has {recorded[topic]}: the "
                "offsets were changed by another program",
                f"move them back: {_reset(found, source, recorded[topic])}",
            )
    stream_times = record.stream_times if known is None else known.stream_times
    return CommittedProgress(
        {s.partition.topic: recorded[s.partition.topic] for s in found.sources}, record.batch, stream_times
    )


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


def _blocked_by(found: TaskEvidence, store: StoreEvidence, committed: CommittedProgress) -> Refuse | None:
    """Return a refusal if a local store must not be run with, and only an operator may discard it."""
    for copy in store.copies:
        if copy.kind is not SourceOfState.LOCAL or generation_of(copy.checkpoint.value_layout) < generation_of(
            store.value_layout
        ):
            continue  # An upgrade or a rescale has written the store again elsewhere, so this copy is merely of no use.
        if copy.checkpoint.value_layout != store.value_layout:
            return Refuse(
                f"task {found.task}: store {store.store} in {copy.location} holds values of layout "
                f"{copy.checkpoint.value_layout}, but the topology now needs {store.value_layout}",
                "bring the old aggregates back, or give the store another name",
            )
        if is_ahead(copy.checkpoint, committed):
            return Refuse(
                f"task {found.task}: store {store.store} in {copy.location} has processed up to "
                f"{format_offsets(copy.checkpoint.source_offsets)}, but only {format_offsets(committed.next_offsets)} is "
                "committed: the store is ahead of the last commit",
                "the folder belongs to an earlier application of this id, or its offsets were moved back: `tidemark restore "
                "run NAME` replaces the folder and keeps the old one",
            )
    return None


def _without_changelog(found: TaskEvidence, store: StoreEvidence) -> Refuse | None:
    """Return a refusal if the changelog is damaged, also if a local store is up to date: the state would be lost with its disk.

    See invariant: topic identity.
    """
    fault = changelog_fault(found, store)
    return None if fault is None else Refuse(f"task {found.task}: {fault}", CHANGELOG_REMEDY)


def best_candidate(
    found: TaskEvidence,
    store: StoreEvidence,
    committed: CommittedProgress,
    rates: Rates,
    only: SourceOfState | None,
    planned: str | None = None,
) -> RecoveryCandidate | Refuse:
    """Return the fastest source of state without a fault, of kind `only` if given; a refusal if there is none.

    The source whose location is `planned` comes first, however fast the others are, unless it has a fault.
    """
    candidates = rank_candidates(found, store, committed, rates, only)
    usable = [candidate for candidate in candidates if candidate.fault is None]
    if usable:
        return next((candidate for candidate in usable if candidate.location == planned), usable[0])
    faults = [f"{candidate.kind.value}: {candidate.fault}" for candidate in candidates]
    if only is not None:
        faults = faults or [f"there is no {only.value} copy"]
        if isinstance(best_candidate(found, store, committed, rates, None), RecoveryCandidate):
            # Which one is not known here: with a requested kind, no copy is marked as suspected by the last drill.
            return Refuse(
                f"task {found.task}: store {store.store} cannot be restored from {only.value}: {'; '.join(faults)}",
                "make a new plan without `--from`, or with `fastest` as `source` of the DAG: it may use another source",
            )
    return Refuse(
        f"task {found.task}: no source of state can be used for store {store.store}: {'; '.join(faults)}",
        f"bring a copy of the state folder or a savepoint back; or raise retention.ms of {store.changelog.topic} and "
        "start from nothing under another application id",
    )


def unlogged_fault(
    checkpoint: StoreCheckpoint | None, value_layout: str, committed: CommittedProgress, record: CommitRecord | None
) -> str | None:
    """Return why a store without a changelog cannot be used as it is; None if it is up to date with the last commit.

    Equal offsets prove nothing: a tick does not move them, and an application that was deleted and started again may
    have the same ones. So the batch is compared too.
    """
    if checkpoint is None:
        return "its folder holds nothing that was committed"
    if checkpoint.value_layout != value_layout:
        return f"its folder holds values of layout {checkpoint.value_layout}, but the topology needs {value_layout}"
    if checkpoint.batch not in level_batches(record, committed) or dict(checkpoint.source_offsets) != dict(
        committed.next_offsets
    ):
        last = f"the last commit is batch {committed.batch}" if committed.batch >= 0 else "nothing was ever committed"
        return f"its folder holds batch {checkpoint.batch}, while {last}"
    return None
