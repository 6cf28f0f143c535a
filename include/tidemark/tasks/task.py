"""An active task: one sub-topology on one source partition, with its stores and its stream time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.names import TaskId, TopicPartition, changelog_topic
from tidemark.partitioning import Placer, placer
from tidemark.stores.checkpoint import write_checkpoint
from tidemark.stores.directory import TaskDirectory
from tidemark.stores.layout import bytes_list
from tidemark.stores.marker import NO_STREAM_TIME, Marker
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import Store
from tidemark.tasks.graph import TaskGraph
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.update import DeadLetter, Output, StoreUpdate, TaskUpdate
from tidemark.tasks.values import first_live_segment, value_layouts, value_signature
from tidemark.topology.plan import Branch, Sink, StoreSpec, SubTopology


class Status:
    """What Spark found a record to be; the `status` column of a partial result."""

    GOOD = 0
    BAD = 1
    FILTERED = 2


@dataclass(frozen=True)
class TaskInput:
    """One batch of one task: next offsets by source topic, and a table per branch (see `spark_jobs/compile.py`).

    No tables at all is a tick: only time has passed.
    """

    ends: Mapping[str, int]
    branches: Sequence[pa.Table]
    dead_letters: tuple[DeadLetter, ...]


class Task:
    """Prepares updates from a batch and applies them once they are committed. One thread at a time."""

    def __init__(
        self,
        *,
        application_id: str,
        topology_version: str,
        task_id: TaskId,
        epoch: int,
        subtopology: SubTopology,
        stores: Mapping[str, Store],
        directory: TaskDirectory,
        next_offsets: Mapping[str, int],
        stream_time_ms: int,
        batch: int,
        sink_partitions: Mapping[str, int],
    ) -> None:
        """`next_offsets` and `sink_partitions` are by topic. Raises `InvalidTopology` for code that cannot be loaded."""
        self.application_id = application_id
        self.topology_version = topology_version
        self.id = task_id
        self.epoch = epoch
        self.subtopology = subtopology
        self.next_offsets = dict(next_offsets)
        self.stream_time_ms = stream_time_ms
        self.batch = batch
        self._stores = stores
        self._directory = directory
        self._sink_partitions = sink_partitions
        self._graph = TaskGraph(subtopology)
        self._placers: dict[str, Placer] = {
            sink.node: placer(sink.partitioner, task_id.partition) for sink in subtopology.sinks if sink.partitioner
        }
        layouts = value_layouts(subtopology)
        self._signatures = {spec.name: value_signature(spec, layouts[spec.name]) for spec in subtopology.stores}

    @property
    def lead(self) -> TopicPartition:
        """The lead topic's partition, which the group assigns."""
        return TopicPartition(self.subtopology.lead.topic, self.id.partition)

    @property
    def sources(self) -> dict[TopicPartition, int]:
        """Next offset of every partition that this task reads."""
        return {TopicPartition(topic, self.id.partition): offset for topic, offset in self.next_offsets.items()}

    @property
    def changelogs(self) -> list[TopicPartition]:
        """The changelog partitions that this task writes, or, for a table that is its own changelog, reads."""
        return [
            TopicPartition(changelog_of(self.application_id, spec), self.id.partition)
            for spec in self.subtopology.stores
            if spec.is_logged
        ]

    @property
    def stores(self) -> Mapping[str, Store]:
        """Its open stores by name."""
        return self._stores

    @property
    def ticks(self) -> bool:
        """Whether the clock alone can change something."""
        return self._graph.ticks

    def prepare(self, given: TaskInput, wall_ms: int, least_stream_time_ms: int = NO_STREAM_TIME) -> TaskUpdate:
        """What a batch changes. Reads the stores, changes nothing: an update may be thrown away.

        `least_stream_time_ms` is for tests that move stream time without a record.
        """
        stream_time_ms = max(self.stream_time_ms, least_stream_time_ms)
        rows = bad_rows = filtered_rows = 0
        tables: list[tuple[Branch, pa.Table]] = []
        outputs: list[Output] = []
        seen: set[int] = set()
        for branch, table in zip(self.subtopology.branches, given.branches, strict=bool(given.branches)):
            status = table.column("status").to_numpy()
            row_counts = table.column("rows").to_numpy()
            if branch.source not in seen:
                # Every branch of a source meets all of its bad records.
                seen.add(branch.source)
                bad_rows += int(row_counts[status == Status.BAD].sum())
            filtered_rows += int(row_counts[status == Status.FILTERED].sum())
            good = table.filter(pa.array(status == Status.GOOD))
            rows += int(row_counts[status == Status.GOOD].sum())
            if good.num_rows == 0:
                continue
            stream_time_ms = max(stream_time_ms, pc.max(good.column("max_ts")).as_py())
            tables.append((branch, good))
            outputs += self._forward(branch, good)
        pending = {name: PendingStore(store) for name, store in self._stores.items()}
        at = BatchTime(self.stream_time_ms, stream_time_ms, wall_ms)
        sinks, late_rows = self._graph.run(tables, pending, at)
        for sink, records in sinks:
            outputs += self._outputs(sink, records)
        return TaskUpdate(
            task=self.id,
            batch=self.batch + 1,
            sources={topic: (start, given.ends.get(topic, start)) for topic, start in self.next_offsets.items()},
            stream_time_ms=stream_time_ms,
            rows=rows,
            late_rows=late_rows,
            bad_rows=bad_rows,
            filtered_rows=filtered_rows,
            stores=tuple(self._store_update(spec, pending[spec.name]) for spec in self.subtopology.stores),
            outputs=tuple(outputs),
            dead_letters=given.dead_letters,
        )

    def _store_update(self, spec: StoreSpec, pending: PendingStore) -> StoreUpdate:
        logged = spec.is_logged and spec.source_topic is None
        return StoreUpdate(
            store=spec.name,
            changelog=changelog_of(self.application_id, spec) if logged else None,
            writes=pending.writes(),
        )

    def _forward(self, branch: Branch, good: pa.Table) -> list[Output]:
        """Records of a road without state, in the source's order."""
        if not branch.sinks:
            return []
        ordered = good.sort_by("record_offset")
        values = ordered.column("value").cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
        records = list(zip(bytes_list(ordered.column("k")), values, strict=True))
        return [output for sink in branch.sinks for output in self._outputs(sink, records)]

    def _outputs(self, sink: Sink, records: Sequence[tuple[bytes, bytes | None]]) -> list[Output]:
        """The records of one sink; where librdkafka does not choose the partition, one output per partition."""
        if not records:
            return []
        if sink.partitioner is None:
            return [Output(sink.topic, [{"key": key, "value": value} for key, value in records])]
        keys, values = zip(*records, strict=True)
        chosen = self._placers[sink.node](keys, values, self._sink_partitions[sink.topic])
        messages: dict[int, list[dict[str, bytes | None]]] = {}
        for (key, value), partition in zip(records, chosen.tolist(), strict=True):
            messages.setdefault(partition, []).append({"key": key, "value": value})
        return [Output(sink.topic, placed, partition) for partition, placed in sorted(messages.items())]

    def apply(self, update: TaskUpdate, changelog_offsets: Mapping[str, int], commit_time_ms: int) -> None:
        """Step 7: write values and markers. `changelog_offsets` are read_uncommitted ends by topic, from before the commit."""
        changed = {store.store: store for store in update.stores}
        for spec in self.subtopology.stores:
            store_update = changed.get(spec.name)
            marker = Marker(
                application_id=self.application_id,
                topology_version=self.topology_version,
                store=spec.name,
                value_layout=self._signatures[spec.name],
                batch=update.batch,
                commit_time_ms=commit_time_ms,
                source_offsets={topic: end for topic, (_, end) in update.sources.items()},
                stream_time_ms=update.stream_time_ms,
                changelog_offset=changelog_offset(self.application_id, spec, update, changelog_offsets),
            )
            writes = store_update.writes if store_update else ()
            self._stores[spec.name].put_many(writes, marker, first_live_segment(spec, update.stream_time_ms))
        self.next_offsets = {topic: end for topic, (_, end) in update.sources.items()}
        self.stream_time_ms = update.stream_time_ms
        self.batch = update.batch

    def close(self) -> None:
        """Mirror the markers to `.checkpoint`, close the stores, release the folder."""
        offsets: dict[TopicPartition, int] = {}
        for spec in self.subtopology.stores:
            marker = self._stores[spec.name].marker
            if marker is not None and spec.is_logged:
                changelog = TopicPartition(changelog_of(self.application_id, spec), self.id.partition)
                offsets[changelog] = marker.changelog_offset
        for store in self._stores.values():
            store.close()
        write_checkpoint(self._directory.checkpoint_path, offsets)
        self._directory.close()


def changelog_of(application_id: str, spec: StoreSpec) -> str:
    """The topic that a logged store is rebuilt from: its changelog, or the source topic that is one (rule 19)."""
    return spec.source_topic or changelog_topic(application_id, spec.name, spec.generation)


def changelog_offset(
    application_id: str, spec: StoreSpec, update: TaskUpdate, changelog_offsets: Mapping[str, int]
) -> int:
    """Where the changelog stands with this update; 0 for a store without one."""
    if not spec.is_logged:
        return 0
    if spec.source_topic is not None:
        return update.sources[spec.source_topic][1]
    return changelog_offsets[changelog_of(application_id, spec)]
