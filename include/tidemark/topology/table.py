"""Tables: the last value of each key, or of each key and window. Every commit emits what has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemark.errors import InvalidTopology
from tidemark.topology.draft import Draft
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.plan import (
    Column,
    Expected,
    JoinKind,
    StoreKind,
    StoreSpec,
    Suppress,
    TableSource,
    WhenFull,
    Window,
)
from tidemark.topology.stores import AnyWindow, Materialized, key_value_store, materialized, with_order
from tidemark.topology.stream import Stream
from tidemark.topology.value_serde import ValueSerde


@dataclass(frozen=True)
class UntilWindowCloses:
    """Emits a window's result once, when no record can change it any more. A bound of the buffer is None if there is none."""

    max_records: int | None = None
    max_bytes: int | None = None
    when_full: WhenFull = WhenFull.SHUT_DOWN


def until_window_closes(
    *,
    max_records: int | None = None,
    max_bytes: int | None = None,
    when_full: str = WhenFull.SHUT_DOWN.value,
) -> UntilWindowCloses:
    """Argument of `Table.suppress`. `when_full`: `shut_down_when_full` or `emit_early_when_full`. Raises `InvalidTopology`."""
    known = {member.value: member for member in WhenFull}
    if not isinstance(when_full, str) or when_full not in known:
        raise InvalidTopology(f"until_window_closes: when_full={when_full!r} is unknown; use {' or '.join(known)}")
    for name, bound in (("max_records", max_records), ("max_bytes", max_bytes)):
        if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 1):
            raise InvalidTopology(f"until_window_closes: {name}={bound!r}; use a number above 0, or leave it out")
    if known[when_full] is WhenFull.EMIT_EARLY and max_records is None and max_bytes is None:
        raise InvalidTopology(
            "until_window_closes: emit_early_when_full has no bound at which it is full; give max_records or max_bytes"
        )
    return UntilWindowCloses(max_records, max_bytes, known[when_full])


@dataclass(frozen=True)
class Table:
    """Results per key, or per key and window. `store` is the store that keeps them."""

    draft: Draft
    topics: frozenset[str]
    node: str
    columns: tuple[Column, ...]
    key_name: str
    key_type: str
    store: StoreSpec
    window: AnyWindow | None = None
    is_final: bool = False
    has_key: bool = True
    """As in `Stream`."""

    def to(
        self,
        topic: str,
        *,
        partitioner: str | None = None,
        expects: Sequence[Expected] = (),
        windowed_key: bool = False,
        key_serde: str = KeySerde.STRING.value,
        value_serde: str = ValueSerde.JSON.value,
    ) -> Table:
        """Write each updated result to a topic, as JSON or Avro, under its key, and a deleted one as a tombstone.

        `partitioner`, `expects`, `windowed_key`, `key_serde` and `value_serde` are as in `Stream.to`. Raises `InvalidTopology`.
        """
        self.to_stream().to(
            topic,
            partitioner=partitioner,
            expects=expects,
            windowed_key=windowed_key,
            key_serde=key_serde,
            value_serde=value_serde,
        )
        return self

    def to_stream(self) -> Stream:
        """Return every update as a record."""
        return Stream(
            self.draft,
            self.topics,
            self.node,
            self.columns,
            self.key_name,
            self.key_type,
            window=self.window,
            window_columns=frozenset() if self.window is None else frozenset({"window_start", "window_end"}),
            has_key=self.has_key,
        )

    def suppress(self, until: UntilWindowCloses, *, store: str | Materialized | None = None) -> Table:
        """Hold back the results of a window until it closes, so that there is one final result per window and key.

        A session closes one gap plus its grace after its end. Raises `InvalidTopology` for a table without windows.
        """
        node = self.draft.node_name("KTABLE-SUPPRESS")
        if not isinstance(until, UntilWindowCloses):
            raise InvalidTopology(f"{node}: suppress({until!r}): give until_window_closes()")
        if self.window is None:
            raise InvalidTopology(
                f"{node}: {self.node} has no windows, so nothing ever closes; use windowed_by() before the aggregation"
            )
        if self.is_final:
            raise InvalidTopology(f"{node}: {self.node} already gives final results; remove one suppress()")
        kept = materialized(store)
        if kept.ttl is not None or kept.max_entries is not None:
            raise InvalidTopology(
                f"{node}: ttl and max_entries would lose windows that are still waiting; bound the buffer with "
                f"until_window_closes(max_records=...)"
            )
        name = self.draft.store_name(kept.name or f"{node}-STATE-STORE", node)
        spec = key_value_store(kept, name, node, self.columns)
        grace_ms = self.window.grace_ms
        # A session may still grow by a record that arrives one gap after its end.
        grace_ms += getattr(self.window, "gap_ms", 0)
        suppress = Suppress(
            node, (self.node,), self.columns, (spec,), grace_ms, until.max_records, until.max_bytes, until.when_full
        )
        self.draft.add_node(suppress, is_end=True)
        return replace(self, node=node, is_final=True)

    def join(self, other: Table) -> Table:
        """Join the rows of both tables by key, for keys that both have. Raises `InvalidTopology`."""
        from tidemark.topology.joins import join_tables

        return join_tables(self, other, JoinKind.INNER)

    def left_join(self, other: Table) -> Table:
        """Join this table's rows with the other's, with nulls for keys that it does not have. Raises `InvalidTopology`."""
        from tidemark.topology.joins import join_tables

        return join_tables(self, other, JoinKind.LEFT)

    def outer_join(self, other: Table) -> Table:
        """Join the rows of both tables, for keys that either has. Raises `InvalidTopology`."""
        from tidemark.topology.joins import join_tables

        return join_tables(self, other, JoinKind.OUTER)


