"""The nodes of one task and their order: which operator each node of the plan is, and what feeds it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidemark.errors import TidemarkError
from tidemark.stores.pending import PendingStore
from tidemark.tasks.nodes.aggregate import WindowedAggregateOperator
from tidemark.tasks.nodes.expiry import expire
from tidemark.tasks.nodes.map import MapOperator
from tidemark.tasks.nodes.process import ProcessOperator
from tidemark.tasks.nodes.reduce import ReduceOperator
from tidemark.tasks.nodes.sessions import SessionAggregateOperator
from tidemark.tasks.nodes.sink import entering_rows, records_of
from tidemark.tasks.nodes.sliding import SlidingAggregateOperator
from tidemark.tasks.nodes.stream_join import StreamStreamJoinOperator
from tidemark.tasks.nodes.suppress import SuppressOperator
from tidemark.tasks.nodes.tables import StreamTableJoinOperator, TableSourceOperator, TableTableJoinOperator
from tidemark.tasks.operator import BatchTime, Operator
from tidemark.tasks.rows import SEQUENCE, TIMESTAMP, Rows, no_rows, rows_schema
from tidemark.topology.plan import (
    Aggregation,
    Branch,
    Column,
    Map,
    Process,
    Reduce,
    RowSink,
    SessionWindow,
    Sink,
    SlidingWindow,
    StreamStreamJoin,
    StreamTableJoin,
    SubTopology,
    Suppress,
    TableSource,
    TableTableJoin,
    TaskNode,
)

SinkRecords = tuple[Sink, list[tuple[bytes, bytes | None]]]


class TaskGraph:
    """Runs one batch through a sub-topology's stateful nodes. Holds no state of its own."""

    def __init__(self, subtopology: SubTopology) -> None:
        """Raises `InvalidTopology` where a user's code cannot be imported."""
        self._subtopology = subtopology
        self._columns: dict[str, Sequence[Column]] = {
            **{branch.end: branch.columns for branch in subtopology.branches if branch.enters},
            **{aggregation.node: aggregation.columns for aggregation in subtopology.aggregations},
            **{node.node: node.columns for node in subtopology.nodes},
        }
        read = {name for node in subtopology.nodes for name in node.inputs}
        self._aggregations = {a.node: _aggregate(a, a.node in read) for a in subtopology.aggregations}
        self._operators: dict[str, Operator] = {
            node.node: _operator(node, self._columns) for node in subtopology.nodes if not isinstance(node, RowSink)
        }

    def run(
        self, tables: Sequence[tuple[Branch, pa.Table]], stores: Mapping[str, PendingStore], at: BatchTime
    ) -> tuple[list[SinkRecords], int]:
        """What goes to each sink, and how many records were too late. `tables` are the good rows of each branch.

        Changes `stores`. Raises what a user's code raises as `TidemarkError`.
        """
        emitted: dict[str, Rows] = {}
        late_rows = 0
        for branch, table in tables:
            if branch.aggregation is not None:
                done = self._aggregations[branch.aggregation.node].run([table], stores, at)
                emitted[branch.aggregation.node] = done.rows
                late_rows += done.late_rows
            elif branch.enters:
                rows = entering_rows(table, [c.name for c in branch.columns], rows_schema(branch.columns))
                emitted[branch.end] = _in_order([rows])[0]
        sinks: list[SinkRecords] = []
        for node in self._subtopology.nodes:
            inputs = [emitted.get(name, no_rows(self._columns[name])) for name in node.inputs]
            if isinstance(node, RowSink):
                sinks.append((node.sink, records_of(node, inputs[0])))
                continue
            if len(inputs) > 1:
                inputs = _in_order(inputs)
            found = self._operators[node.node].run(inputs, stores, at)
            emitted[node.node] = found.rows
            late_rows += found.late_rows
        self._expire(stores, at)
        return sinks, late_rows

    def _expire(self, stores: Mapping[str, PendingStore], at: BatchTime) -> None:
        """Age and number bounds, once all nodes have written."""
        specs = self._subtopology.stores
        for spec, order in itertools.pairwise(specs):
            if spec.ttl_ms is not None or spec.max_entries is not None:
                expire(spec, stores[spec.name], stores[order.name], at)

    @property
    def ticks(self) -> bool:
        """Whether the clock alone can make a node act (rule 25)."""
        return any(isinstance(node, Process) for node in self._subtopology.nodes)


def _aggregate(aggregation: Aggregation, emits: bool) -> Operator:
    if isinstance(aggregation.window, SessionWindow):
        return SessionAggregateOperator(aggregation)
    if isinstance(aggregation.window, SlidingWindow):
        return SlidingAggregateOperator(aggregation)
    return WindowedAggregateOperator(aggregation, emits)


def _operator(node: TaskNode, columns: Mapping[str, Sequence[Column]]) -> Operator:
    match node:
        case Suppress():
            return SuppressOperator(node)
        case Reduce():
            return ReduceOperator(node)
        case TableSource():
            return TableSourceOperator(node)
        case StreamTableJoin():
            return StreamTableJoinOperator(node)
        case TableTableJoin():
            return TableTableJoinOperator(node)
        case StreamStreamJoin():
            return StreamStreamJoinOperator(node)
        case Process():
            return ProcessOperator(node)
        case Map():
            return MapOperator(node, columns[node.inputs[0]])
    raise TidemarkError(f"{node.node}: no operator for {type(node).__name__}; this is a fault of Tidemark's")


def _in_order(inputs: Sequence[Rows]) -> list[Rows]:
    """The rows of all inputs numbered in one order: timestamp, input, then the order they had (rule 20)."""
    lengths = [rows.num_rows for rows in inputs]
    if not sum(lengths):
        return list(inputs)
    at = np.concatenate([rows.column(TIMESTAMP).to_numpy() for rows in inputs])
    before = np.concatenate([rows.column(SEQUENCE).to_numpy() for rows in inputs])
    side = np.repeat(np.arange(len(inputs)), lengths)
    order = np.lexsort((before, side, at))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    numbered: list[Rows] = []
    start = 0
    for rows, length in zip(inputs, lengths, strict=True):
        ranks = rank[start : start + length]
        start += length
        index = rows.schema.get_field_index(SEQUENCE)
        taken = rows.set_column(index, SEQUENCE, pa.array(ranks, type=pa.int64()))
        numbered.append(taken.take(pa.array(np.argsort(ranks))) if length else taken)
    return numbered
