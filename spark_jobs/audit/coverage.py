"""The findings on what an audit could not check in its cut, and why, so that the report shows these gaps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from spark_jobs.audit.reading import DLQ, SINK, SOURCE, AuditRange
from tidemark.audit.contracts import Contract
from tidemark.audit.cut import Cut
from tidemark.audit.derivable import Derivable, NotDerived
from tidemark.audit.expectations import LATE_RECORDS, Check
from tidemark.audit.ranges import PassedOver
from tidemark.audit.suites import NOT_COMPUTED, NOTHING_NEW
from tidemark.names import TopicPartition
from tidemark.topology.plan import TopologyPlan
from tidemark.verdict import Finding, Verdict

_MARKER_RECORDS = 1
_SHORTER = "audit more often than that, or keep it longer"


def thinned(
    plan: TopologyPlan, cut: Cut, compacted_before_ms: Mapping[str, int], kept_from: Mapping[TopicPartition, int]
) -> frozenset[str]:
    """Return the sources from which compaction may have removed records of the cut.

    These are the sources whose oldest batch was committed before `compacted_before_ms`, or whose records begin before
    `kept_from`, which is, per partition, the first offset that is too young to be compacted. The first offset may be a
    transaction marker.
    """
    found = set()
    for task, run in cut.ranges.items():
        for topic in plan.subtopologies[task.subtopology].source_topics:
            spans = [r.sources[topic][task.partition] for r in run.computed if topic in r.sources]
            spans = [(start, end) for start, end in spans if start < end]
            if topic not in compacted_before_ms or not spans:
                continue
            is_old = min(r.commit_time_ms for r in run.computed) < compacted_before_ms[topic]
            start, end = min(start for start, _ in spans), max(end for _, end in spans)
            if is_old or min(end, kept_from.get(TopicPartition(topic, task.partition), end)) > start + _MARKER_RECORDS:
                found.add(topic)
    return frozenset(found)


def untold(
    reading: AuditRange,
    thin: Collection[str],
    not_derived: Sequence[NotDerived],
    without_base: Mapping[str, str],
    ruled: Sequence[Contract],
) -> list[Finding]:
    """Return the findings on topics. `without_base` has reasons by topic; `ruled` are the topology's contracts.

    Those that follow from the topology do not count in the verdict. Those on what this audit could not look at do.
    """
    roles = reading.roles
    found = []
    for one in not_derived:
        is_counted = one.topic in roles and roles[one.topic].role != SOURCE
        rest = "its records are only counted" if is_counted else "its records are not counted either"
        found.append(_never(one.topic, f"its values are not computed again, because {one.reason}; {rest}"))
    lost = sorted(topic for topic in reading.lost if roles[topic].role == SOURCE)
    found += [_not_computed(topic, "its beginning has been deleted from the topic") for topic in lost]
    why_thin = "the topic is compacted, and records of its batches may be compacted away (min.compaction.lag.ms)"
    found += [_not_computed(topic, f"{why_thin}; {_SHORTER}") for topic in sorted(thin)]
    found += [_not_computed(topic, why) for topic, why in without_base.items()]
    found += [
        _not_checked(
            topic,
            f"missing dead letters are not checked, because the topic's beginning has been deleted; {_SHORTER}",
        )
        for topic in sorted(reading.lost)
        if roles[topic].role == DLQ
    ]
    found += [
        _never(one.asset, "its contract is not checked, because its records are not read as those of a sink")
        for one in ruled
        if not is_read(one, reading)
    ]
    return found


def never_judged(
    plan: TopologyPlan, found: Derivable, subtopologies: Collection[int], checks: Sequence[Check]
) -> list[Finding]:
    """Return a finding for each check of batches that the topology lets no audit make in any of these sub-topologies.

    `checks` are those of the asset `accounts`. These findings do not count in the verdict.
    """
    purged = set(plan.repartition_topics)
    read = {s.index for s in plan.subtopologies if not purged & set(s.source_topics)} & set(subtopologies)
    late = read & found.late_rows & {derived.subtopology.index for derived in found.derived}
    return [
        _never(
            check.name,
            "not checked, because the topology does not let an audit compute these figures for the batches of this cut: "
            + (
                "not every node is a plain aggregation"
                if read
                else "they come from a repartition topic, which is purged"
            ),
        )
        for check in checks
        if not (late if check.name == LATE_RECORDS else read)
    ]


def is_read(contract: Contract, reading: AuditRange) -> bool:
    """Return whether the audit reads the records of a contract's topic."""
    role = reading.roles.get(contract.topic)
    return role is not None and role.role == (SOURCE if contract.is_source else SINK)


def has_all_letters(reading: AuditRange) -> bool:
    """Return whether no dead letter of the cut can have expired."""
    return not any(reading.roles[topic].role == DLQ for topic in reading.lost)


def without_input(cut: Cut) -> list[Finding]:
    """Return a finding if the batches of the cut read no record. It counts for the audit's verdict."""
    spans = (
        span
        for run in cut.ranges.values()
        for record in run.computed
        for by_partition in record.sources.values()
        for span in by_partition.values()
    )
    if any(start < end for start, end in spans):
        return []
    if not cut.ranges:
        message = "no new batch since the last audit"
        return [Finding("batches", Verdict.NOT_ENOUGH_EVIDENCE, message, {NOTHING_NEW: True})]
    message = "the new batches read no record of a source, so they prove nothing; audit again after new input"
    return [_not_checked("batches", message)]


def left(cut: Cut, most_batches: int, *, whole: bool) -> list[Finding]:
    """Return a finding if batches are left that one audit does not reach. It counts for the audit's verdict.

    A range also ends at a change of the state, such as a rewind. The next audit goes on there, but not one of the `whole`.
    """
    found = {
        task: number for task, number in cut.left.items() if whole or len(cut.ranges[task].records) >= most_batches
    }
    if not found:
        return []
    listed = ", ".join(f"{number:,} of task {task}" for task, number in sorted(found.items()))
    message = f"batches are left that were not examined: {listed}; " + (
        "audits without --whole examine them, or have done so"
        if whole
        else "the next audit goes on with them; if they become more, raise audit_batches, or audit more often"
    )
    return [_not_checked("batches", message)]


def unread(unreadable: Mapping[str, str], checks: Sequence[Check]) -> list[Finding]:
    """Return a finding per check of savepoints if some could not be read. `unreadable` has reasons by task and store."""
    if not unreadable:
        return []
    listed = "; ".join(f"{store}: {why}" for store, why in sorted(unreadable.items()))
    message = f"savepoints could not be read, so these stores were not compared: {listed}; run `tidemark savepoint verify NAME`"
    return [_not_checked(check.name, message) for check in checks]


def passed(left_out: Sequence[PassedOver]) -> list[Finding]:
    """Return a finding for the skipped batches of each task. These findings count for the audit's verdict."""
    return [
        Finding(
            f"task {one.task}",
            Verdict.NOT_ENOUGH_EVIDENCE,
            f"batches {one.first_batch} to {one.last_batch} are not audited: {one.reason}; {one.remedy}",
            {"first_batch": one.first_batch, "last_batch": one.last_batch},
        )
        for one in left_out
    ]


def _not_computed(topic: str, why: str) -> Finding:
    return _not_checked(topic, f"its values are not computed again, because {why}; its records are only counted")


def _not_checked(subject: str, message: str) -> Finding:
    return Finding(subject, Verdict.NOT_ENOUGH_EVIDENCE, message)


def _never(subject: str, message: str) -> Finding:
    return Finding(subject, Verdict.NOT_ENOUGH_EVIDENCE, message, {NOT_COMPUTED: True})
