"""The samples of the skew check: the newest records of every topic that the application reads, and the keys of its stores."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from tidemark.checks.changelog_scan import scan_changelog
from tidemark.checks.never_ran import never_ran
from tidemark.checks.skew import PartitionSample, SkewRules, sample_of, store_finding, topic_finding
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import partition_counts
from tidemark.names import TaskId, TopicPartition
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.store_sizes import copies_on_disk
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.plan import Source, SubTopology, TopologyPlan
from tidemark.verdict import Finding

READ_RECORDS = 20_000
"""Records read at the end of each partition, which takes a fraction of a second."""
_STALLED_S = 5.0


def check_skew(
    plan: TopologyPlan, settings: Settings, read_records: int = READ_RECORDS, rules: SkewRules | None = None
) -> list[Finding]:
    """Return a verdict per topic that the application reads, and per store with state on this machine. Blocks.

    Raises `OutcomeUnknown` if no broker answers.
    """
    used = rules or SkewRules()
    admin = AdminClient(librdkafka_config(settings))
    if unknown := never_ran(plan, settings, admin):
        return unknown
    plan = named_plan(plan, settings, admin)
    partitions = partition_counts(admin, settings)
    ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
    sources = {source.topic: source for s in plan.subtopologies for source in s.sources if source.topic in partitions}
    findings = [
        topic_finding(topic, _samples(sources[topic], partitions[topic], ends, read_records, settings, used), used)
        for topic in sorted(sources)
    ]
    for subtopology in plan.subtopologies:
        findings += _stores(plan.application_id, subtopology, partitions, settings, used)
    return findings


def _samples(
    source: Source, partitions: int, ends: EndOffsets, read_records: int, settings: Settings, rules: SkewRules
) -> list[PartitionSample]:
    places = [TopicPartition(source.topic, number) for number in range(partitions)]
    low, end = ends.beginnings(places), ends.of(places)
    found = []
    for place in places:
        start = max(low[place], end[place] - read_records)
        scan = scan_changelog(librdkafka_config(settings), place, start, end[place], read_records, _STALLED_S)
        # A scan takes a missing key for an empty one.
        keys = (key_as_text(source.key_serde, key) if key else None for key in scan.keys)
        found.append(sample_of(place.partition, end[place] - low[place], keys, rules))
    return found


def key_as_text(serde: KeySerde, key: bytes) -> bytes:
    """Return the text of a key in UTF-8; a key that has none stays as it is."""
    try:
        return serde.decode(key).encode()
    except ValueError:
        return key


def _stores(
    application_id: str, subtopology: SubTopology, partitions: Mapping[str, int], settings: Settings, rules: SkewRules
) -> list[Finding]:
    """Return a finding per store that has a copy here. Of several copies of a task, the one with the most keys counts.

    Copies of instances that no longer process the task do not count.
    """
    tasks = [TaskId(subtopology.index, p) for p in range(partitions.get(subtopology.lead.topic, 0))]
    found = []
    for spec in subtopology.stores:
        keys: dict[str, int] = {}
        for task in tasks:
            copies = copies_on_disk(settings.state_dir, application_id, task, spec)
            known = [copy.keys.value for copy in copies if copy.keys.value is not None and not copy.is_old]
            if known:
                keys[str(task)] = max(known)
        if keys:
            found.append(store_finding(spec.name, keys, rules))
    return found
