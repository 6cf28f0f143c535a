"""An active task: one sub-topology on one source partition, with its stores and its stream times."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import Period
from tidemark.errors import InvalidTopology, RecordRefused, StateTooLarge
from tidemark.kafka.messages import Message
from tidemark.kafka.partitioner import Placer, placer
from tidemark.kafka.record_sizes import NO_LIMITS, SizeLimits, raise_limit, record_bytes
from tidemark.names import TaskId, TopicPartition, changelog_topic
from tidemark.settings import SQL_MEMORY_BYTES
from tidemark.stores.checkpoint_file import write_checkpoint
from tidemark.stores.directory import TaskDirectory
from tidemark.stores.layout import bytes_list
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import Store
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import NO_STREAM_TIME, StreamTimes
from tidemark.tasks.closing import ClosingProcessors, wait_for_all
from tidemark.tasks.graph import GraphResult, TaskGraph
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.operators.columns import Numbers, numbers
from tidemark.tasks.operators.sink import plain_keys
from tidemark.tasks.partials import Partial, Status
from tidemark.tasks.refused_rows import RefusedRow
from tidemark.tasks.sink_records import SinkRecords, ValueWriter, merged_order, shared_topics
from tidemark.tasks.update import (
    NO_KEY,
    REFUSED,
    TOO_LARGE,
    UNWRITABLE_KEY,
    UNWRITABLE_VALUE,
    DeadLetter,
    Output,
    StoreUpdate,
    TaskUpdate,
)
from tidemark.tasks.values import first_live_segment, value_layouts, value_signature
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.keyless import takes_keyless
from tidemark.topology.paths import RecordPaths
from tidemark.topology.plan import OnError, Pipeline, Process, Reduce, Sink, StoreSpec, SubTopology, TaskNode

Origin = tuple[str, int | None]
"""Topic and offset of the record from which an output comes; the offset is None if there is no such record."""

Place = int | InvalidTopology | None
"""The partition of an output; the error of a user's partitioner; None if the client chooses by murmur2 of the key."""

_FAILS = (
    '{}: the record at {}[{}] offset {} cannot be processed, and on_error="fail" ends the instance: {}; the log of '
    "the instance has the whole error; correct the code, "
    'or declare on_error="dead_letter", or skip the record with `tidemark reset run NAME --to offsets --state '
    "keep --offset TOPIC:PARTITION=OFFSET`, with an offset of every partition; nothing of its batch was committed"
)


@dataclass(frozen=True)
class TaskInput:
    """One batch of one task: next offsets by source topic, and one table per pipeline (see `tasks.partials`).

    Without any tables it is a tick: only time has passed.
    """

    ends: Mapping[str, int]
    pipelines: Sequence[pa.Table]
    dead_letters: tuple[DeadLetter, ...]


