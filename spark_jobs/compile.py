"""The Spark part of a sub-topology as SQL text over a view: parse, check, filter, select, window, pre-aggregate.

Every statement is the same for every batch, so Spark compiles its code only once. Internal columns begin with `__`. The columns
of the results are in `tidemark.tasks.partials`. For sliding windows, and for lists in sessions, each record has its own row,
because both depend on the order of arrival.

A record without a value counts as a record in which all columns are null: a filter is evaluated on nulls, and a select leaves
the columns null. Its key and its timestamp are those of Kafka. The module `keyless` decides which pipelines need a key.

A statement for canonical records alone reads the good records that are in the usual form, in one stage of generated code, and
counts all others as unread (`docs/decisions/0020-one-stage-for-canonical-records.md`). `unread_sql` selects those for the
statement that reads all records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from spark_jobs import canonical
from spark_jobs.json_values import parsed_json_sql
from spark_jobs.key_text import key_text_sql
from spark_jobs.sql_text import literal, quoted
from tidemark.stores.layout import HLL_LG_K, KLL_K, slots_of
from tidemark.tasks.partials import Partial, Status, value_column
from tidemark.tasks.update import (
    IMPOSSIBLE_TIMESTAMP,
    KEY_DIFFERS,
    KEY_NOT_TEXT,
    NO_KEY,
    UNPARSABLE,
    WRONG_KEY_LENGTH,
)
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.keyless import needs_key
from tidemark.topology.plan import (
    Aggregate,
    Aggregation,
    Filter,
    Fold,
    Number,
    Pipeline,
    Select,
    SlidingWindow,
    Source,
    Step,
    SubTopology,
    Window,
)
from tidemark.topology.schema import KEY

_NUMBER_TYPE = {Number.LONG: "BIGINT", Number.DOUBLE: "DOUBLE"}
_KEPT = ("__p", "__offset", "__status", "__k", "__ts", "__deleted")
_AS_READ = ("__value", "__text")
"""The value of a canonical record as it was read, and the marked text of `canonical.extracted_sql`."""
_HEADERS = {"__headers": "headers"}
_KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
_PLACE = f"{Partial.PARTITION}, __offset AS {Partial.RECORD_OFFSET}"
TIME_COLUMNS = ("source", Partial.PARTITION, Partial.RECORD_OFFSET, "ts")
"""The columns of `times_sql`: the number of the source INT, partition, offset, and event time BIGINT."""
MERGEABLE = frozenset({Fold.COUNT, Fold.SUM, Fold.MIN, Fold.MAX, Fold.MEAN})
"""The folds of which two partial results of one key can be merged to one."""
DEAD_LETTERS = (Status.BAD, Status.NO_KEY)
"""The statuses of records that become dead letters."""
RESERVED = ("_key", "_topic", "_partition", "_offset", "_timestamp")


def reads_headers(subtopology: SubTopology) -> bool:
    """Whether a sink of a sub-topology passes headers on. Otherwise they are not read, because they cost time per record."""
    return any(pipeline.sinks for pipeline in subtopology.pipelines)


def judged_sql(
    source: Source, view: str, max_timestamp_ahead_ms: int, reads: Iterable[str], extra: Mapping[str, str] | None = None
) -> str:
    """Return the SQL of each record, parsed and checked, whether it has a key or not (see invariant: impossible timestamps).

    `reads` are the expressions that use the result: columns that none of them names may be null. `extra` are additional
    columns of the Kafka source to keep, by their new names.
    """
    extra = extra or {}
    more = "".join(f", {name}" for name in extra)
    # Without a value, key and timestamp cannot be computed. A record without a Kafka key has no key, because records with
    # equal computed keys could be in any partition.
    key, timestamp = "_key", "_timestamp"
    if source.key != key:
        key = f"CASE WHEN _key IS NULL OR __deleted THEN _key ELSE CAST(({source.key}) AS STRING) END"
    if source.timestamp != timestamp:
        timestamp = f"CASE WHEN __deleted THEN _timestamp ELSE CAST(({source.timestamp}) AS BIGINT) END"
    # Both are columns of bytes already. If one of the two is null, nothing differs: the record has no key.
    unread_key = KEY_NOT_TEXT if source.key_serde is KeySerde.STRING else WRONG_KEY_LENGTH
    differs = f"\n    WHEN __k <> _key THEN '{KEY_DIFFERS}'" if source.checks_key else ""
    columns = ", ".join([*(quoted(c.name) for c in source.schema), *RESERVED])
    return f"""
