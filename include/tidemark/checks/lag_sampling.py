"""The lag check: one sample of an application's offsets, judged together with earlier samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tidemark.checks.lag import LagRules, LagSample, lag_findings, offline_findings, transaction_findings
from tidemark.checks.lag_sample_table import forget_lag_samples, lag_samples, write_lag_samples
from tidemark.checks.never_ran import never_ran
from tidemark.clock import wall_clock_ms
from tidemark.commit.history import last_commit_records
from tidemark.database import FactsDatabase
from tidemark.errors import FactsUnavailable
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import PartitionFacts, describe_replicas
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.lag import lag_of
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import internal_topics, partition_counts
from tidemark.kafka.transactions import OpenTransaction, open_transactions
from tidemark.names import TaskId, TopicPartition, commits_topic
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.verdict import Finding, Verdict

_KEPT_MS = 7 * 86_400_000
"""Age at which samples are removed; the verdicts are kept."""


@dataclass(frozen=True)
class LagSeen:
    """One look: a sample per source partition, and the open transactions among `looked_at` partitions.

    `offline`: partitions that no broker leads, of which nothing else is known.
    """

    samples: list[LagSample]
    open_transactions: list[OpenTransaction]
    looked_at: int
    offline: list[TopicPartition]


def check_lag(
    plan: TopologyPlan,
    settings: Settings,
    topology: str,
    clock: Callable[[], int] = wall_clock_ms,
    rules: LagRules | None = None,
) -> list[Finding]:
    """Take a sample, store it, and judge it together with earlier ones. Blocks.

    If the database is away, the sample is judged alone, and a finding reports that. Raises `OutcomeUnknown` if no broker
    answers, `PreflightFailed` if a source is missing.
    """
    used = rules or LagRules(open_transaction_ms=settings.transaction_timeout_ms)
    admin = AdminClient(librdkafka_config(settings))
    if unknown := never_ran(plan, settings, admin):
        return unknown
    named = named_plan(plan, settings, admin)
    seen = sample_lag(named, settings, admin, clock)
    app, now_ms = plan.application_id, clock()
    asked = {sample.partition for sample in seen.samples}
    earlier: list[LagSample] = []
    alone: list[Finding] = []
    facts = FactsDatabase(settings)
    try:
        known = lag_samples(facts, app, now_ms - used.window_ms)
        write_lag_samples(facts, app, seen.samples)
        forget_lag_samples(facts, app, now_ms - _KEPT_MS)
        earlier = [sample for sample in known if sample.partition in asked]
    except FactsUnavailable as error:
        summary = f"{error}; judged by this sample alone, without earlier ones"
        alone = [Finding("samples", Verdict.NOT_ENOUGH_EVIDENCE, summary)]
    finally:
        facts.close()
    findings = lag_findings(topology, earlier + seen.samples, named.lead_topics, now_ms, used)
    return (
        findings
        + offline_findings(seen.offline)
        + transaction_findings(seen.looked_at, seen.open_transactions, used)
        + alone
    )


def sample_lag(plan: TopologyPlan, settings: Settings, admin: AdminClient, clock: Callable[[], int]) -> LagSeen:
    """Read the sources' offsets, and look for open transactions in every topic that the application uses. Blocks."""
    partitions = partition_counts(admin, settings)
    _, led = describe_replicas(admin, settings)
    ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
    sources = sorted({topic for s in plan.subtopologies for topic in s.source_topics} & partitions.keys())
    places = [place for place in _places(sources, partitions) if _is_led(place, led)]
    # A running instance commits meanwhile, and records that it has committed may be deleted: so the beginnings are read
    # before the committed offsets, and the ends after them.
    low = ends.beginnings(places)
    rows = {row.partition: row for row in lag_of(plan, partitions, admin, settings, places)}
    missing = [place for place in places if rows[place].committed_offset is None]
    recorded = _recorded(plan, settings, ends, partitions, missing)
    if recorded:
        # Read again after the records (see invariant: source topic as changelog): the first commit may have come between.
        rows = {row.partition: row for row in lag_of(plan, partitions, admin, settings, places)}
    stable = ends.stable(places)
    end = ends.of(places)
    now_ms = clock()
    samples = [
        LagSample(
            now_ms,
            place,
            low[place],
            stable[place],
            max(end[place], stable[place]),
            at := rows[place].committed_offset,
            recorded.get(place) if at is None else None,
            rows[place].member is not None,
        )
        for place in places
    ]
    sinks = {topic for s in plan.subtopologies for topic in s.sink_topics}
    own = {spec.name for spec in internal_topics(plan, settings, partitions)}
    needed = _places(sorted((set(sources) | sinks | own) & partitions.keys()), partitions)
    looked_at = [place for place in needed if _is_led(place, led)]
    offline = [place for place in needed if not _is_led(place, led)]
    return LagSeen(samples, open_transactions(ends, looked_at, now_ms, settings), len(looked_at), offline)


def _is_led(place: TopicPartition, led: Mapping[str, Mapping[int, PartitionFacts]]) -> bool:
    return led[place.topic][place.partition].leader is not None


def _recorded(
    plan: TopologyPlan,
    settings: Settings,
    ends: EndOffsets,
    partitions: Mapping[str, int],
    missing: Sequence[TopicPartition],
) -> dict[TopicPartition, int]:
    """Return the offsets in the last commit records for partitions without a committed offset. Blocks."""
    known = partitions[commits_topic(plan.application_id)]
    tasks = {
        TaskId(subtopology.index, place.partition)
        for subtopology in plan.subtopologies
        for place in missing
        if place.topic in subtopology.source_topics and place.partition < known
    }
    records = last_commit_records(
        librdkafka_config(settings), ends, plan.application_id, tasks, stalled_after_s=stalled_after(settings)
    )
    return {
        TopicPartition(topic, task.partition): offset
        for task, record in records.items()
        for topic, offset in record.end_offsets.items()
    }


def _places(topics: list[str], partitions: dict[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in topics for number in range(partitions[topic])]