class Task:
    """Prepares updates from a batch and applies them once they are committed. Used by one thread at a time."""

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
        stream_times: StreamTimes,
        batch: int,
        sink_partitions: Mapping[str, int],
        wall_ms: int,
        offsets_ms: int = 0,
        sql_memory_bytes: int = SQL_MEMORY_BYTES,
        limits: SizeLimits = NO_LIMITS,
        writers: Mapping[str, ValueWriter] = MappingProxyType({}),
    ) -> None:
        """`next_offsets` and `sink_partitions` are by topic; `wall_ms` is the clock from which wall-clock schedules count.

        `offsets_ms` is when the offsets were committed, 0 if the group does not have them.
        `sql_memory_bytes` is the memory for the SQL of each node, as in `Settings`. `limits` are the size limits of sinks and
        changelogs. `writers` are by the nodes of sinks; without one, a sink writes JSON. Raises `InvalidTopology` for code that
        cannot be loaded.
        """
        self.application_id = application_id
        self.topology_version = topology_version
        self.id = task_id
        self.epoch = epoch
        self.subtopology = subtopology
        self.next_offsets = dict(next_offsets)
        self.stream_times = stream_times
        self.batch = batch
        self.wall_ms = wall_ms
        """The clock of the last committed update: everything that was due by then has been done."""
        self.offsets_ms = offsets_ms
        """When the offsets were committed last, by the clock of the instance; 0 if the group does not have them."""
        self.puts: Mapping[str, Period] = {}
        """When the last update was written, by store."""
        self._stores = stores
        self._directory = directory
        self._sink_partitions = sink_partitions
        self._limits = limits
        self._writers = writers
        self._paths = RecordPaths(subtopology)
        self._shared = shared_topics(subtopology)
        self._takes_keyless = [takes_keyless(subtopology, pipeline) for pipeline in subtopology.pipelines]
        self._placers: dict[str, Placer] = {
            sink.node: placer(sink.partitioner, task_id.partition)
            for sink in subtopology.sinks
            if sink.partitioner or sink.windowed_key
        }
        layouts = value_layouts(subtopology)
        self._signatures = {spec.name: value_signature(spec, layouts[spec.name]) for spec in subtopology.stores}
        # The last step, because it runs user code that only `close` ends.
        self._graph = TaskGraph(subtopology, wall_ms, sql_memory_bytes)

    @property
    def lead(self) -> TopicPartition:
        """The partition of the lead topic, which the group assigns."""
        return TopicPartition(self.subtopology.lead.topic, self.id.partition)

    @property
    def sources(self) -> dict[TopicPartition, int]:
        """The next offset of every partition that this task reads."""
        return {TopicPartition(topic, self.id.partition): offset for topic, offset in self.next_offsets.items()}

    @property
    def changelogs(self) -> list[TopicPartition]:
        """The changelog partitions that this task writes or, for a table that is its own changelog, reads."""
        return [
            TopicPartition(changelog_of(self.application_id, spec), self.id.partition)
            for spec in self.subtopology.stores
            if spec.is_logged
        ]

    @property
    def changelog_offsets(self) -> dict[TopicPartition, int]:
        """The changelog offset in the checkpoint of each logged store that has one."""
        found: dict[TopicPartition, int] = {}
        for spec in self.subtopology.stores:
            checkpoint = self._stores[spec.name].checkpoint
            if checkpoint is not None and spec.is_logged:
                changelog = TopicPartition(changelog_of(self.application_id, spec), self.id.partition)
                found[changelog] = checkpoint.changelog_offset
        return found

    @property
    def stores(self) -> Mapping[str, Store]:
        """The open stores by name."""
        return self._stores

    def is_due(self, wall_ms: int) -> bool:
        """Return whether the clock alone can change something (see invariant: ticks)."""
        return self._graph.is_due(wall_ms)

    def prepare(self, given: TaskInput, wall_ms: int, least_stream_time_ms: int = NO_STREAM_TIME) -> TaskUpdate:
        """Compute what a batch changes. Reads the stores but changes nothing, so an update may be discarded.

        `least_stream_time_ms` is for tests that advance stream time without a record. Raises `StateTooLarge`; `RecordRefused`
        if the topology requires it; and `InvalidTopology` or `UserCodeFailed` for errors in user code.
        """
        began_s = time.monotonic()
        self._require_readable(given.dead_letters)
        task_ms = max(self.stream_times.task_ms, least_stream_time_ms)
        rows = filtered_rows = 0
        # Several pipelines may need the key that a record does not have; it is one dead letter.
        bad_rows = sum(letter.reason == NO_KEY for letter in given.dead_letters)
        tables: list[tuple[Pipeline, pa.Table]] = []
        outputs: list[Output] = []
        shared: list[tuple[Pipeline, list[Message], Numbers]] = []
        letters = list(given.dead_letters)
        seen: set[int] = set()
        pipelines = zip(self.subtopology.pipelines, self._takes_keyless, given.pipelines, strict=bool(given.pipelines))
        for pipeline, has_keyless, table in pipelines:
            status = table.column(Partial.STATUS).to_numpy()
            row_counts = table.column(Partial.ROWS).to_numpy()
            if pipeline.source not in seen:
                # Every pipeline of a source sees all of its bad records.
                seen.add(pipeline.source)
                bad_rows += int(row_counts[status == Status.BAD].sum())
            filtered_rows += int(row_counts[status == Status.FILTERED].sum())
            # A filtered record was processed: it advances the task's stream time, but that of no node.
            processed = table.column(Partial.MAX_TS).filter(pa.array(status != Status.BAD))
            newest_ms = pc.max(processed).as_py()
            task_ms = task_ms if newest_ms is None else max(task_ms, newest_ms)
            is_good = (status == Status.GOOD) | (has_keyless & (status == Status.NO_KEY))
            good = table.filter(pa.array(is_good))
            rows += int(row_counts[is_good].sum())
            if good.num_rows == 0:
                continue
            tables.append((pipeline, good))
            if pipeline.sinks:
                outputs += self._forward(pipeline, good, letters, shared)
        pending = {name: PendingStore(store) for name, store in self._stores.items()}
        at = BatchTime(self.stream_times.task_ms, task_ms, wall_ms)
        done = self._graph.run(tables, pending, at, self.stream_times, least_stream_time_ms)
        letters += [self._refused(node, row, done) for node, row in done.refused]
        merging: dict[str, list[SinkRecords]] = {}
        for pipeline, messages, offsets in shared:
            positions = done.origins.positions(pipeline.source, offsets)
            for sink in pipeline.sinks:
                if sink.topic in self._shared:
                    paths = self._paths.to_sink(sink, pipeline)
                    merging.setdefault(sink.topic, []).append(SinkRecords(sink, messages, positions, paths))
        for found in done.sinks:
            if found.sink.topic in self._shared:
                merging.setdefault(found.sink.topic, []).append(found)
            else:
                outputs += self._outputs(found.sink, found.messages, partial(self._behind, done, found), letters)
        for written in merging.values():
            outputs += self._merged(written, done, letters)
        return TaskUpdate(
            task=self.id,
            batch=self.batch + 1,
            sources={topic: (start, given.ends.get(topic, start)) for topic, start in self.next_offsets.items()},
            stream_times=done.times,
            rows=rows,
            late_rows=done.late_rows,
            bad_rows=bad_rows,
            filtered_rows=filtered_rows,
            stores=tuple(self._store_update(spec, pending[spec.name]) for spec in self.subtopology.stores),
            outputs=tuple(outputs),
            dead_letters=tuple(letters),
            wall_ms=wall_ms,
            prepared=Period.since(began_s),
        )

    def _store_update(self, spec: StoreSpec, pending: PendingStore) -> StoreUpdate:
        logged = spec.has_changelog
        update = StoreUpdate(
            store=spec.name,
            changelog=changelog_of(self.application_id, spec) if logged else None,
            writes=pending.writes(),
            reads=pending.measured,
        )
        self._require_size(update)
        return update

    def _require_size(self, update: StoreUpdate) -> None:
        """Raise `StateTooLarge` for a value that the store's changelog would reject, before the batch is sent."""
        if update.changelog is None:
            return
        limit = self._limits.of(update.changelog)
        for write in update.writes:
            widest = max(map(len, write.keys)) + max(len(value or b"") for value in write.values)
            if widest + record_bytes(b"", b"") <= limit:
                continue
            for key, value in zip(write.keys, write.values, strict=True):
                if (size := record_bytes(key, value)) > limit:
                    raise StateTooLarge(
                        f"task {self.id}: store {update.store}: the value of a key of {len(key)} bytes takes "
                        f"{size} bytes, its changelog {update.changelog} accepts {limit}; nothing of the batch after "
                        f"{dict(self.next_offsets)} was committed; {raise_limit(update.changelog, size * 2)}, or keep less "
                        "per key; the instance's log has the key",
                        records=f"the key begins with {key[:64]!r}",
                    )

    def _forward(
        self,
        pipeline: Pipeline,
        good: pa.Table,
        letters: list[DeadLetter],
        shared: list[tuple[Pipeline, list[Message], Numbers]],
    ) -> list[Output]:
        """Return the records of a stateless path, in the source's order, with the source's headers.

        If another path writes one of its topics, too, its records and their offsets are also added to `shared`.
        """
        ordered = good.sort_by(Partial.RECORD_OFFSET)
        columns = (
            bytes_list(ordered.column(Partial.KEY)),
            bytes_list(ordered.column(Partial.VALUE)),
            ordered.column(Partial.MAX_TS).to_pylist(),
        )
        messages: list[Message] = [
            {"key": key, "value": value, "timestamp": at} for key, value, at in zip(*columns, strict=True)
        ]
        headers = ordered.column(Partial.HEADERS)
        if headers.null_count < len(headers):
            for message, found in zip(messages, headers.to_pylist(), strict=True):
                if found:
                    message["headers"] = [(header["key"], header["value"]) for header in found]
        topic, offsets = self.subtopology.sources[pipeline.source].topic, ordered.column(Partial.RECORD_OFFSET)
        if any(sink.topic in self._shared for sink in pipeline.sinks):
            shared.append((pipeline, messages, numbers(ordered, Partial.RECORD_OFFSET)))
        return [
            output
            for sink in pipeline.sinks
            if sink.topic not in self._shared
            for output in self._outputs(sink, messages, lambda number: (topic, offsets[number].as_py()), letters)
        ]

    def _require_readable(self, letters: Sequence[DeadLetter]) -> None:
        failing = {source.topic: source.node for source in self.subtopology.sources if source.on_error is OnError.FAIL}
        for letter in letters:
            # A record without a key was read, and is processed by all nodes that do not need its key.
            if letter.topic in failing and letter.reason != NO_KEY:
                raise RecordRefused(
                    _FAILS.format(failing[letter.topic], letter.topic, letter.partition, letter.offset, letter.reason),
                    records=": ".join(text.decode() for _, text in letter.details if text is not None),
                )

    def _refused(self, node: TaskNode, row: RefusedRow, done: GraphResult) -> DeadLetter:
        """Return the dead letter of a row that user code refused. Raises `RecordRefused` if the node has `on_error="fail"`."""
        topic, offset = self._origin(done, row.sequence)
        if isinstance(node, Process | Reduce) and node.on_error is OnError.FAIL:
            raise RecordRefused(
                _FAILS.format(node.node, topic, self.id.partition, offset, f"{row.error_class} in user code"),
                records=f"{row.error}\n{row.traceback}",
            )
        details = (("tidemark.node", row.node), ("tidemark.error", row.error), ("tidemark.traceback", row.traceback))
        return DeadLetter(
            REFUSED, topic, self.id.partition, offset, None if row.key is None else row.key.encode(), row.value, (),
            details=tuple((name, text.encode()) for name, text in details if text is not None),
        )  # fmt: skip

    def _origin(self, done: GraphResult, sequence: int) -> Origin:
        origin = done.origins.of(sequence)
        return (self.lead.topic, None) if origin is None else (self.subtopology.sources[origin[0]].topic, origin[1])

    def _behind(self, done: GraphResult, found: SinkRecords, number: int) -> Origin:
        return self._origin(done, int(found.sequence[number]))

    def _outputs(
        self, sink: Sink, messages: Sequence[Message], origin: Callable[[int], Origin], letters: list[DeadLetter]
    ) -> list[Output]:
        """Return the records of one sink. If librdkafka does not choose the partitions, there is one output per partition."""
        if not messages:
            return []
        written, places, left_out = self._checked(sink, messages, origin, letters)
        if not places:
            kept = [m for n, m in enumerate(written) if n not in left_out] if left_out else written
            return [Output(sink.topic, kept)] if kept else []
        placed: dict[int, list[Message]] = {}
        for number, (message, place) in enumerate(zip(written, places, strict=True)):
            if isinstance(place, int) and number not in left_out:
                placed.setdefault(place, []).append(message)
        return [Output(sink.topic, of_partition, partition) for partition, of_partition in sorted(placed.items())]

    def _merged(self, written: Sequence[SinkRecords], done: GraphResult, letters: list[DeadLetter]) -> list[Output]:
        """Return the records of one topic that several paths write, in the order of the records from which they come.

        As in `_outputs`, records for which librdkafka does not choose the partition have one output per partition.
        """
        sent: list[tuple[Message, int | None] | None] = []
        for found in written:
            messages, places, left_out = self._checked(
                found.sink, found.messages, partial(self._behind, done, found), letters
            )
            chosen = [place if isinstance(place, int) else None for place in places] or [None] * len(messages)
            sent += [
                None if number in left_out else pair for number, pair in enumerate(zip(messages, chosen, strict=True))
            ]
        placed: dict[int | None, list[Message]] = {}
        for number in merged_order(written, done.origins).tolist():
            if (pair := sent[number]) is not None:
                message, partition = pair
                placed.setdefault(partition, []).append(message)
        topic = written[0].sink.topic
        return [Output(topic, of_partition, partition) for partition, of_partition in placed.items()]

    def _checked(
        self, sink: Sink, messages: Sequence[Message], origin: Callable[[int], Origin], letters: list[DeadLetter]
    ) -> tuple[Sequence[Message], Sequence[Place], Collection[int]]:
        """Return each record as it is sent, its partition, without any if librdkafka chooses, and the numbers to leave out.

        A record whose key or value the sink cannot write, that is too large for the topic, or for which the user's partitioner
        fails, is left out and added to `letters`.
        """
        written, unwritable = _with_written_keys(sink, messages)
        writer = self._writers.get(sink.node)
        written, unfit = (written, {}) if writer is None else _with_written("value", written, writer)
        # A partitioner gets the text of the key, and the JSON of the value.
        places = self._places(sink, messages) if sink.node in self._placers else ()
        left_out = dict.fromkeys(self._limits.oversized(sink.topic, written), TOO_LARGE)
        left_out |= {number: REFUSED for number, place in enumerate(places) if isinstance(place, InvalidTopology)}
        left_out |= dict.fromkeys(unfit, UNWRITABLE_VALUE)
        left_out |= dict.fromkeys(unwritable, UNWRITABLE_KEY)
        letters += [
            self._letter(
                reason,
                sink,
                # One that is too large is sent again as it is. Of others, people read the text and the JSON.
                (written if reason == TOO_LARGE else messages)[number],
                unwritable.get(number) or unfit.get(number) or (places[number] if places else None),
                origin(number),
            )
            for number, reason in left_out.items()
        ]
        return written, places, left_out.keys()

    def _places(self, sink: Sink, messages: Sequence[Message]) -> Sequence[Place]:
        """Return the partition of each record, or the error of the user's partitioner for it."""
        keys, values = [m["key"] for m in messages], [m["value"] for m in messages]
        try:
            chosen: list[Place] = self._placers[sink.node](
                plain_keys(sink, keys), values, self._sink_partitions[sink.topic]
            ).tolist()
        except InvalidTopology as error:
            if len(messages) == 1:
                return [error]
            return [place for message in messages for place in self._places(sink, [message])]
        return chosen

    def _letter(
        self, reason: str, sink: Sink, message: Message, place: Place | ValueError, origin: Origin
    ) -> DeadLetter:
        """Return the dead letter of an output. `place` is its partition, or the error because of which it has none."""
        headers = tuple(message.get("headers", ()))
        size = record_bytes(message["key"], message["value"], headers)
        details = [("tidemark.node", sink.node), ("tidemark.sink", sink.topic), ("tidemark.bytes", str(size))]
        if place is not None:
            named = "tidemark.sink.partition" if isinstance(place, int) else "tidemark.error"
            details.append((named, str(place)))
        topic, offset = origin
        return DeadLetter(
            reason, topic, self.id.partition, offset, message["key"], message["value"], headers, message["timestamp"],
            details=tuple((name, text.encode()) for name, text in details),
        )  # fmt: skip

    def apply(self, update: TaskUpdate, changelog_offsets: Mapping[str, int], commit_time_ms: int) -> None:
        """Write values and checkpoints (step 7). `changelog_offsets` are read_uncommitted ends per topic before the commit."""
        changed = {store.store: store for store in update.stores}
        puts: dict[str, Period] = {}
        for spec in self.subtopology.stores:
            store_update = changed.get(spec.name)
            checkpoint = StoreCheckpoint(
                application_id=self.application_id,
                topology_version=self.topology_version,
                store=spec.name,
                value_layout=self._signatures[spec.name],
                batch=update.batch,
                commit_time_ms=commit_time_ms,
                source_offsets={topic: end for topic, (_, end) in update.sources.items()},
                stream_time_ms=update.stream_times.of(spec.name),
                changelog_offset=changelog_offset(self.application_id, spec, update, changelog_offsets),
            )
            writes = store_update.writes if store_update else ()
            began_s = time.monotonic()
            self._stores[spec.name].put_many(writes, checkpoint, first_live_segment(spec, checkpoint.stream_time_ms))
            puts[spec.name] = Period.since(began_s)
        self.puts = puts
        self.next_offsets = {topic: end for topic, (_, end) in update.sources.items()}
        self.stream_times = update.stream_times
        self.batch = update.batch
        self.offsets_ms = commit_time_ms
        self.pass_clock(update)

    def pass_clock(self, update: TaskUpdate) -> None:
        """Record that the update's callbacks were made: it is committed, or it is a tick without changes to commit."""
        self.wall_ms = update.wall_ms
        self._graph.committed(update.wall_ms)

    def release(self) -> None:
        """Close the stores, copy the checkpoints' offsets to `.checkpoint`, and release the folder. Raises `OSError`."""
        offsets = self.changelog_offsets
        for store in self._stores.values():
            store.close()
        write_checkpoint(self._directory.checkpoint_file, offsets)
        self._directory.close()

    def start_closing(self) -> ClosingProcessors:
        """Start to close the processors. They are user code, which may not return, so nothing of the task waits for it."""
        return self._graph.start_closing()

    def close(self) -> None:
        """Close a single task: as `close_tasks`."""
        close_tasks([self])


