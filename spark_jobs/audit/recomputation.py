"""The audit's own results of an aggregation, as plain Spark SQL, from only the declaration and the source's records.

Nothing here is the stream's own plan: JSON is parsed only with `from_json`, windows are Spark's `window()`, and partial
results are added up with window functions over the batches of the commit records (see invariant: recomputation follows commit
records). The only shared functions are `quoted`, `literal` and `parsed_json_sql`, which is `from_json`.

The results of one aggregation have the columns

    p INT, k STRING, ws BIGINT      task, key and window start, which is -1 without windows
    batch BIGINT                    -1 in the rows from which the run continues
    rows BIGINT, ts BIGINT          records of this batch and key, and the newest timestamp among them
    s<i>, c<i>                      the kept fields of aggregate i: its value, and for a mean the count
    r_<name>                        the result as the stream emits it
    is_newest BOOLEAN               whether no later batch of the run changes this key
"""

from __future__ import annotations

from spark_jobs.json_values import parsed_json_sql
from spark_jobs.sql_text import literal, quoted
from tidemark.audit.derivable import Derived
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.keyless import needs_key, takes_keyless
from tidemark.topology.plan import (
    Aggregate,
    Aggregation,
    Filter,
    Fold,
    Number,
    Pipeline,
    Select,
    SessionWindow,
    SlidingWindow,
    Source,
    SubTopology,
    Window,
)

NO_WINDOW = -1
_KEPT = ("__p", "__offset", "__batch", "__bad", "__in", "__k", "__ts", "__deletes")
_RESERVED = ("_key", "_topic", "_partition", "_offset", "_timestamp")
# The parts of a key that ends in a window's start, eight bytes big-endian.
_KEY_BEFORE_WINDOW = "substring(key, 1, length(key) - 8)"
_KEY_WINDOW_START = "CAST(conv(hex(substring(key, length(key) - 7, 8)), 16, -10) AS BIGINT)"
_NUMBER = {Number.LONG: "BIGINT", Number.DOUBLE: "DOUBLE"}


def key_text_sql(serde: KeySerde) -> str:
    """Return the SQL of the text of the column `key`, which is null if it has none. Not the stream's own expression."""
    if serde is KeySerde.STRING:
        return "CASE WHEN is_valid_utf8(CAST(key AS STRING)) THEN CAST(key AS STRING) END"
    if serde.width_bytes is None:
        return "lower(hex(key))"
    unsigned = "CAST(conv(hex(key), 16, 10) AS DECIMAL(20, 0))"
    values = f"CAST('{1 << 8 * serde.width_bytes}' AS DECIMAL(20, 0))"
    signed = f"{unsigned} - IF(substring(hex(key), 1, 1) >= '8', {values}, CAST(0 AS DECIMAL(20, 0)))"
    return f"CASE WHEN length(key) = {serde.width_bytes} THEN CAST({signed} AS STRING) END"


def has_form_sql(serde: KeySerde, text: str) -> str:
    """Return the SQL condition that a text can be written as a key of this form; an output with another key is not sent."""
    if serde.width_bytes is None:
        return "true" if serde is KeySerde.STRING else f"coalesce(lower(hex(unhex({text}))) = {text}, false)"
    number = {8: "BIGINT", 4: "INT", 2: "SMALLINT"}[serde.width_bytes]
    return f"coalesce(CAST(try_cast({text} AS {number}) AS STRING) = {text}, false)"


