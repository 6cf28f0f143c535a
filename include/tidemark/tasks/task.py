"""An active task: one sub-topology on one source partition, with its stores and its stream time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.names import TaskId, TopicPartition, changelog_topic
from tidemark.stores.checkpoint import write_checkpoint
from tidemark.stores.directory import TaskDirectory
from tidemark.stores.layout import ValueLayout, bytes_list, slots_of, window_keys
from tidemark.stores.marker import NO_STREAM_TIME, Marker
from tidemark.stores.protocol import WHOLE, Store, Writes
from tidemark.tasks.fold import fold_into, result_columns
from tidemark.tasks.render import json_records
from tidemark.tasks.update import DeadLetter, Output, StoreUpdate, TaskUpdate
from tidemark.topology.plan import Aggregation, Branch, SubTopology


class Status:
    """What Spark found a record to be; the `status` column of a partial result."""

    GOOD = 0
    BAD = 1
    FILTERED = 2


@dataclass(frozen=True)
class TaskInput:
    """One batch of one task: a table per branch, whose columns `spark_jobs/compile.py` documents."""

    end_offset: int
    branches: Sequence[pa.Table]
    dead_letters: tuple[DeadLetter, ...]


class Task:
    """Prepares updates from partial results and applies them once they are committed. One thread at a time."""

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
        next_offset: int,
        stream_time_ms: int,
        batch: int,
    ) -> None:
        self.application_id = application_id
        self.topology_version = topology_version
        self.id = task_id
        self.epoch = epoch
        self.subtopology = subtopology
        self.next_offset = next_offset
        self.stream_time_ms = stream_time_ms
        self.batch = batch
        self._stores = stores
        self._directory = directory
        self._layouts = {a.node: ValueLayout(slots_of(a.aggregates)) for a in subtopology.aggregations}

    @property
    def source(self) -> TopicPartition:
        """The lead topic's partition that this task follows."""
        return TopicPartition(self.subtopology.source.topic, self.id.partition)

    def prepare(self, given: TaskInput) -> TaskUpdate:
        """What a batch changes. Reads the stores, changes nothing: an update may be thrown away."""
        stream_time_ms = self.stream_time_ms
        rows = late_rows = 0
        stores: list[StoreUpdate] = []
        outputs: list[Output] = []
        bad_rows = filtered_rows = 0
        for index, (branch, table) in enumerate(zip(self.subtopology.branches, given.branches, strict=True)):
            status = table.column("status").to_numpy()
            row_counts = table.column("rows").to_numpy()
            if index == 0:
                bad_rows = int(row_counts[status == Status.BAD].sum())
            filtered_rows += int(row_counts[status == Status.FILTERED].sum())
            good = table.filter(pa.array(status == Status.GOOD))
            rows += int(row_counts[status == Status.GOOD].sum())
            if good.num_rows == 0:
                continue
            newest = pc.max(good.column("max_ts")).as_py()
            stream_time_ms = max(stream_time_ms, newest)
            if branch.aggregation is None:
                outputs += _forward(branch, good)
                continue
            in_time, late = self._in_time(branch.aggregation, good)
            late_rows += late
            if in_time.num_rows:
                self._aggregate(branch.aggregation, in_time, stores, outputs)
        return TaskUpdate(
            task=self.id,
            batch=self.batch + 1,
            source_topic=self.subtopology.source.topic,
            start_offset=self.next_offset,
            end_offset=given.end_offset,
            stream_time_ms=stream_time_ms,
            rows=rows,
            late_rows=late_rows,
            bad_rows=bad_rows,
            filtered_rows=filtered_rows,
            stores=tuple(stores),
            outputs=tuple(outputs),
            dead_letters=given.dead_letters,
        )

    def _in_time(self, aggregation: Aggregation, good: pa.Table) -> tuple[pa.Table, int]:
        """Rows whose window is open at the stream time of the batch's start, and how many records were not (rule 3)."""
        window = aggregation.window
        if window is None or self.stream_time_ms == NO_STREAM_TIME:
            return good, 0
        ends = good.column("w").to_numpy() + window.size_ms
        is_open = ends + window.grace_ms > self.stream_time_ms
        if is_open.all():
            return good, 0
        late = int(good.column("rows").to_numpy()[~is_open].sum())
        return good.filter(pa.array(is_open)), late

    def _aggregate(
        self, aggregation: Aggregation, partials: pa.Table, stores: list[StoreUpdate], outputs: list[Output]
    ) -> None:
        layout = self._layouts[aggregation.node]
        spec, window = aggregation.store, aggregation.window
        if window is None:
            segments = np.full(partials.num_rows, WHOLE, dtype=np.int64)
        else:
            segments = partials.column("w").to_numpy() // spec.segment_ms
        writes: list[Writes] = []
        for segment, rows in _by_value(segments, partials):
            keys_column = rows.column("k").combine_chunks()
            starts = None if window is None else rows.column("w").to_numpy()
            keys = bytes_list(keys_column) if starts is None else window_keys(keys_column, starts)
            old = layout.decode(self._stores[spec.name].get_many(segment, keys))
            new = fold_into(layout, old, rows)
            writes.append(Writes(segment, keys, layout.encode(new)))
            if aggregation.sinks:
                columns = [(aggregation.key_name, keys_column), *_window_columns(aggregation, starts)]
                columns += result_columns(layout, aggregation.aggregates, new)
                outputs += _outputs(aggregation, keys_column, json_records(columns))
        stores.append(
            StoreUpdate(
                store=spec.name,
                changelog=changelog_topic(self.application_id, spec.name),
                writes=tuple(writes),
                first_live_segment=first_live_segment(aggregation, self.stream_time_ms),
            )
        )

    def apply(self, update: TaskUpdate, changelog_offsets: Mapping[str, int], commit_time_ms: int) -> None:
        """Step 7: write values and markers. `changelog_offsets` are read_uncommitted ends by topic, from before the commit."""
        changed = {store.store: store for store in update.stores}
        for aggregation in self.subtopology.aggregations:
            name = aggregation.store.name
            store_update = changed.get(name)
            marker = Marker(
                application_id=self.application_id,
                topology_version=self.topology_version,
                store=name,
                value_layout=self._layouts[aggregation.node].signature,
                batch=update.batch,
                commit_time_ms=commit_time_ms,
                source_offsets={update.source_topic: update.end_offset},
                stream_time_ms=update.stream_time_ms,
                changelog_offset=changelog_offsets[changelog_topic(self.application_id, name)],
            )
            writes = store_update.writes if store_update else ()
            self._stores[name].put_many(writes, marker, first_live_segment(aggregation, update.stream_time_ms))
        self.next_offset = update.end_offset
        self.stream_time_ms = update.stream_time_ms
        self.batch = update.batch

    def close(self) -> None:
        """Mirror the markers to `.checkpoint`, close the stores, release the folder."""
        markers = {name: store.marker for name, store in self._stores.items()}
        offsets = {
            TopicPartition(changelog_topic(self.application_id, name), self.id.partition): marker.changelog_offset
            for name, marker in markers.items()
            if marker is not None
        }
        for store in self._stores.values():
            store.close()
        write_checkpoint(self._directory.checkpoint_path, offsets)
        self._directory.close()


