"""A sub-topology's Spark part as SQL text over the view `batch`: parse, judge, filter, select, window, pre-aggregate.

Every statement is the same for every batch, so that Spark compiles its code once. Internal columns begin with `__`.
A partial result has the columns

    p       INT      source partition
    status  INT      `Status`: good, bad, filtered; only good rows have key and window
    rows    BIGINT   records behind this row
    max_ts  BIGINT   newest timestamp among them, epoch milliseconds
    k       STRING   key
    w       BIGINT   window start, epoch milliseconds (windowed aggregations)
    <slot>           partial value of each stored field (`slots_of`): BIGINT, DOUBLE, BINARY sketches, or an array

and a road without aggregation has, per record, `record_offset BIGINT`; for its sinks `value STRING` (JSON), null where
the record deletes its key; for the task loop `deleted BOOLEAN` and a column `v.<name>` per value. Session windows add
`e BIGINT`, the time of the partial session's last record, and their w is that of its first; sliding windows have the
record's own time in w.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_jobs import canonical
from tidemark.stores.layout import HLL_LG_K, KLL_K, slots_of
from tidemark.tasks.task import Status
from tidemark.topology.plan import (
    EVENT_TIME,
    Aggregate,
    Aggregation,
    Branch,
    Filter,
    Fold,
    Number,
    Select,
    SessionWindow,
    Source,
    Step,
    SubTopology,
    Window,
)

_NUMBER_TYPE = {Number.LONG: "BIGINT", Number.DOUBLE: "DOUBLE"}
_KEPT = ("__p", "__offset", "__status", "__k", "__ts", "__deleted")
RESERVED = ("_key", "_topic", "_partition", "_offset", "_timestamp")


def quoted(name: str) -> str:
    """A column name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def judged_sql(
    source: Source, view: str, max_timestamp_ahead_ms: int, reads: Iterable[str], extra: tuple[str, ...] = ()
) -> str:
    """Each record parsed and judged (rule 14, row A9).

    `reads` are the expressions behind it: columns that none of them names may be null. `extra` are more columns of the
    Kafka source to keep.
    """
    more = "".join(f", {name}" for name in extra)
    timestamp = f"CAST(({source.timestamp}) AS BIGINT)"
    if source.is_table:
        # A deletion has no value to take a timestamp from.
        timestamp = f"CASE WHEN __deleted THEN _timestamp ELSE {timestamp} END"
    columns = ", ".join([*(quoted(c.name) for c in source.schema), *RESERVED])
    return f"""
SELECT *, CASE WHEN __reason IS NULL THEN {Status.GOOD} ELSE {Status.BAD} END AS __status FROM (
SELECT *, CASE
    WHEN __unparsable THEN 'unparsable'
    WHEN _key IS NULL OR __k IS NULL THEN 'no key'
    WHEN __ts IS NULL OR __ts < 0 OR __ts > _timestamp + {max_timestamp_ahead_ms} THEN 'impossible timestamp'
    END AS __reason FROM (
SELECT __p, __offset, __deleted, NOT __deleted AND __unparsable AS __unparsable{more}, {columns},
    CAST(({source.key}) AS STRING) AS __k, {timestamp} AS __ts FROM (
{_parsed_sql(source, view, [source.key, source.timestamp, *reads], more)})))"""