SELECT *, CASE WHEN __reason IS NULL THEN {Status.GOOD} ELSE {Status.BAD} END AS __status FROM (
SELECT *, CASE
    WHEN __unparsable THEN '{UNPARSABLE}'
    WHEN __has_key AND _key IS NULL THEN '{unread_key}'
    WHEN __ts IS NULL OR __ts < 0 OR __ts > _timestamp + {max_timestamp_ahead_ms} THEN '{IMPOSSIBLE_TIMESTAMP}'{differs}
    END AS __reason FROM (
SELECT __p, __offset, __deleted, __has_key, NOT __deleted AND __unparsable AS __unparsable{more}, {columns},
    {key} AS __k, {timestamp} AS __ts FROM (
{_parsed_sql(source, view, [source.key, source.timestamp, *reads], extra)})))"""


def _parsed_sql(source: Source, view: str, reads: Iterable[str], extra: Mapping[str, str]) -> str:
    """Return the SQL of the schema's columns of each record, and whether it could not be parsed. See `canonical`."""
    kept = ", ".join(["__p", "__offset", "__deleted", "__has_key", *extra, *RESERVED])
    more = "".join(f", {column} AS {name}" for name, column in extra.items())
    from_json = parsed_json_sql("__value", source.schema)
    # Spark's parser reads bytes that are not UTF-8 as replacement characters; such a record is not JSON.
    refused = "__r IS NULL OR __r.__corrupt IS NOT NULL OR NOT is_valid_utf8(__value)"
    key = key_text_sql(source.key_serde, "try_validate_utf8(CAST(key AS STRING))")
    raw = f"""
SELECT partition AS __p, offset AS __offset, value IS NULL AS __deleted, key IS NOT NULL AS __has_key{more},
    {key} AS _key, topic AS _topic, partition AS _partition,
    offset AS _offset, unix_millis(timestamp) AS _timestamp, CAST(value AS STRING) AS __value
FROM {view}"""
    if not canonical.is_possible(source.schema):
        fields = ", ".join(f"__r.{quoted(c.name)} AS {quoted(c.name)}" for c in source.schema)
        return f"""
SELECT {kept}, {refused} AS __unparsable, {fields} FROM (
SELECT {kept}, __value, {from_json} AS __r FROM ({raw}))"""
    needed = canonical.needed(source.schema, reads)
    fields = ", ".join(
        f"CASE WHEN __plain THEN CAST({canonical.field_sql(source.schema, needed, i, '__text')} AS {c.type}) "
        f"ELSE __r.{quoted(c.name)} END AS {quoted(c.name)}"
        if i in needed
        else f"CAST(NULL AS {c.type}) AS {quoted(c.name)}"
        for i, c in enumerate(source.schema)
    )
    return f"""
SELECT {kept}, NOT __plain AND ({refused}) AS __unparsable, {fields} FROM (
SELECT {kept}, __plain, __text, __value, CASE WHEN NOT __plain THEN {from_json} END AS __r FROM (
SELECT *, coalesce({canonical.is_extracted_sql(needed, "__text")}, false) AS __plain FROM (
SELECT *, {canonical.extracted_sql(source.schema, needed, "__value")} AS __text FROM ({raw}))))"""


def unread_sql(source: Source, view: str, max_timestamp_ahead_ms: int, *, has_headers: bool) -> str:
    """Return the SQL of the records of `view`, unchanged, that statements for canonical records alone count as unread.

    `has_headers` says whether the view has them.
    """
    columns = {f"__raw_{name}": name for name in (*_KAFKA_COLUMNS, *(("headers",) if has_headers else ()))}
    judged = _canonical_sql(source, view, max_timestamp_ahead_ms, (), columns)
    raw = ", ".join(f"{kept} AS {name}" for kept, name in columns.items())
    return f"SELECT {raw} FROM ({judged}) WHERE __status = {Status.UNREAD}"