def close_tasks(tasks: Iterable[Task]) -> None:
    """Close tasks. Blocks until their processors are closed too, but for these no longer than `PROCESSORS_CLOSE_S` in total.

    The processors of all tasks are closed at the same time. If the release of a task fails, the others are closed
    nevertheless, and the first error is raised in the end.
    """
    failures: list[Exception] = []
    closing: list[ClosingProcessors] = []
    for task in tasks:
        try:
            task.release()
        except Exception as error:  # noqa: BLE001 - raised below.
            failures.append(error)
        closing.append(task.start_closing())
    wait_for_all(closing)
    if failures:
        raise failures[0]


def _with_written_keys(sink: Sink, messages: Sequence[Message]) -> tuple[Sequence[Message], Mapping[int, ValueError]]:
    """Return the records with their keys as the sink writes them, and by number the errors of the keys that it cannot write.

    Those records stay as they are.
    """
    if sink.key_serde is KeySerde.STRING:
        return messages, {}
    return _with_written("key", messages, lambda key: sink.key_serde.encode(key.decode()))


def _with_written(
    part: Literal["key", "value"], messages: Sequence[Message], write: Callable[[bytes], bytes]
) -> tuple[Sequence[Message], Mapping[int, ValueError]]:
    written: list[Message] = []
    errors: dict[int, ValueError] = {}
    for number, message in enumerate(messages):
        given = message[part]
        try:
            written.append(message if given is None else {**message, part: write(given)})
        except ValueError as error:
            written.append(message)
            errors[number] = error
    return written, errors


def changelog_of(application_id: str, spec: StoreSpec) -> str:
    """Return the topic from which a logged store is rebuilt (see invariant: source topic as changelog)."""
    return spec.source_topic or changelog_topic(application_id, spec.name, spec.generation)


def changelog_offset(
    application_id: str, spec: StoreSpec, update: TaskUpdate, changelog_offsets: Mapping[str, int]
) -> int:
    """Return the changelog offset of a store after this update; 0 for a store without a changelog."""
    if not spec.is_logged:
        return 0
    if spec.source_topic is not None:
        return update.sources[spec.source_topic][1]
    return changelog_offsets[changelog_of(application_id, spec)]
