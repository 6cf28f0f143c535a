"""The graph of nodes in one task: the operator of each node of the plan, and the rows that it receives."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import TidemarkError
from tidemark.stores.pending import PendingStore
from tidemark.stream_times import NO_STREAM_TIME, StreamTimes
from tidemark.tasks.closing import ClosingProcessors, wait_for_all
from tidemark.tasks.forks import ForkNumbers
from tidemark.tasks.operator import BatchTime, Operator
from tidemark.tasks.operators.aggregate import WindowedAggregateOperator
from tidemark.tasks.operators.columns import numbers
from tidemark.tasks.operators.expiry import expire
from tidemark.tasks.operators.map import MapOperator
from tidemark.tasks.operators.process import ProcessOperator
from tidemark.tasks.operators.reduce import ReduceOperator
from tidemark.tasks.operators.sessions import SessionAggregateOperator
from tidemark.tasks.operators.sink import entering_rows, records_of
from tidemark.tasks.operators.sliding import SlidingAggregateOperator
from tidemark.tasks.operators.stream_join import StreamStreamJoinOperator
from tidemark.tasks.operators.suppress import SuppressOperator
from tidemark.tasks.operators.tables import StreamTableJoinOperator, TableSourceOperator, TableTableJoinOperator
from tidemark.tasks.order import Origins, RecordOrder, placed
from tidemark.tasks.partials import Partial
from tidemark.tasks.refused_rows import RefusedRow
from tidemark.tasks.rows import KEY, SEQUENCE, TIMESTAMP, Rows, no_rows, rows_schema
from tidemark.tasks.sink_records import SinkRecords, shared_topics
from tidemark.topology.keyless import needs_key_of
from tidemark.topology.paths import RecordPaths
from tidemark.topology.plan import (
    Aggregation,
    Column,
    Map,
    Pipeline,
    Process,
    Reduce,
    RowSink,
    SessionWindow,
    SlidingWindow,
    StreamStreamJoin,
    StreamTableJoin,
    SubTopology,
    Suppress,
    TableSource,
    TableTableJoin,
    TaskNode,
)


@dataclass(frozen=True)
class GraphResult:
    """The result of a batch: records by sink, the number of late records, and the stream times after it.

    `origins` finds the record from which a row comes. `refused` are rows with the nodes that refused them.
    """

    sinks: list[SinkRecords]
    origins: Origins
    late_rows: int
    times: StreamTimes
    refused: list[tuple[TaskNode, RefusedRow]]


class TaskGraph:
    """Runs one batch through the stateful nodes of a sub-topology. Holds no state that a batch could need again."""

    def __init__(self, subtopology: SubTopology, wall_ms: int, sql_memory_bytes: int) -> None:
        """`wall_ms` is the clock when the task is opened; `sql_memory_bytes` is the memory for the SQL of each node.

        Raises `InvalidTopology` if user code cannot be imported, `UserCodeFailed` if the `init` of a processor raises; the
        processors that were created before are closed then.
        """
        self._subtopology = subtopology
        self._paths = RecordPaths(subtopology)
        self._order = RecordOrder(self._paths)
        self._shared = shared_topics(subtopology)
        self._columns: dict[str, Sequence[Column]] = {
            **{pipeline.end: pipeline.columns for pipeline in subtopology.pipelines if pipeline.enters},
            **{aggregation.node: aggregation.columns for aggregation in subtopology.aggregations},
            **{node.node: node.columns for node in subtopology.nodes},
        }
        positioned = _needing_positions(subtopology.nodes, self._shared)
        read = {name for node in subtopology.nodes for name in node.inputs}
        self._aggregations = {a.node: _aggregate(a, a.node in read) for a in subtopology.aggregations}
        self._operators: dict[str, Operator] = {}
        self._processors: list[ProcessOperator] = []
        try:
            for node in subtopology.nodes:
                if isinstance(node, Process):
                    self._processors.append(ProcessOperator(node, wall_ms, node.node in positioned))
                    self._operators[node.node] = self._processors[-1]
                elif not isinstance(node, RowSink):
                    self._operators[node.node] = _operator(node, self._columns, self._paths, sql_memory_bytes)
        except BaseException:
            wait_for_all([self.start_closing()])
            raise

    def run(
        self,
        tables: Sequence[tuple[Pipeline, pa.Table]],
        stores: Mapping[str, PendingStore],
        task_time: BatchTime,
        before: StreamTimes,
        least_ms: int = NO_STREAM_TIME,
    ) -> GraphResult:
        """Run the batch through every node. `tables` are the good rows of each pipeline, `before` the times at its start.

        `task_time` is the time of the task; every node's time becomes at least `least_ms`. Changes `stores`. Raises
        `InvalidTopology` and `UserCodeFailed` for errors of user code that do not depend on the row.
        """
        times = _Times(before, task_time.wall_ms, least_ms, self._subtopology)
        forks = ForkNumbers(self._paths)
        emitted: dict[str, Rows] = {}
        late_rows = 0
        entered = [
            (pipeline, entering_rows(table, [c.name for c in pipeline.columns], rows_schema(pipeline.columns)))
            for pipeline, table in tables
            if pipeline.enters
        ]
        partials = [(pipeline, table) for pipeline, table in tables if pipeline.aggregation is not None]
        sent = [
            (pipeline, table)
            for pipeline, table in tables
            if not pipeline.enters and any(sink.topic in self._shared for sink in pipeline.sinks)
        ]
        numbered, newest, origins = self._order.number(entered, partials, sent)
        task_time = replace(task_time, last_position=origins.last())
        emitted.update((pipeline.end, rows) for (pipeline, _), rows in zip(entered, numbered, strict=True))
        for (pipeline, table), places in zip(partials, newest, strict=True):
            aggregation = pipeline.aggregation
            if aggregation is not None:
                at = times.advance(aggregation, [table.column(Partial.MAX_TS)])
                done = self._aggregations[aggregation.node].run([table], stores, at)
                emitted[aggregation.node] = forks.left(aggregation.node, placed(done.rows, places))
                late_rows += done.late_rows
        sinks: list[SinkRecords] = []
        refused: list[tuple[TaskNode, RefusedRow]] = []
        for node in self._subtopology.nodes:
            inputs = forks.compared(node, [emitted.get(name, no_rows(self._columns[name])) for name in node.inputs])
            if isinstance(node, RowSink):
                paths = self._paths.to_sink(node.sink, node)
                sinks.append(SinkRecords(node.sink, records_of(node, inputs[0]), numbers(inputs[0], SEQUENCE), paths))
                continue
            # A stream join's time also advances by rows without a key.
            if not isinstance(node, StreamStreamJoin):
                inputs = [_with_keys(rows) if needs_key_of(node, side) else rows for side, rows in enumerate(inputs)]
            at = times.advance(node, [rows.column(TIMESTAMP) for rows in inputs])
            found = self._operators[node.node].run(inputs, stores, task_time if isinstance(node, Process) else at)
            times.mark(found.marks_ms)
            emitted[node.node] = forks.left(node.node, found.rows)
            late_rows += found.late_rows
            refused += [(node, row) for row in found.refused]
        self._expire(stores, times)
        return GraphResult(sinks, origins, late_rows, times.after(task_time.after_ms), refused)

    def _expire(self, stores: Mapping[str, PendingStore], times: _Times) -> None:
        """Apply the bounds on age and number once all nodes have written."""
        specs = self._subtopology.stores
        for spec, order in itertools.pairwise(specs):
            if spec.has_order:
                expire(spec, stores[spec.name], stores[order.name], times.of(spec.name))

    def is_due(self, wall_ms: int) -> bool:
        """Return whether the clock alone makes a node act (see invariant: ticks)."""
        return any(processor.is_due(wall_ms) for processor in self._processors)

    def committed(self, wall_ms: int) -> None:
        """Record that the batch that ran at this clock is committed."""
        for processor in self._processors:
            processor.committed(wall_ms)

    def start_closing(self) -> ClosingProcessors:
        """Start to close the processors. Does not wait."""
        return ClosingProcessors(self._processors)


class _Times:
    """The stream times during a batch: the time of a node advances as rows reach it."""

    def __init__(self, before: StreamTimes, wall_ms: int, least_ms: int, subtopology: SubTopology) -> None:
        self._before = before
        self._wall_ms = wall_ms
        self._nodes = {store.name: max(before.node(store.name), least_ms) for store in subtopology.stores}
        self._marks = dict(before.marks)

    def advance(self, node: Aggregation | TaskNode, arriving: Sequence[pa.ChunkedArray]) -> BatchTime:
        """Advance the node's time by these timestamps and return its times. A node without stores judges no time."""
        if not node.stores:
            return BatchTime(NO_STREAM_TIME, NO_STREAM_TIME, self._wall_ms)
        newest = [pc.max(column).as_py() for column in arriving if len(column)]
        for store in node.stores:
            self._nodes[store.name] = max([self._nodes[store.name], *newest])
        return self.of(node.stores[0].name)

    def of(self, store: str) -> BatchTime:
        """Return the times of the node that keeps `store`."""
        return BatchTime(self._before.node(store), self._nodes[store], self._wall_ms, self._before.marks)

    def mark(self, marks_ms: Mapping[str, int]) -> None:
        """Record the times that a node keeps of single stores."""
        self._marks |= marks_ms

    def after(self, task_ms: int) -> StreamTimes:
        """Return the times to commit."""
        nodes = {store: time_ms for store, time_ms in self._nodes.items() if time_ms != NO_STREAM_TIME}
        return StreamTimes(task_ms, nodes, self._marks)