def _canonical_sql(
    source: Source,
    view: str,
    max_timestamp_ahead_ms: int,
    reads: Iterable[str],
    extra: Mapping[str, str],
    *,
    is_marked: bool = False,
) -> str:
    """Return the SQL of `judged_sql`, in which good records in the usual form have their status and all others are unread.

    If it `is_marked`, the columns `_AS_READ` have what `canonical.as_rendered_sql` needs.
    """
    schema = source.schema
    key_column = next((i for i, column in enumerate(schema) if column.name == source.key), None)
    # Comparing the first column in place is cheaper than extracting it.
    is_compared = source.checks_key and key_column == 0 and schema[0].type == "STRING"
    wanted = [source.timestamp, *reads, *([] if is_compared else [source.key])]
    needed = canonical.needed(schema, wanted)
    if is_compared:
        needed = tuple(i for i in needed if i != 0)
    fields = [_canonical_field(source, i, needed, is_compared, is_marked=is_marked) for i in range(len(schema))]
    kept = ", ".join(["__p", "__offset", *extra, *RESERVED])
    more = "".join(f", {column} AS {name}" for name, column in extra.items())
    key = "_key" if is_compared or source.key == "_key" else f"CAST(({source.key}) AS STRING)"
    own_key = key_text_sql(source.key_serde, "CAST(key AS STRING)")
    is_good = [f"__ts >= 0 AND __ts <= _timestamp + {max_timestamp_ahead_ms}"]
    if is_compared:
        is_good.append(f"({canonical.first_field_is_sql(schema, '_key', '__value')})")
    elif source.checks_key and source.key != "_key":
        is_good.append("__k = _key")
    else:
        is_good.append("is_valid_utf8(_key)" if source.key_serde is KeySerde.STRING else "_key IS NOT NULL")
    is_extracted = canonical.is_extracted_sql(needed, "__text", is_marked=is_marked)
    marked = ", __text" if is_marked else ""
    good = f"coalesce({' AND '.join(['__is_canonical', *is_good])}, false)"
    status = f"CASE WHEN {good} THEN {Status.GOOD} ELSE {Status.UNREAD} END"
    return f"""
SELECT *, {status} AS __status FROM (
SELECT *, {key} AS __k, CAST(({source.timestamp}) AS BIGINT) AS __ts FROM (
SELECT {kept}, __value{marked}, false AS __deleted, {is_extracted} AS __is_canonical, {", ".join(fields)} FROM (
SELECT *, {canonical.extracted_sql(schema, needed, "__value", is_marked=is_marked)} AS __text FROM (
SELECT partition AS __p, offset AS __offset{more}, {own_key} AS _key, topic AS _topic,
    partition AS _partition, offset AS _offset, unix_millis(timestamp) AS _timestamp, CAST(value AS STRING) AS __value
FROM {view}))))"""


def _canonical_field(
    source: Source, number: int, needed: tuple[int, ...], key_is_compared: bool, *, is_marked: bool
) -> str:
    column = source.schema[number]
    if number in needed:
        text = canonical.field_sql(source.schema, needed, number, "__text", is_marked=is_marked)
    else:
        text = "_key" if number == 0 and key_is_compared else "NULL"
    return f"CAST({text} AS {column.type}) AS {quoted(column.name)}"


def pipeline_sql(
    subtopology: SubTopology,
    pipeline: Pipeline,
    view: str,
    max_timestamp_ahead_ms: int,
    *,
    canonical_only: bool = False,
    is_grouped: bool = True,
) -> str:
    """Return the SQL of the partial results of one pipeline, or of its records if it has no aggregation.

    With `canonical_only`, it reads canonical records alone, for a source with `canonical.is_possible`. If it is not
    `is_grouped`, each record has a partial result of its own in each of its windows; all aggregates must be `MERGEABLE`.
    """
    sql = _reaching_sql(subtopology, pipeline, view, max_timestamp_ahead_ms, canonical_only)
    if pipeline.aggregation is None:
        source = subtopology.sources[pipeline.source]
        return _records_sql(sql, pipeline, source if canonical_only and _sends_as_read(pipeline) else None)
    return _partials_sql(sql, pipeline.aggregation, is_grouped)


