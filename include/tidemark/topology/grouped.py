"""Grouped streams: counting, summing and folding per key and window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import overload

from tidemark.errors import InvalidTopology
from tidemark.topology.aggregates import aggregate_name, build_aggregate, check_stored_fields, parse_aggregate
from tidemark.topology.draft import PipelineDraft, check_row_columns
from tidemark.topology.durations import Duration
from tidemark.topology.plan import Aggregate, Aggregation, Column, Fold, Number, Reduce, StoreSpec, TaskNode, Window
from tidemark.topology.schema import parse_schema
from tidemark.topology.stores import Materialized, import_path, key_value_store, materialized, window_store, with_order
from tidemark.topology.stream import Stream, checked_on_error
from tidemark.topology.table import Table
from tidemark.topology.windows import AnyWindows, SessionWindows, SlidingWindows, Windows

WINDOW_COLUMNS = (Column("window_start", "BIGINT"), Column("window_end", "BIGINT"))
_EMITTED_TYPE = {Number.LONG: "BIGINT", Number.DOUBLE: "DOUBLE", Number.TEXT: "STRING"}


@dataclass(frozen=True)
class GroupedStream:
    """A stream grouped by its key, with or without windows. Each aggregation creates one store."""

    stream: Stream
    windows: AnyWindows | None

    def windowed_by(self, windows: AnyWindows) -> GroupedStream:
        """Aggregate per key and window: `tumbling`, `hopping`, `session` or `sliding`, with `.grace()`."""
        if self.windows is not None:
            raise InvalidTopology(f"{self.stream.node}: windowed_by() occurs twice; give the windows once")
        if not isinstance(windows, Windows | SessionWindows | SlidingWindows):
            raise InvalidTopology(
                f"{self.stream.node}: windowed_by({windows!r}): give tumbling('60s') or hopping('60s', '10s'), "
                f"session('30s') or sliding('60s')"
            )
        return GroupedStream(self.stream, windows)

    def count(
        self,
        expression: str | None = None,
        *,
        name: str = "count",
        store: str | Materialized | None = None,
        retention: Duration | None = None,
    ) -> Table:
        """Count the records, or those whose `expression` is not null. Raises `InvalidTopology`."""
        return self._one(Fold.COUNT, expression, name, store, retention)

    def sum(
        self,
        expression: str,
        *,
        name: str = "sum",
        store: str | Materialized | None = None,
        retention: Duration | None = None,
    ) -> Table:
        """Sum an expression, ignoring null values. Raises `InvalidTopology`."""
        return self._one(Fold.SUM, expression, name, store, retention)

    def min(
        self,
        expression: str,
        *,
        name: str = "min",
        store: str | Materialized | None = None,
        retention: Duration | None = None,
    ) -> Table:
        """Keep the smallest value of an expression. Raises `InvalidTopology`."""
        return self._one(Fold.MIN, expression, name, store, retention)

    def max(
        self,
        expression: str,
        *,
        name: str = "max",
        store: str | Materialized | None = None,
        retention: Duration | None = None,
    ) -> Table:
        """Keep the largest value of an expression. Raises `InvalidTopology`."""
        return self._one(Fold.MAX, expression, name, store, retention)

    def mean(
        self,
        expression: str,
        *,
        name: str = "mean",
        store: str | Materialized | None = None,
        retention: Duration | None = None,
    ) -> Table:
        """Compute the mean of an expression, stored as sum and count. Raises `InvalidTopology`."""
        return self._one(Fold.MEAN, expression, name, store, retention)

    def distinct(
        self,
        expression: str,
        *,
        name: str = "distinct",
        store: str | Materialized | None = None,
        retention: Duration | None = None,
    ) -> Table:
        """Count the different values of an expression approximately, as BIGINT with 1.6 % standard error.

        Null values, empty texts and empty bytes are ignored. Raises `InvalidTopology`.
        """
        return self._one(Fold.DISTINCT, expression, name, store, retention)

    def quantile(
        self,
        expression: str,
        rank: float,
        *,
        name: str = "quantile",
        store: str | Materialized | None = None,
        retention: Duration | None = None,
    ) -> Table:
        """Estimate the value that a share `rank` (0 to 1) of the values do not exceed, as DOUBLE.

        The rank of the result is within 0.007 of `rank`; with up to 400 values it is exact. Raises `InvalidTopology`.
        """
        return self._one(Fold.QUANTILE, expression, name, store, retention, rank)

    def collect(
        self,
        expression: str,
        limit: int,
        *,
        name: str = "collect",
        store: str | Materialized | None = None,
        retention: Duration | None = None,
    ) -> Table:
        """Keep the newest `limit` values of an expression as a JSON array in a STRING, in order of arrival, oldest first.

        Null values are ignored. Raises `InvalidTopology`.
        """
        return self._one(Fold.COLLECT, expression, name, store, retention, limit)

    @overload
    def aggregate(
        self,
        *,
        initializer: str,
        aggregator: str,
        emits: str,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        on_error: str = "dead_letter",
    ) -> Table: ...

    @overload
    def aggregate(
        self, *, store: str | Materialized | None = None, retention: Duration | None = None, **aggregates: str
    ) -> Table: ...

    def aggregate(
        self,
        *,
        initializer: str | None = None,
        aggregator: str | None = None,
        emits: str | None = None,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        on_error: str | None = None,
        **aggregates: str,
    ) -> Table:
        """Aggregate a key's records by SQL, with several results in one store, or by your own Python functions.

        By SQL: `aggregate(pulses="count(*)", p99="quantile(ibi_ms, 0.99)")`.

        By Python: `aggregator(key, row, aggregate) -> aggregate` is called for each record, starting with `initializer()`. Both
        are import paths; aggregates are dictionaries with the columns of `emits`. This is slower than SQL. `on_error` is as in
        `reduce`.

        Raises `InvalidTopology`.
        """
        if initializer is None and aggregator is None and emits is None and on_error is None:
            return self._aggregate_by_sql(store, retention, aggregates)
        if initializer is None or aggregator is None or emits is None:
            raise InvalidTopology(
                f"{self.stream.node}: aggregate() by Python functions needs initializer=, aggregator= and emits=; give all "
                "three, or, if one of them or on_error= is meant as the name of an SQL aggregate, choose another name"
            )
        if aggregates:
            raise InvalidTopology(
                f"{self.stream.node}: aggregate() has Python functions and the SQL aggregates {', '.join(aggregates)}; "
                "use one aggregate() for each of the two, with stores of their own"
            )
        return self._fold(
            aggregator, initializer, emits, store, retention, "dead_letter" if on_error is None else on_error
        )

    def reduce(
        self,
        function: str,
        *,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        on_error: str = "dead_letter",
    ) -> Table:
        """Fold a key's records into one by your own Python function `(old, new) -> row`, given by import path.

        Rows are dictionaries with the stream's columns. The function runs for each record, so this is slower than SQL
        aggregates. `on_error`: a record for which it raises becomes a dead letter; with `fail` the instance ends. Raises
        `InvalidTopology`.
        """
        return self._fold(function, None, None, store, retention, on_error)

    def _aggregate_by_sql(
        self, store: str | Materialized | None, retention: Duration | None, aggregates: Mapping[str, str]
    ) -> Table:
        node, name = self._names(store, "KSTREAM-AGGREGATE")
        built = tuple(
            parse_aggregate(aggregate_name(field, node), text, self.stream.available, f"{node}: {field}")
            for field, text in aggregates.items()
        )
        return self._add(node, name, materialized(store), retention, built)

    def _fold(
        self,
        function: str,
        initializer: str | None,
        emits: str | None,
        store: str | Materialized | None,
        retention: Duration | None,
        on_error: str,
    ) -> Table:
        stream, kept = self.stream, materialized(store)
        node, name = self._names(store, "KSTREAM-REDUCE" if initializer is None else "KSTREAM-AGGREGATE")
        path = import_path(function, f"{node}: {'function' if initializer is None else 'aggregator'}")
        start = None if initializer is None else import_path(initializer, f"{node}: initializer")
        columns = stream.columns if initializer is None else parse_schema(emits or "", f"{node}: emits")
        check_row_columns(columns, node, are_declared=initializer is not None)
        window = None if self.windows is None else self.windows.plan()
        if window is not None and not isinstance(window, Window):
            raise InvalidTopology(
                f"{node}: Python functions aggregate only without windows or in tumbling and hopping windows; use one of these"
            )
        self._refuse_key_named_like_a_window(node)
        taken = {column.name for column in WINDOW_COLUMNS} if window else set[str]()
        for column in columns:
            if column.name.casefold() == stream.key_name.casefold() and (initializer is not None or not stream.has_key):
                remedy = (
                    f"rename it before with select(), e.g. '{column.name} AS {column.name}_2', or name it as key="
                    if initializer is None
                    else f"give it another name in emits=, e.g. {column.name}_2"
                )
                raise InvalidTopology(
                    f"{node}: '{column.name}' is the name of the key in the emitted record, where the key would replace the "
                    f"column; {remedy}"
                )
            if column.name.casefold() in taken:
                raise InvalidTopology(
                    f"{node}: '{column.name}' is a column of the window in the emitted record; give the column another name"
                )
        spec = self._store(node, name, kept, retention, columns)
        emitted = _emitted(stream.key_name, columns, window is not None)
        stream.enter(node)
        handler = checked_on_error(on_error, node)
        kept_by = with_order(spec, stream.draft, node)
        reduce = Reduce(node, (stream.node,), emitted, kept_by, path, start, window, stream.key_name, handler)
        stream.draft.add_node(reduce, is_end=True)
        return self._table(reduce, spec)

    def _one(
        self,
        fold: Fold,
        expression: str | None,
        name: str,
        store: str | Materialized | None,
        retention: Duration | None,
        argument: float | int | None = None,
    ) -> Table:
        node, store_name = self._names(store, "KSTREAM-AGGREGATE")
        where = f"{node}: {fold.value}()"
        built = build_aggregate(fold, aggregate_name(name, where), expression, self.stream.available, where, argument)
        return self._add(node, store_name, materialized(store), retention, (built,))

    def _names(self, store: str | Materialized | None, kind: str) -> tuple[str, str]:
        draft = self.stream.draft
        wanted = materialized(store).name
        chosen = draft.node_name(f"{kind}-STATE-STORE") if wanted is None else wanted
        node = draft.node_name(kind)
        return node, draft.store_name(chosen, node)

    def _add(
        self,
        node: str,
        store: str,
        kept: Materialized,
        retention: Duration | None,
        aggregates: tuple[Aggregate, ...],
    ) -> Table:
        stream = self.stream
        if stream.source is None:
            raise InvalidTopology(
                f"{node}: {stream.node} comes after a stateful node, but SQL aggregates run before those, in Spark; "
                f"go through a topic with repartition('{stream.key_name}'), or use aggregate() with initializer= and "
                "aggregator="
            )
        if not aggregates:
            raise InvalidTopology(f"{node}: store '{store}' would hold nothing; name an aggregate, e.g. n='count(*)'")
        check_stored_fields(aggregates, node)
        if self.windows is None and (kept.ttl is not None or kept.max_entries is not None):
            raise InvalidTopology(
                f"{node}: ttl and max_entries need a store of rows; use to_table(), aggregate() with initializer= and "
                "aggregator=, or a processor's store"
            )
        self._refuse_key_named_like_a_window(node)
        emitted = {stream.key_name.casefold(): "the key"}
        emitted |= {"window_start": "the window", "window_end": "the window"} if self.windows else {}
        for built in aggregates:
            if built.name.casefold() in emitted:
                raise InvalidTopology(
                    f"{node}: '{built.name}' is the name of {emitted[built.name.casefold()]} in the emitted record; "
                    f"give the aggregate another name"
                )
            emitted[built.name.casefold()] = "another aggregate"
        window = self.windows.plan() if self.windows else None
        spec = self._store(node, store, kept, retention, ())
        values = tuple(Column(a.name, _EMITTED_TYPE[a.number]) for a in aggregates)
        columns = _emitted(stream.key_name, values, window is not None)
        aggregation = Aggregation(node, spec, window, stream.key_name, aggregates, columns)
        stream.draft.dead_ends.pop(stream.node, None)
        (topic,) = stream.topics
        stream.draft.pipelines.append(PipelineDraft(topic, stream.node, stream.steps, stream.columns, aggregation))
        return self._table(aggregation, spec)

    def _refuse_key_named_like_a_window(self, node: str) -> None:
        key = self.stream.key_name
        if self.windows is not None and key.casefold() in {column.name for column in WINDOW_COLUMNS}:
            raise InvalidTopology(
                f"{node}: the key is named '{key}', as is a column of the window in the emitted record; "
                f"select it under another name before repartition()"
            )

    def _store(
        self,
        node: str,
        name: str,
        kept: Materialized,
        retention: Duration | None,
        columns: tuple[Column, ...],
    ) -> StoreSpec:
        if self.windows is None:
            if retention is not None:
                raise InvalidTopology(
                    f"{node}: retention is for windows, but this store keeps every key; remove it or use windowed_by()"
                )
            return key_value_store(kept, name, node, columns)
        spec = window_store(kept, name, node, self.windows.plan(), retention)
        return spec if not columns else StoreSpec(**{**vars(spec), "columns": columns})

    def _table(self, node: Aggregation | TaskNode, spec: StoreSpec) -> Table:
        stream = self.stream
        windowed = self.windows.plan() if self.windows else None
        return Table(
            stream.draft, stream.topics, node.node, node.columns, stream.key_name, stream.key_type, spec, windowed
        )


def _emitted(key_name: str, values: tuple[Column, ...], windowed: bool) -> tuple[Column, ...]:
    """Return the emitted columns: key, window, values. The key occurs once, as text."""
    rest = tuple(column for column in values if column.name.casefold() != key_name.casefold())
    return (Column(key_name, "STRING"), *(WINDOW_COLUMNS if windowed else ()), *rest)
