"""What the statements of `spark_jobs.compile` give for a batch, computed in Python: Spark is too slow for thousands of cases.

Knows the expressions of `tests.system.fuzz.expressions` only. `test_fuzz.py` holds it to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tests.support.partials import PARTIAL_HEAD
from tests.system.fuzz.expressions import KEY_COLUMN, Expression, parsed

from tidemark.stores.layout import Slot, slots_of
from tidemark.tasks.partials import PARTIAL_TYPES, Partial, Status, value_column, with_newest
from tidemark.tasks.rows import ROW_TYPES
from tidemark.topology.keyless import needs_key
from tidemark.topology.paths import RecordPaths
from tidemark.topology.plan import (
    Aggregation,
    Filter,
    Fold,
    Number,
    Pipeline,
    Select,
    SessionWindow,
    SlidingWindow,
    Source,
    Step,
    SubTopology,
    Window,
)

_TYPES = {Number.LONG: pa.int64(), Number.DOUBLE: pa.float64()}

Known = Mapping[str, Expression]
"""Expressions by their SQL text."""


@dataclass(frozen=True)
class KafkaRecord:
    """One record as Spark's Kafka source reads it, of partition 0."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


@dataclass
class _Judged:
    """A record on its way through a branch."""

    offset: int
    status: int
    key: str | None
    timestamp: int | None
    deleted: bool
    row: dict[str, Any]


def pipeline_table(
    subtopology: SubTopology, pipeline: Pipeline, records: Iterable[KafkaRecord], known: Known
) -> pa.Table:
    """The partial results of one branch, or its records where it has no aggregation."""
    source = subtopology.sources[pipeline.source]
    judged = [_judge(source, record, known) for record in records if record.topic == source.topic]
    times = [(r.offset, r.timestamp) for r in judged if r.status == Status.GOOD]
    wants_key = needs_key(subtopology, pipeline)
    wants_value = pipeline.aggregation is not None and _passes_over_null_values(pipeline.aggregation)
    for record in judged:
        for step in pipeline.steps:
            _take(step, record, known)
        if record.status == Status.GOOD and record.deleted and wants_value:
            record.status = Status.FILTERED
        elif record.status == Status.GOOD and record.key is None and wants_key:
            record.status = Status.NO_KEY
    if pipeline.aggregation is None:
        return _records(pipeline, judged)
    partials = _partials(pipeline.aggregation, judged, known)
    is_merged = RecordPaths(subtopology).are_merged(pipeline.aggregation)
    return with_newest(partials, _times(times)) if is_merged else partials


def _times(given: Sequence[tuple[int, int | None]]) -> pa.Table:
    columns = {
        Partial.PARTITION: [0] * len(given),
        Partial.RECORD_OFFSET: [offset for offset, _ in given],
        Partial.MAX_TS: [timestamp for _, timestamp in given],
    }
    return pa.table({name: pa.array(values, PARTIAL_TYPES[name]) for name, values in columns.items()})


def _passes_over_null_values(aggregation: Aggregation) -> bool:
    return aggregation.window is None or isinstance(aggregation.window, SlidingWindow)


def _judge(source: Source, record: KafkaRecord, known: Known) -> _Judged:
    deleted = record.value is None
    value = {} if record.value is None else json.loads(record.value)
    row: dict[str, Any] = {column.name: value.get(column.name) for column in source.schema}
    row[KEY_COLUMN] = key = None if record.key is None else record.key.decode()
    row["_timestamp"] = timestamp = record.timestamp
    if not deleted:
        key = key and parsed(source.key, known).evaluate(row)
        timestamp = parsed(source.timestamp, known).evaluate(row)
    is_bad = timestamp is None or timestamp < 0
    return _Judged(record.offset, Status.BAD if is_bad else Status.GOOD, key, timestamp, deleted, row)