def _aggregate(aggregation: Aggregation, emits: bool) -> Operator:
    if isinstance(aggregation.window, SessionWindow):
        return SessionAggregateOperator(aggregation)
    if isinstance(aggregation.window, SlidingWindow):
        return SlidingAggregateOperator(aggregation)
    return WindowedAggregateOperator(aggregation, emits)


def _operator(
    node: TaskNode, columns: Mapping[str, Sequence[Column]], paths: RecordPaths, sql_memory_bytes: int
) -> Operator:
    match node:
        case Suppress():
            return SuppressOperator(node)
        case Reduce():
            return ReduceOperator(node)
        case TableSource():
            return TableSourceOperator(node)
        case StreamTableJoin():
            return StreamTableJoinOperator(node, paths.met(node))
        case TableTableJoin():
            return TableTableJoinOperator(node, paths.met(node))
        case StreamStreamJoin():
            return StreamStreamJoinOperator(node, paths.met(node))
        case Map():
            return MapOperator(node, columns[node.inputs[0]], sql_memory_bytes)
    raise TidemarkError(f"{node.node}: no operator for {type(node).__name__}; this is an error in Tidemark")


def _needing_positions(nodes: Sequence[TaskNode], shared: Collection[str]) -> frozenset[str]:
    """Return the nodes whose rows must have the positions of their own records.

    A node downstream compares them, or they decide the order in one of the topics in `shared`, which several paths write.
    """
    needing: set[str] = set()
    for node in reversed(nodes):
        is_windowed = isinstance(node, Suppress) or (isinstance(node, Reduce) and node.window is not None)
        is_join = isinstance(node, StreamStreamJoin | StreamTableJoin | TableTableJoin)
        is_shared = isinstance(node, RowSink) and node.sink.topic in shared
        if is_windowed or is_join or is_shared or node.node in needing:
            needing.update(node.inputs)
    return frozenset(needing)


def _with_keys(rows: Rows) -> Rows:
    keys = rows.column(KEY)
    return rows.filter(keys.is_valid()) if keys.null_count else rows