def first_live_segment(aggregation: Aggregation, stream_time_ms: int) -> int | None:
    """Segments before this one hold only windows past the store's retention; None where nothing ever expires."""
    spec = aggregation.store
    if spec.retention_ms is None or spec.segment_ms is None or stream_time_ms == NO_STREAM_TIME:
        return None
    return (stream_time_ms - spec.retention_ms) // spec.segment_ms


def _by_value(labels: npt.NDArray[np.int64], table: pa.Table) -> list[tuple[int, pa.Table]]:
    distinct = np.unique(labels)
    if len(distinct) == 1:
        return [(int(distinct[0]), table)]
    return [(int(label), table.filter(pa.array(labels == label))) for label in distinct]


def _window_columns(aggregation: Aggregation, starts: Any) -> list[tuple[str, pa.Array]]:
    if aggregation.window is None:
        return []
    return [("window_start", pa.array(starts)), ("window_end", pa.array(starts + aggregation.window.size_ms))]


def _outputs(aggregation: Aggregation, keys: pa.Array, values: pa.Array) -> list[Output]:
    pairs = list(zip(bytes_list(keys), bytes_list(values), strict=True))
    # produce_batch writes its errors into the dictionaries, so each sink needs its own.
    return [Output(sink.topic, [{"key": key, "value": value} for key, value in pairs]) for sink in aggregation.sinks]


def _forward(branch: Branch, good: pa.Table) -> list[Output]:
    """Records of a road without state, in the source's order."""
    ordered = good.sort_by("record_offset")
    pairs = list(zip(bytes_list(ordered.column("k")), bytes_list(ordered.column("value")), strict=True))
    return [Output(sink.topic, [{"key": key, "value": value} for key, value in pairs]) for sink in branch.sinks]