def _reaching_sql(
    subtopology: SubTopology, pipeline: Pipeline, view: str, max_timestamp_ahead_ms: int, canonical_only: bool = False
) -> str:
    """Return the SQL of every record after the pipeline's steps, with its status."""
    source = subtopology.sources[pipeline.source]
    if len(subtopology.sources) > 1:
        view = f"(SELECT * FROM {view} WHERE topic = {literal(source.topic)})"
    extra = _HEADERS if pipeline.sinks else {}
    always, reads = [*_KEPT, *extra], _expressions(source, pipeline)
    if canonical_only and _sends_as_read(pipeline):
        reads, always = _of_steps(pipeline), [*always, *_AS_READ]
        sql = _canonical_sql(source, view, max_timestamp_ahead_ms, reads, extra, is_marked=True)
    else:
        judged = _canonical_sql if canonical_only else judged_sql
        sql = judged(source, view, max_timestamp_ahead_ms, reads, extra)
    columns = [*(c.name for c in source.schema), *RESERVED]
    # A filter may keep a record from an expression that would raise. The statement for canonical records saves the comparison;
    # if it raises, this one decides.
    is_selected = "NOT __deleted" if canonical_only else f"NOT __deleted AND __status = {Status.GOOD}"
    for step in pipeline.steps:
        if isinstance(step, Select):
            named = ", ".join(
                f"CASE WHEN {is_selected} THEN ({expression}) END AS {quoted(name)}"
                for name, expression in step.columns
            )
            sql = f"SELECT {', '.join(always)}, {named} FROM ({sql})"
            columns = [name for name, _ in step.columns]
            continue
        # A filtered record keeps its row: pushing a condition below the parser would parse twice.
        kept = ", ".join([*(c for c in always if c not in ("__status", "__k")), *map(quoted, columns)])
        if isinstance(step, Filter):
            key, condition = "__k", f"coalesce(({step.condition}), false)"
        else:
            # Bytes that were cast to a STRING may not be valid text, for which Arrow would refuse the whole batch.
            # A select drops `_key`, but not the key itself.
            new_key = "__k" if step.key == KEY.name and KEY.name not in columns else step.key
            key = f"try_validate_utf8({new_key})"
            condition = f"{key} IS NOT NULL"
            if step.keeps_null_keys:
                condition = f"({new_key}) IS NULL OR {condition}"
        sql = (
            f"SELECT {kept}, {key} AS __k, CASE WHEN __status = {Status.GOOD} AND NOT ({condition}) "
            f"THEN {Status.FILTERED} ELSE __status END AS __status FROM ({sql})"
        )
    cases = []
    if pipeline.aggregation is not None and passes_over_null_values(pipeline.aggregation):
        cases.append(f"WHEN __status = {Status.GOOD} AND __deleted THEN {Status.FILTERED}")
    if needs_key(subtopology, pipeline):
        cases.append(f"WHEN __status = {Status.GOOD} AND __k IS NULL THEN {Status.NO_KEY}")
    if not cases:
        return sql
    return f"SELECT * EXCEPT (__status), CASE {' '.join(cases)} ELSE __status END AS __status FROM ({sql})"


def has_row_per_record(aggregation: Aggregation) -> bool:
    """Return whether each partial result is of one record.

    Sliding windows, and lists in sessions, depend on the order of arrival.
    """
    if isinstance(aggregation.window, SlidingWindow):
        return True
    has_lists = any(aggregate.fold is Fold.COLLECT for aggregate in aggregation.aggregates)
    return has_lists and aggregation.window is not None and not isinstance(aggregation.window, Window)


def passes_over_null_values(aggregation: Aggregation) -> bool:
    """Return whether an aggregation skips null values.

    Kafka Streams' KStreamAggregate and KStreamSlidingWindowAggregate skip them; the aggregates of other windows do not.
    """
    return aggregation.window is None or isinstance(aggregation.window, SlidingWindow)