def judged_sql(source: Source, records: str, refused: str, max_timestamp_ahead_ms: int) -> str:
    """Return the SQL of every record of a source in the batches, parsed, with `__bad` if it must be a dead letter.

    The columns that `placed_sql` can add are left out, because this table is kept in memory. `refused` are the places of the
    records for which the stream's SQL has raised by their dead letters. They are bad, and their values are not read: the same
    SQL would raise here.
    """
    timestamp = f"CASE WHEN __deletes THEN _timestamp ELSE CAST(({source.timestamp}) AS BIGINT) END"
    key = f"CASE WHEN __deletes OR _key IS NULL THEN _key ELSE CAST(({source.key}) AS STRING) END"
    columns = ", ".join([*(f"__r.{quoted(c.name)} AS {quoted(c.name)}" for c in source.schema), *_RESERVED])
    unreadable = (
        "__refused OR (__has_key AND _key IS NULL) "
        "OR (NOT __deletes AND (__r IS NULL OR __r.__corrupt IS NOT NULL OR NOT is_valid_utf8(__text)))"
    )
    # The state of a key is in one task only as long as all of its records have it as their Kafka key.
    strays = " OR NOT coalesce(__k = _key, true)" if source.checks_key else ""
    return f"""
SELECT * EXCEPT (__unreadable, _topic, _partition, _offset) FROM (
SELECT *, __unreadable OR __ts IS NULL OR __ts < 0 OR __ts > _timestamp + {max_timestamp_ahead_ms}{strays} AS __bad FROM (
SELECT *, {key} AS __k, {timestamp} AS __ts FROM (
SELECT __p, __offset, __batch, __deletes, {unreadable} AS __unreadable, {columns} FROM (
SELECT *, {parsed_json_sql("__text", source.schema)} AS __r FROM (
SELECT p AS __p, offset AS __offset, batch AS __batch, value IS NULL AS __deletes,
    of_offset IS NOT NULL AS __refused, CASE WHEN of_offset IS NULL THEN CAST(value AS STRING) END AS __text,
    key IS NOT NULL AS __has_key,
    {key_text_sql(source.key_serde)} AS _key,
    topic AS _topic, partition AS _partition, offset AS _offset, ts_ms AS _timestamp
FROM (SELECT role, topic, partition, offset, ts_ms, key, value, p, batch FROM {records})
LEFT JOIN {refused} ON of_topic = topic AND of_partition = partition AND of_offset = offset
WHERE role = 'source' AND topic = {literal(source.topic)} AND batch IS NOT NULL)))))"""


def placed_sql(source: Source, judged: str) -> str:
    """Return the same SQL with `_topic`, `_partition` and `_offset`, which expressions may use.

    For a source, the partition is that of the task.
    """
    return f"SELECT *, {literal(source.topic)} AS _topic, __p AS _partition, __offset AS _offset FROM {judged}"


def pipeline_records_sql(subtopology: SubTopology, pipeline: Pipeline, judged: str) -> str:
    """Return the SQL of the records of a pipeline, with `__in` for those that reach its end.

    Bad and filtered records stay as rows, so that they can be counted. `__keyless` marks a dead letter that has no key
    although a node downstream needs one.
    """
    source = subtopology.sources[pipeline.source]
    columns = [*map(quoted, (c.name for c in source.schema)), *_RESERVED]
    sql = f"SELECT *, NOT __bad AS __in FROM {judged}"
    for step in pipeline.steps:
        if isinstance(step, Select):
            named = ", ".join(
                f"CASE WHEN __in AND NOT __deletes THEN ({text}) END AS {quoted(name)}" for name, text in step.columns
            )
            sql = f"SELECT {', '.join(_KEPT)}, {named} FROM ({sql})"
            columns = [quoted(name) for name, _ in step.columns]
            continue
        if isinstance(step, Filter):
            condition = f"coalesce(({step.condition}), false)"
        else:
            # After a select, only `__k` has the record's own key.
            new_key = "__k" if step.key == "_key" and "_key" not in columns else step.key
            # A key that is not text is left out, like a null key. Null keys are kept for joins that emit them.
            condition = f"coalesce(is_valid_utf8({new_key}), {'true' if step.keeps_null_keys else 'false'})"
        kept = ", ".join([*(c for c in _KEPT if c != "__in"), *columns])
        sql = f"SELECT {kept}, __in AND {condition} AS __in FROM ({sql})"
    # Kafka Streams' aggregates without windows, and those of sliding windows, skip records without a value.
    skips = pipeline.aggregation is not None and not isinstance(pipeline.aggregation.window, Window | SessionWindow)
    reaches = "__in AND NOT __deletes" if skips else "__in"
    keyless, stays = "false", reaches
    if needs_key(subtopology, pipeline):
        keyless = f"{reaches} AND __k IS NULL"
        stays = reaches if takes_keyless(subtopology, pipeline) else f"{reaches} AND __k IS NOT NULL"
    return f"SELECT * EXCEPT (__in), {stays} AS __in, {keyless} AS __keyless FROM ({sql})"


