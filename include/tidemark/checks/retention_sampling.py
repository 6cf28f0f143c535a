"""The samples of the retention check: topic settings, the first records of changelogs, segments on this machine's disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient

from tidemark.checks.changelog_scan import scan_changelog
from tidemark.checks.never_ran import never_ran
from tidemark.checks.retention import (
    ChangelogSample,
    DiskCopy,
    RetentionRules,
    StoreRetention,
    TopicSettings,
    retention_findings,
)
from tidemark.clock import wall_clock_ms
from tidemark.commit.history import last_commit_records
from tidemark.errors import TidemarkError
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topic_config import changelog_policy
from tidemark.kafka.topics import partition_counts, task_ids
from tidemark.names import TaskId, TopicPartition
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.store_sizes import copies_on_disk, segments_on_disk
from tidemark.stores.directory import STORES_FOLDER
from tidemark.stream_times import NO_STREAM_TIME, StreamTimes
from tidemark.tasks.task import changelog_of
from tidemark.tasks.values import event_times
from tidemark.topology.plan import Aggregation, Reduce, StoreSpec, StreamStreamJoin, SubTopology, TopologyPlan
from tidemark.topology.stores import window_span_ms
from tidemark.verdict import Finding

SCANNED_RECORDS = 2_000
"""Records read from the beginning of each changelog partition, which holds the oldest."""


def check_retention(
    plan: TopologyPlan, settings: Settings, topology: str, clock: Callable[[], int] = wall_clock_ms
) -> list[Finding]:
    """Return a verdict per store. Blocks, for some seconds if the topology is large.

    Raises `OutcomeUnknown` if no broker answers, `PreflightFailed` if a source is missing.
    """
    admin = AdminClient(librdkafka_config(settings))
    if unknown := never_ran(plan, settings, admin):
        return unknown
    found = RetentionSampler(named_plan(plan, settings, admin), settings, admin).stores()
    return retention_findings(found, topology, clock(), RetentionRules())


@dataclass
class RetentionSampler:
    """Takes the samples of one application. Only reads; may run beside running instances."""

    plan: TopologyPlan
    settings: Settings
    admin: AdminClient
    _stream_times: dict[TaskId, StreamTimes] = field(default_factory=dict)

    def stores(self) -> list[StoreRetention]:
        """Return every store of the application, in the order of the topology."""
        partitions = partition_counts(self.admin, self.settings)
        tasks = task_ids(self.plan, partitions)
        ends = EndOffsets(self.admin, self.settings.broker_timeout_ms / 1000)
        records = last_commit_records(
            librdkafka_config(self.settings),
            ends,
            self.plan.application_id,
            tasks,
            stalled_after_s=self.settings.broker_timeout_ms / 1000,
        )
        self._stream_times = {task: record.stream_times for task, record in records.items()}
        logged = [changelog_of(self.plan.application_id, spec) for spec in self.plan.stores if spec.is_logged]
        configs = topic_configs(self.admin, [topic for topic in logged if topic in partitions], self.settings)
        return [
            self._store(
                subtopology, spec, [task for task in tasks if task.subtopology == subtopology.index], configs, ends
            )
            for subtopology in self.plan.subtopologies
            for spec in subtopology.stores
        ]

    def _store(
        self,
        subtopology: SubTopology,
        spec: StoreSpec,
        tasks: list[TaskId],
        configs: Mapping[str, Mapping[str, str]],
        ends: EndOffsets,
    ) -> StoreRetention:
        name = changelog_of(self.plan.application_id, spec)
        topic, why = None, "it is not logged"
        if spec.is_logged and name in configs:
            topic, why = _topic(name, spec, configs[name]), ""
        elif spec.is_logged:
            why = f"{name} does not exist yet"
        return StoreRetention(
            store=spec.name,
            span_ms=span_ms(subtopology, spec),
            retention_ms=spec.retention_ms,
            segment_ms=spec.segment_ms,
            topic=topic,
            no_topic=why,
            changelogs=self._changelogs(name, spec, tasks, ends) if topic is not None else (),
            copies=tuple(copy for task in tasks for copy in self._copies(task, spec)),
        )

    def _changelogs(
        self, topic: str, spec: StoreSpec, tasks: list[TaskId], ends: EndOffsets
    ) -> tuple[ChangelogSample, ...]:
        places = {task: TopicPartition(topic, task.partition) for task in tasks}
        low, end = ends.beginnings(list(places.values())), ends.of(list(places.values()))
        return tuple(self._changelog(task, spec, place, low[place], end[place]) for task, place in places.items())

    def _changelog(self, task: TaskId, spec: StoreSpec, place: TopicPartition, low: int, end: int) -> ChangelogSample:
        stream_time_ms = self._stream_times.get(task, StreamTimes.none()).of(spec.name)
        if spec.retention_ms is None:
            return ChangelogSample(str(task), stream_time_ms, low, end, 0, 0, None, None)
        client = librdkafka_config(self.settings)
        stalled_after_s = self.settings.broker_timeout_ms / 1000
        scan = scan_changelog(client, place, low, end, SCANNED_RECORDS, stalled_after_s)
        times = event_times(spec.kind, scan.keys)
        return ChangelogSample(
            task=str(task),
            stream_time_ms=stream_time_ms,
            low_offset=low,
            end_offset=end,
            scanned_records=scan.records,
            expired_records=int((times < stream_time_ms - spec.retention_ms).sum()),
            oldest_event_ms=int(times.min()) if scan.records else None,
            oldest_record_ms=min(scan.timestamps_ms, default=None),
        )

    def _copies(self, task: TaskId, spec: StoreSpec) -> list[DiskCopy]:
        found = []
        if spec.retention_ms is None or spec.custom is not None:
            return []
        app = self.plan.application_id
        for holder in (copy.holder for copy in copies_on_disk(self.settings.state_dir, app, task, spec)):
            if holder is not None:
                folder = self.settings.state_dir / holder / app / str(task) / STORES_FOLDER / spec.name
                try:
                    segments, checkpoint = segments_on_disk(folder)
                except TidemarkError as error:
                    found.append(DiskCopy(str(task), holder, (), NO_STREAM_TIME, str(error)))
                    continue
                stream_time_ms = checkpoint.stream_time_ms if checkpoint else NO_STREAM_TIME
                found.append(DiskCopy(str(task), holder, tuple(segments), stream_time_ms))
        return found


def span_ms(subtopology: SubTopology, spec: StoreSpec) -> int | None:
    """Return how long a window of the store is open: size and grace; None if the store has no windows."""
    for aggregation in subtopology.aggregations:
        if aggregation.store.name == spec.name:
            return _window_span(aggregation)
    for node in subtopology.nodes:
        if spec.name in {store.name for store in node.stores} and spec.retention_ms is not None:
            if isinstance(node, Reduce):
                return _window_span(node)
            if isinstance(node, StreamStreamJoin):
                return node.before_ms + node.after_ms + node.grace_ms
    return None


def _window_span(node: Aggregation | Reduce) -> int | None:
    return None if node.window is None else window_span_ms(node.window)


def _topic(name: str, spec: StoreSpec, config: Mapping[str, str]) -> TopicSettings:
    return TopicSettings(
        topic=name,
        cleanup_policy=frozenset(config["cleanup.policy"].split(",")),
        retention_ms=int(config["retention.ms"]),
        segment_ms=int(config["segment.ms"]),
        wanted_retention_ms=None if spec.source_topic else changelog_policy(spec).retention_ms,
        is_source=spec.source_topic is not None,
        retention_bytes=int(config["retention.bytes"]),
    )