def _expressions(source: Source, pipeline: Pipeline) -> list[str]:
    """Return every expression of a pipeline. One that ends in a sink uses all of its columns."""
    found = _of_steps(pipeline)
    if pipeline.aggregation is None:
        return [*found, *(column.name for column in source.schema)]
    return [*found, *(a.expression for a in pipeline.aggregation.aggregates if a.expression is not None)]


def _of_steps(pipeline: Pipeline) -> list[str]:
    return [expression for step in pipeline.steps for expression in _texts(step)]


def _texts(step: Step) -> list[str]:
    if isinstance(step, Select):
        return [expression for _, expression in step.columns]
    return [step.condition if isinstance(step, Filter) else step.key]


def _sends_as_read(pipeline: Pipeline) -> bool:
    """Whether a record in the usual form is sent to a sink as it was read, except for spaces between its fields."""
    is_changed = pipeline.enters or any(isinstance(step, Select) for step in pipeline.steps)
    return bool(pipeline.sinks) and not is_changed


def _records_sql(sql: str, pipeline: Pipeline, as_read: Source | None) -> str:
    """Return the SQL of the records of a pipeline.

    With `as_read`, its source, the records are canonical, and their values are those that were read, without spaces between
    fields.
    """
    json = ", ".join(f"{literal(column.name)}, {quoted(column.name)}" for column in pipeline.columns)
    selected = [
        Partial.PARTITION,
        Partial.STATUS,
        f"CAST(1 AS BIGINT) AS {Partial.ROWS}",
        f"__ts AS {Partial.MAX_TS}",
        f"__k AS {Partial.KEY}",
        f"__offset AS {Partial.RECORD_OFFSET}",
    ]
    if pipeline.sinks:
        if as_read is not None:
            value = canonical.as_rendered_sql(as_read.schema, "__text", "__value")
        else:
            value = f"to_json(named_struct({json}), map('ignoreNullFields', 'false'))"
        is_sent = f"NOT __deleted AND __status IN ({Status.GOOD}, {Status.NO_KEY})"
        selected.append(f"CASE WHEN {is_sent} THEN {value} END AS {Partial.VALUE}")
        selected.append(Partial.HEADERS)
    if pipeline.enters:
        selected.append(Partial.DELETED)
        # Cast to the type in the topology, because for Spark 0.1 is a DECIMAL.
        selected += [f"CAST({quoted(c.name)} AS {c.type}) AS {quoted(value_column(c.name))}" for c in pipeline.columns]
    return f"SELECT {', '.join(selected)} FROM ({sql})"


def _partials_sql(sql: str, aggregation: Aggregation, is_grouped: bool) -> str:
    good = f"__status = {Status.GOOD}"
    of_all = _partials if is_grouped else _partials_of_one
    partials = "".join(f", {partial} AS {quoted(column)}" for column, partial in of_all(aggregation.aggregates))
    key = f"CASE WHEN {good} THEN __k END AS {Partial.KEY}"
    group = f"{Partial.PARTITION}, {Partial.STATUS}, {Partial.KEY}"
    start = selected = ""
    if aggregation.window is not None:
        window = aggregation.window
        at = _window_start(window, good) if isinstance(window, Window) else f"CASE WHEN {good} THEN __ts END"
        start, selected = f", {at} AS {Partial.WINDOW}", f", {Partial.WINDOW}"
        group += selected
        if has_row_per_record(aggregation):
            start += f", CASE WHEN {good} THEN __offset END AS __one"
            group += ", __one"
    rows, newest, last = (
        ("count(1)", "max(__ts)", "max(__offset)") if is_grouped else ("CAST(1 AS BIGINT)", "__ts", "__offset")
    )
    return (
        f"SELECT {Partial.PARTITION}, {Partial.STATUS}, {rows} AS {Partial.ROWS}, {newest} AS {Partial.MAX_TS}, "
        f"{last} AS {Partial.LAST_OFFSET}, {Partial.KEY}{selected}{partials} "
        f"FROM (SELECT *, {key}{start} FROM ({sql}))" + (f" GROUP BY {group}" if is_grouped else "")
    )