def account_sql(pipeline: Pipeline, records: str) -> str:
    """Return the SQL of the counts per task and batch: records at the end, filtered and bad ones, and the newest timestamp."""
    times = "1"
    window = pipeline.aggregation.window if pipeline.aggregation else None
    if isinstance(window, Window) and window.advance_ms < window.size_ms:
        # In hopping windows a record counts once for each of its windows, none of which begins before 0.
        first = f"greatest(0, __ts - {window.size_ms} + 1)"
        times = f"(__ts div {window.advance_ms} - CAST(ceil({first} / {window.advance_ms}) AS BIGINT) + 1)"
    elif window is not None and not isinstance(window, Window | SessionWindow | SlidingWindow):
        raise TypeError(f"{window} is not a known kind of window")
    return (
        f"SELECT __p AS p, __batch AS batch, CAST(sum(CASE WHEN __in THEN {times} ELSE 0 END) AS BIGINT) AS rows, "
        "count_if(NOT __bad AND NOT __in AND NOT __keyless) AS filtered_rows, "
        "count_if(__bad) AS bad_rows, "
        f"max(CASE WHEN NOT __bad THEN __ts END) AS newest_ms, count(1) AS records FROM {records} GROUP BY __p, __batch"
    )


def partials_sql(aggregation: Aggregation, records: str) -> str:
    """Return the SQL of the partial results per task, batch, key and window."""
    window = aggregation.window
    ws, having = f"CAST({NO_WINDOW} AS BIGINT)", ""
    rows = f"SELECT * FROM {records} WHERE __in"
    if isinstance(window, Window):
        spans = f"window(timestamp_millis(__ts), '{window.size_ms} milliseconds', '{window.advance_ms} milliseconds')"
        rows = f"SELECT *, {spans} AS __w FROM {records} WHERE __in"
        ws, having = "unix_millis(__w.start)", f" WHERE unix_millis(__w.start) >= {0}"
    named = "".join(f", {sql} AS {name}" for name, sql in _partials(aggregation.aggregates))
    return (
        f"SELECT __p AS p, __k AS k, __ws AS ws, __batch AS batch, count(1) AS rows, max(__ts) AS ts{named} "
        f"FROM (SELECT *, {ws} AS __ws FROM ({rows}){having}) GROUP BY __p, __k, __ws, __batch"
    )


def _partials(aggregates: tuple[Aggregate, ...]) -> list[tuple[str, str]]:
    found = []
    for i, aggregate in enumerate(aggregates):
        of = aggregate.expression
        if aggregate.fold is Fold.COUNT:
            found.append((f"s{i}", f"count({of or 1})"))
        elif aggregate.fold is Fold.MEAN:
            found += [(f"s{i}", f"sum(CAST(({of}) AS DOUBLE))"), (f"c{i}", f"count({of})")]
        else:
            found.append((f"s{i}", f"CAST({aggregate.fold.value}({of}) AS {_NUMBER[aggregate.number]})"))
    return found


def kept_columns(aggregation: Aggregation) -> list[str]:
    """Return the kept fields s0, s1, c1, … with their types, in the order of a carried state."""
    found = []
    for i, aggregate in enumerate(aggregation.aggregates):
        found.append(f"s{i} {'DOUBLE' if aggregate.fold is Fold.MEAN else _NUMBER[aggregate.number]}")
        if aggregate.fold is Fold.MEAN:
            found.append(f"c{i} BIGINT")
    return found


def _closed_after_ms(window: Window) -> int:
    """Return after how many milliseconds of stream time since its start a window closes.

    Computed here again, so that the stream's own computation is audited, too.
    """
    return window.size_ms + window.grace_ms