def table_of(
    stream: Stream,
    store: str | Materialized | None,
    source_topic: str | None = None,
    kind: str = "KTABLE-SOURCE",
    *,
    is_view: bool = False,
) -> Table:
    """Keep the last record of each key as a table. `is_view` is as in `TableSource`."""
    kept = materialized(store)
    draft = stream.draft
    node = draft.node_name(kind)
    name = draft.store_name(kept.name or draft.node_name(f"{kind}-STATE-STORE"), node)
    spec = key_value_store(kept, name, node, stream.columns, source_topic)
    stream.enter(node)
    stores = with_order(spec, draft, node)
    draft.add_node(TableSource(node, (stream.node,), stream.columns, stores, is_view), is_end=True)
    return Table(
        draft, stream.topics, node, stream.columns, stream.key_name, stream.key_type, spec, has_key=stream.has_key
    )


def as_row_table(table: Table, other: Stream | Table, where: str) -> Table:
    """Return one side of a join if its store holds rows, else a table of its rows in a store of their own.

    `other` is the other side. Raises `InvalidTopology`.
    """
    if table.window is not None:
        raise InvalidTopology(
            f"{where}: {table.node} has windows, but tables are joined by key alone; {_how_to_join_windows(table, other)}"
        )
    if table.store.kind is StoreKind.KEY_VALUE and table.store.columns == table.columns:
        return table
    return table_of(table.to_stream(), None, kind="KTABLE-MATERIALIZED", is_view=True)


def _how_to_join_windows(table: Table, other: Stream | Table) -> str:
    if not isinstance(table.window, Window):
        return (
            "sessions and sliding windows of two streams begin at different times: write both streams to one topic, read it, "
            "and aggregate it once"
        )
    key = table.key_name if table.key_type == "STRING" else f"CAST({table.key_name} AS STRING)"
    with_window = f"concat({key}, '|', CAST(window_start AS STRING))"
    advice = (
        f'put the window into the keys of both sides: to_stream().repartition("{with_window}", name), then to_table() on the '
        "right"
    )
    if other.window is None:
        advice += (
            f"; {other.node} has no windows, so it needs a column with the start of the window that it is joined with"
        )
    return advice