def _window_start(window: Window, good: str) -> str:
    """Return the SQL of the window start. Starts are aligned to the epoch and never negative, as in Kafka Streams."""
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
    """Return (slot, SQL) for each stored field, in the order of `slots_of`."""
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
            # Records of a task come from one partition, so their offsets give the order of arrival.
            offset = f"CASE WHEN ({of}) IS NOT NULL THEN __offset END"
            found.append((next(names).column, f"reverse(max_by({of}, {offset}, {aggregate.argument}))"))
        else:
            kind = _NUMBER_TYPE[aggregate.number]
            found.append((next(names).column, f"CAST({aggregate.fold.value}({of}) AS {kind})"))
    return found


def _partials_of_one(aggregates: tuple[Aggregate, ...]) -> list[tuple[str, str]]:
    """Return what `_partials` returns for a group of a single record."""
    found: list[tuple[str, str]] = []
    names = iter(slots_of(aggregates))
    for aggregate in aggregates:
        of = aggregate.expression
        one = "CAST(1 AS BIGINT)" if of is None else f"CAST(IF(({of}) IS NULL, 0, 1) AS BIGINT)"
        if aggregate.fold is Fold.COUNT:
            found.append((next(names).column, one))
        elif aggregate.fold is Fold.MEAN:
            found.append((next(names).column, f"CAST(({of}) AS DOUBLE)"))
            found.append((next(names).column, one))
        else:
            found.append((next(names).column, f"CAST(({of}) AS {_NUMBER_TYPE[aggregate.number]})"))
    return found


def _keyless_sql(subtopology: SubTopology, source: Source, view: str, max_timestamp_ahead_ms: int) -> str:
    """Return the SQL of the places of a source's records that lack a key which some node needs.

    It is an empty text if no node needs a key.
    """
    return " UNION ALL ".join(
        f"SELECT __p, __offset FROM ({_reaching_sql(subtopology, pipeline, view, max_timestamp_ahead_ms)}) "
        f"WHERE __status = {Status.NO_KEY}"
        for pipeline in subtopology.pipelines
        if subtopology.sources[pipeline.source] == source and needs_key(subtopology, pipeline)
    )


def dead_letter_places_sql(
    subtopology: SubTopology,
    source: Source,
    view: str,
    max_timestamp_ahead_ms: int,
    statuses: Collection[int] = DEAD_LETTERS,
) -> str:
    """Return the SQL of the places and reasons of the dead letters of a batch. `view` has only records of this source.

    `statuses` are those of `DEAD_LETTERS` that its partial results contain: what no record has is not looked for. A record
    without a key is a dead letter if it reaches a node that needs its key, and has a row for each pipeline with such a node.
    Columns: `reason STRING`, `Partial.PARTITION`, `Partial.RECORD_OFFSET`.
    """
    found: list[str] = []
    if Status.BAD in statuses:
        judged = judged_sql(source, view, max_timestamp_ahead_ms, ())
        found.append(f"SELECT __reason AS reason, {_PLACE} FROM ({judged}) WHERE __reason IS NOT NULL")
    if Status.NO_KEY in statuses and (keyless := _keyless_sql(subtopology, source, view, max_timestamp_ahead_ms)):
        found.append(f"SELECT '{NO_KEY}' AS reason, {_PLACE} FROM ({keyless})")
    return " UNION ALL ".join(found)


def times_sql(source: Source, number: int, view: str, max_timestamp_ahead_ms: int) -> str:
    """Return the SQL of the event time of each record of a source, which is null for dead letters.

    `number` is the number of the source. Columns: `TIME_COLUMNS`.
    """
    source_column, *_, time_column = TIME_COLUMNS
    judged = judged_sql(source, view, max_timestamp_ahead_ms, ())
    return (
        f"SELECT {number} AS {source_column}, {_PLACE}, "
        f"CASE WHEN __status = {Status.GOOD} THEN __ts END AS {time_column} FROM ({judged})"
    )