def in_time_sql(aggregation: Aggregation, partials: str, batches: str) -> str:
    """Return the SQL of the partial results with `is_late`: their window had closed when their batch began.

    See invariant: late rows.
    """
    late = "false"
    if isinstance(aggregation.window, Window):
        late = f"b.before_ms <> -1 AND t.ws + {_closed_after_ms(aggregation.window)} <= b.before_ms"
    return f"SELECT t.*, {late} AS is_late FROM {partials} t JOIN {batches} b ON b.p = t.p AND b.batch = t.batch"


def results_sql(aggregation: Aggregation, in_time: str, base: str) -> str:
    """Return the SQL of the results after each batch with a key, and of the base itself as batch -1."""
    kept = [column.split()[0] for column in kept_columns(aggregation)]
    names = ", ".join(kept)
    rows = (
        f"SELECT p, k, ws, batch, rows, ts, {names} FROM {in_time} WHERE NOT is_late "
        f"UNION ALL SELECT p, k, ws, -1, 0, NULL, {names} FROM {base}"
    )
    over = "OVER (PARTITION BY p, k, ws ORDER BY batch ROWS UNBOUNDED PRECEDING)"
    running = []
    for i, aggregate in enumerate(aggregation.aggregates):
        function = {Fold.MIN: "min", Fold.MAX: "max"}.get(aggregate.fold, "sum")
        running.append(f"{function}(s{i}) {over} AS s{i}")
        if aggregate.fold is Fold.MEAN:
            running.append(f"sum(c{i}) {over} AS c{i}")
    return (
        f"SELECT *, {', '.join(_results(aggregation))} FROM "
        f"(SELECT p, k, ws, batch, rows, ts, {', '.join(running)}, "
        f"lead(batch) OVER (PARTITION BY p, k, ws ORDER BY batch) IS NULL AS is_newest FROM ({rows}))"
    )


def _results(aggregation: Aggregation) -> list[str]:
    return [
        f"{f'CASE WHEN c{i} > 0 THEN s{i} / c{i} END' if a.fold is Fold.MEAN else f's{i}'} AS {quoted('r_' + a.name)}"
        for i, a in enumerate(aggregation.aggregates)
    ]


def state_sql(aggregation: Aggregation, results: str, ends: str) -> str:
    """Return the SQL of the state for the next audit: the newest result of each key, without windows that are closed."""
    names = ", ".join(column.split()[0] for column in kept_columns(aggregation))
    still = ""
    if isinstance(aggregation.window, Window):
        still = f" AND (e.stream_time_ms = -1 OR t.ws + {_closed_after_ms(aggregation.window)} > e.stream_time_ms)"
    return f"SELECT t.p, t.k, t.ws, {names} FROM {results} t JOIN {ends} e ON e.p = t.p WHERE t.is_newest{still}"


def finals_sql(aggregation: Aggregation, results: str, batches: str) -> str:
    """Return the SQL of the windows that close in the cut, like `results` but with the batch that closes them (suppress)."""
    if not isinstance(aggregation.window, Window):
        raise TypeError(f"{aggregation.node} has no windows that close")
    closed = _closed_after_ms(aggregation.window)
    return (
        f"SELECT r.* EXCEPT (batch), b.batch FROM {results} r JOIN {batches} b ON b.p = r.p "
        f"AND r.ws + {closed} <= b.stream_time_ms AND (b.before_ms = -1 OR r.ws + {closed} > b.before_ms) "
        "WHERE r.is_newest"
    )