def _take(step: Step, record: _Judged, known: Known) -> None:
    if isinstance(step, Select):
        selected = {name: parsed(text, known).evaluate(record.row) for name, text in step.columns}
        record.row = dict.fromkeys(selected) if record.deleted else selected
        return
    if isinstance(step, Filter):
        keeps = bool(parsed(step.condition, known).evaluate(record.row))
    else:
        record.key = parsed(step.key, known).evaluate(record.row)
        keeps = record.key is not None or step.keeps_null_keys
    if record.status == Status.GOOD and not keeps:
        record.status = Status.FILTERED


def _records(pipeline: Pipeline, judged: Sequence[_Judged]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        Partial.PARTITION: [0] * len(judged),
        Partial.STATUS: [r.status for r in judged],
        Partial.ROWS: [1] * len(judged),
        Partial.MAX_TS: [r.timestamp for r in judged],
        Partial.KEY: [r.key for r in judged],
        Partial.RECORD_OFFSET: [r.offset for r in judged],
    }
    types = dict(PARTIAL_TYPES)
    names = [column.name for column in pipeline.columns]
    if pipeline.sinks:
        columns[Partial.VALUE] = [
            None if r.deleted else json.dumps({name: r.row[name] for name in names}, separators=(",", ":"))
            for r in judged
        ]
        columns[Partial.HEADERS] = [None] * len(judged)
    if pipeline.enters:
        columns[Partial.DELETED] = [r.deleted for r in judged]
        for column in pipeline.columns:
            columns[value_column(column.name)] = [r.row[column.name] for r in judged]
            types[value_column(column.name)] = ROW_TYPES[column.type]
    return pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})


def _partials(aggregation: Aggregation, judged: Sequence[_Judged], known: Known) -> pa.Table:
    groups: dict[tuple[Any, ...], list[_Judged]] = {}
    for record in judged:
        for group in _groups(aggregation.window, record):
            groups.setdefault((record.status, *group), []).append(record)
    slots = slots_of(aggregation.aggregates)
    schema = pa.schema([(name, PARTIAL_TYPES[name]) for name in PARTIAL_HEAD])
    if aggregation.window is not None:
        schema = schema.append(pa.field(Partial.WINDOW, PARTIAL_TYPES[Partial.WINDOW]))
    for slot in slots:
        schema = schema.append(pa.field(slot.column, _TYPES[slot.number]))
    values = {slot.column: _value(aggregation, slot, known) for slot in slots}
    rows = []
    for (status, key, start, _), records in groups.items():
        row = {Partial.PARTITION: 0, Partial.STATUS: status, Partial.ROWS: len(records)}
        row |= {Partial.KEY: key, Partial.WINDOW: start}
        row[Partial.MAX_TS] = max((r.timestamp for r in records if r.timestamp is not None), default=None)
        row[Partial.LAST_OFFSET] = max(r.offset for r in records)
        rows.append(row | {column: of(records) for column, of in values.items()})
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)


def _groups(window: Window | SessionWindow | SlidingWindow | None, record: _Judged) -> Iterator[tuple[Any, ...]]:
    """The (key, w, and what keeps a record by itself) that a record is in."""
    if record.status != Status.GOOD or record.timestamp is None:
        yield None, None, None
    elif window is None:
        yield record.key, None, None
    elif isinstance(window, Window):
        newest = record.timestamp - record.timestamp % window.advance_ms
        for start in range(newest, max(-1, record.timestamp - window.size_ms), -window.advance_ms):
            yield record.key, start, None
    else:
        yield record.key, record.timestamp, record.offset if isinstance(window, SlidingWindow) else None


def _value(aggregation: Aggregation, slot: Slot, known: Known) -> Callable[[Sequence[_Judged]], Any]:
    (aggregate,) = (a for a in aggregation.aggregates if slot.column in (a.name, f"{a.name}.sum", f"{a.name}.count"))
    of = None if aggregate.expression is None else parsed(aggregate.expression, known)

    def value(records: Sequence[_Judged]) -> Any:
        if of is None:
            return len(records)
        found = [v for v in (of.evaluate(r.row) for r in records) if v is not None]
        if slot.fold is Fold.COUNT:
            return len(found)
        fold = {Fold.SUM: sum, Fold.MIN: min, Fold.MAX: max}[slot.fold]
        return fold(found) if found else None

    return value