def _parsed_sql(source: Source, view: str, reads: Iterable[str], more: str) -> str:
    """The schema's columns of each record, and whether it could not be parsed; see `canonical`."""
    kept = f"__p, __offset, __deleted{more}, {', '.join(RESERVED)}"
    deleted = "value IS NULL" if source.is_table else "false"
    schema = literal(", ".join([*(f"{quoted(c.name)} {c.type}" for c in source.schema), "`__corrupt` STRING"]))
    from_json = f"from_json(__value, {schema}, map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '__corrupt'))"
    # Spark's parser reads bytes that are not UTF-8 as replacement characters; such a record is no JSON.
    refused = "__r IS NULL OR __r.__corrupt IS NOT NULL OR NOT is_valid_utf8(__value)"
    raw = f"""
SELECT partition AS __p, offset AS __offset, {deleted} AS __deleted{more},
    CAST(key AS STRING) AS _key, topic AS _topic, partition AS _partition,
    offset AS _offset, unix_millis(timestamp) AS _timestamp, CAST(value AS STRING) AS __value
FROM {view}"""
    pattern = canonical.pattern(source.schema)
    if pattern is None:
        fields = ", ".join(f"__r.{quoted(c.name)} AS {quoted(c.name)}" for c in source.schema)
        return f"""
SELECT {kept}, {refused} AS __unparsable, {fields} FROM (
SELECT {kept}, __value, {from_json} AS __r FROM ({raw}))"""
    needed = canonical.needed(source.schema, reads)
    fields = ", ".join(
        f"CASE WHEN __plain THEN CAST({canonical.field_sql(needed.index(i), len(needed), '__text')} AS {c.type}) "
        f"ELSE __r.{quoted(c.name)} END AS {quoted(c.name)}"
        if i in needed
        else f"CAST(NULL AS {c.type}) AS {quoted(c.name)}"
        for i, c in enumerate(source.schema)
    )
    replaced = f"regexp_replace(__value, {literal(pattern)}, '{canonical.replacement(needed)}')"
    return f"""
SELECT {kept}, NOT __plain AND ({refused}) AS __unparsable, {fields} FROM (
SELECT {kept}, __plain, __text, __value, CASE WHEN NOT __plain THEN {from_json} END AS __r FROM (
SELECT *, coalesce(__is_object AND startswith(__text, '{canonical.SEPARATOR}'), false) AS __plain FROM (
SELECT *, CASE WHEN __is_object THEN {replaced} ELSE __value END AS __text FROM (
SELECT *, startswith(__value, '{{') AS __is_object FROM ({raw})))))"""


def branch_sql(subtopology: SubTopology, branch: Branch, view: str, max_timestamp_ahead_ms: int) -> str:
    """The partial results of one branch, or its records where it has no aggregation."""
    source = subtopology.sources[branch.source]
    if len(subtopology.sources) > 1:
        view = f"(SELECT * FROM {view} WHERE topic = {literal(source.topic)})"
    sql = judged_sql(source, view, max_timestamp_ahead_ms, _expressions(source, branch))
    columns = [*(c.name for c in source.schema), *RESERVED]
    for step in branch.steps:
        if isinstance(step, Select):
            named = ", ".join(f"({expression}) AS {quoted(name)}" for name, expression in step.columns)
            sql = f"SELECT {', '.join(_KEPT)}, {named} FROM ({sql})"
            columns = [name for name, _ in step.columns]
            continue
        # A filtered record keeps its row: pushing a condition below the parser would parse twice.
        kept = ", ".join([*(c for c in _KEPT if c not in ("__status", "__k")), *map(quoted, columns)])
        if isinstance(step, Filter):
            key, condition = "__k", f"coalesce(({step.condition}), false)"
        else:
            key, condition = f"({step.key})", f"({step.key}) IS NOT NULL"
        sql = (
            f"SELECT {kept}, {key} AS __k, CASE WHEN __status = {Status.GOOD} AND NOT {condition} "
            f"THEN {Status.FILTERED} ELSE __status END AS __status FROM ({sql})"
        )
    if branch.aggregation is None:
        return _records_sql(sql, branch)
    return _partials_sql(sql, branch.aggregation)


def _expressions(source: Source, branch: Branch) -> list[str]:
    """Every expression of a branch; a road that ends in a sink writes all the columns it has."""
    found = [e for step in branch.steps for e in (_texts(step))]
    if branch.aggregation is None:
        return [*found, *(column.name for column in source.schema)]
    return [*found, *(a.expression for a in branch.aggregation.aggregates if a.expression is not None)]


def _texts(step: Step) -> list[str]:
    if isinstance(step, Select):
        return [expression for _, expression in step.columns]
    return [step.condition if isinstance(step, Filter) else step.key]


def _records_sql(sql: str, branch: Branch) -> str:
    names = [column.name for column in branch.columns]
    fields = [(name, quoted(name)) for name in names]
    if any(sink.is_repartition for sink in branch.sinks):
        fields.append((EVENT_TIME, "__ts"))
    json = ", ".join(f"{literal(name)}, {column}" for name, column in fields)
    selected = ["__p AS p", "__status AS status", "CAST(1 AS BIGINT) AS rows", "__ts AS max_ts", "__k AS k"]
    selected.append("__offset AS record_offset")
    if branch.sinks:
        struct = f"to_json(named_struct({json}), map('ignoreNullFields', 'false'))"
        selected.append(f"CASE WHEN NOT __deleted THEN {struct} END AS value")
    if branch.enters:
        selected.append("__deleted AS deleted")
        # The type that the topology was told: Spark takes 0.1 for a DECIMAL.
        selected += [f"CAST({quoted(c.name)} AS {c.type}) AS {quoted('v.' + c.name)}" for c in branch.columns]
    return f"SELECT {', '.join(selected)} FROM ({sql})"