def changelog_fields_sql(derived: Derived) -> tuple[str, str, list[str]]:
    """Return the SQL of key, window start and kept fields (s0, …) over a changelog's `key` and `value` (docs/stores.md)."""
    aggregation = derived.aggregation
    fields = kept_columns(aggregation)
    mask_bytes = next(width for width in (1, 2, 4, 8) if len(fields) <= 8 * width)
    key, ws = "CAST(key AS STRING)", f"CAST({NO_WINDOW} AS BIGINT)"
    if aggregation.window is not None:
        key, ws = f"CAST({_KEY_BEFORE_WINDOW} AS STRING)", _KEY_WINDOW_START
    mask = _little_endian(2, mask_bytes)
    found = []
    for i, field in enumerate(fields):
        name, kind = field.split()
        # After the mask come eight bytes with the value's timestamp, then the fields.
        bits = _little_endian(2 + mask_bytes + 8 + 8 * i, 8)
        value = _double(bits) if kind == "DOUBLE" else bits
        found.append(f"CASE WHEN value IS NOT NULL AND ({mask} & {1 << i}) <> 0 THEN {value} END AS {name}")
    return key, ws, found


def _little_endian(start: int, width: int) -> str:
    turned = ", ".join(f"substring(value, {start + i}, 1)" for i in reversed(range(width)))
    # -10 reads sixteen digits as a signed number.
    return f"CAST(conv(hex(concat({turned})), 16, -10) AS BIGINT)"


def _double(bits: str) -> str:
    """Return the SQL of the IEEE 754 double with these bits. Powers of two are exact."""
    exponent = f"(shiftright({bits}, 52) & 2047)"
    fraction = f"({bits} & 4503599627370495)"
    sign = f"(CASE WHEN {bits} < 0 THEN -1D ELSE 1D END)"
    return (
        f"CASE WHEN {exponent} = 2047 AND {fraction} <> 0 THEN double('NaN') "
        f"WHEN {exponent} = 2047 THEN {sign} * double('Infinity') "
        f"WHEN {exponent} = 0 THEN {sign} * {fraction} * pow(2D, -1074) "
        f"ELSE {sign} * ({fraction} + 4503599627370496) * pow(2D, {exponent} - 1075) END"
    )


def changelog_results_sql(derived: Derived, records: str) -> str:
    """Return the SQL of each decoded record of a changelog: its coordinates, p, k, ws, batch, s0, …, r_<name>, `is_deleted`."""
    key, ws, fields = changelog_fields_sql(derived)
    return (
        f"SELECT *, {', '.join(_results(derived.aggregation))} FROM (SELECT topic, partition, offset, p, batch, "
        f"{key} AS k, {ws} AS ws, value IS NULL AS is_deleted, {', '.join(fields)} FROM {records} "
        f"WHERE role = 'changelog' AND topic = {literal(derived.changelog or '')})"
    )


def sink_results_sql(derived: Derived, topic: str, records: str) -> str:
    """Return the SQL of each decoded record of a sink of the aggregation, in the same columns without s0, …

    A record belongs to no window if its end is not that of its window.
    """
    aggregation = derived.aggregation
    schema = ", ".join(f"{quoted(column.name)} {column.type}" for column in aggregation.columns)
    sinks = [sink for sink in derived.subtopology.sinks if sink.topic == topic]
    is_text = all(sink.key_serde is KeySerde.STRING for sink in sinks)
    key = "CAST(key AS STRING)" if is_text else key_text_sql(sinks[0].key_serde)
    ws = f"CAST({NO_WINDOW} AS BIGINT)"
    if isinstance(aggregation.window, Window):
        ws = f"CASE WHEN __r.window_end = __r.window_start + {aggregation.window.size_ms} THEN __r.window_start END"
    if any(sink.windowed_key is not None for sink in sinks):
        # If key and value name two different windows, the record belongs to neither.
        key, ws = f"CAST({_KEY_BEFORE_WINDOW} AS STRING)", f"CASE WHEN {_KEY_WINDOW_START} = {ws} THEN {ws} END"
    results = ", ".join(f"__r.{quoted(a.name)} AS {quoted('r_' + a.name)}" for a in aggregation.aggregates)
    return (
        f"SELECT topic, partition, offset, p, batch, {key} AS k, {ws} AS ws, "
        f"value IS NULL AS is_deleted, {results} FROM (SELECT *, from_json(CAST(value AS STRING), {literal(schema)}) "
        f"AS __r FROM {records} WHERE role = 'sink' AND topic = {literal(topic)})"
    )