def _partials_sql(sql: str, aggregation: Aggregation) -> str:
    good = f"__status = {Status.GOOD}"
    partials = "".join(f", {partial} AS {quoted(column)}" for column, partial in _partials(aggregation.aggregates))
    key = f"CASE WHEN {good} THEN __k END AS k"
    if aggregation.window is None:
        start, group, selected = "", "p, status, k", "k"
    elif isinstance(aggregation.window, SessionWindow):
        # Spark ends a session where the next record is a gap away, Kafka Streams where it is more than a gap away.
        at = f"timestamp_millis(CASE WHEN {good} THEN __ts ELSE 0 END)"
        start = f", {at} AS __at"
        group = f"p, status, k, session_window(__at, '{aggregation.window.gap_ms + 1} milliseconds')"
        selected = "k, min(__ts) AS w, max(__ts) AS e"
    else:
        at = (
            _window_start(aggregation.window, good)
            if isinstance(aggregation.window, Window)
            else (f"CASE WHEN {good} THEN __ts END")
        )
        start, group, selected = f", {at} AS w", "p, status, k, w", "k, w"
    return (
        f"SELECT p, status, count(1) AS rows, max(__ts) AS max_ts, {selected}{partials} FROM ("
        f"SELECT *, __p AS p, __status AS status, {key}{start} FROM ({sql})) GROUP BY {group}"
    )


def _window_start(window: Window, good: str) -> str:
    """Starts are aligned to the epoch and never negative, as in Kafka Streams."""
    aligned = f"__ts - pmod(__ts, {window.advance_ms})"
    if window.advance_ms == window.size_ms:
        return f"CASE WHEN {good} THEN {aligned} END"
    hops = -(-window.size_ms // window.advance_ms)
    starts = (
        f"filter(transform(sequence(0, {hops - 1}), i -> {aligned} - i * {window.advance_ms}L), "
        f"s -> s >= 0 AND s + {window.size_ms} > __ts)"
    )
    return f"explode(CASE WHEN {good} THEN {starts} ELSE array(CAST(NULL AS BIGINT)) END)"


def _partials(aggregates: tuple[Aggregate, ...]) -> list[tuple[str, str]]:
    """(slot, SQL) for each stored field, in the order of `slots_of`."""
    found: list[tuple[str, str]] = []
    names = iter(slots_of(aggregates))
    for aggregate in aggregates:
        of = aggregate.expression
        if aggregate.fold is Fold.COUNT:
            found.append((next(names).column, "count(1)" if of is None else f"count({of})"))
        elif aggregate.fold is Fold.MEAN:
            found.append((next(names).column, f"sum(CAST(({of}) AS DOUBLE))"))
            found.append((next(names).column, f"count({of})"))
        elif aggregate.fold is Fold.DISTINCT:
            found.append((next(names).column, f"hll_sketch_agg({of}, {HLL_LG_K})"))
        elif aggregate.fold is Fold.QUANTILE:
            found.append((next(names).column, f"kll_sketch_agg_double({of}, {KLL_K})"))
        elif aggregate.fold is Fold.COLLECT:
            # Records of a task come from one partition, so that their offsets are the order of arrival.
            offset = f"CASE WHEN ({of}) IS NOT NULL THEN __offset END"
            found.append((next(names).column, f"reverse(max_by({of}, {offset}, {aggregate.argument}))"))
        else:
            kind = _NUMBER_TYPE[aggregate.number]
            found.append((next(names).column, f"CAST({aggregate.fold.value}({of}) AS {kind})"))
    return found


def dead_letters_sql(source: Source, view: str, max_timestamp_ahead_ms: int) -> str:
    """The bad records of a batch, as they were read, with the reason."""
    view = f"(SELECT * FROM {view} WHERE topic = {literal(source.topic)})"
    judged = judged_sql(source, view, max_timestamp_ahead_ms, (), extra=("key", "value", "headers"))
    return (
        f"SELECT __reason AS reason, _topic AS topic, __p AS p, __offset AS record_offset, key, value, headers "
        f"FROM ({judged}) WHERE __reason IS NOT NULL"
    )
