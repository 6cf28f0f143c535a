"""Joins: the checks when they are written, and the nodes of the plan that they become."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemark.errors import InvalidTopology
from tidemark.topology.durations import Duration, duration_ms
from tidemark.topology.plan import (
    Column,
    JoinKind,
    StoreKind,
    StoreSpec,
    StreamStreamJoin,
    StreamTableJoin,
    TableTableJoin,
)
from tidemark.topology.stores import Materialized, key_value_store
from tidemark.topology.stream import Stream
from tidemark.topology.table import Table, as_row_table

_KINDS = {
    JoinKind.INNER: "KSTREAM-JOIN",
    JoinKind.LEFT: "KSTREAM-LEFTJOIN",
    JoinKind.OUTER: "KSTREAM-OUTERJOIN",
}


@dataclass(frozen=True)
class JoinTimes:
    """The times that a join of streams was given, as they were written; None means that one was left out."""

    within: Duration | None
    before: Duration | None
    after: Duration | None
    grace: Duration

    @property
    def written(self) -> dict[str, Duration]:
        """The arguments that were given, by name. No grace counts as not given."""
        given = {"within": self.within, "before": self.before, "after": self.after, "grace": self.grace or None}
        return {name: value for name, value in given.items() if value is not None}

    def reach_ms(self, node: str) -> tuple[int, int]:
        """Return how long before and after a left row its right partners may be. Raises `InvalidTopology`."""
        before = self.within if self.before is None else self.before
        after = self.within if self.after is None else self.after
        if before is None or after is None:
            raise InvalidTopology(
                f"{node}: two streams are joined in a window; give within='60s', or before= and after= where they differ"
            )
        if self.within is not None and self.before is not None and self.after is not None:
            raise InvalidTopology(f"{node}: within= has no effect beside before= and after=; remove it")
        return (
            duration_ms(before, f"{node}: {'within' if self.before is None else 'before'}"),
            duration_ms(after, f"{node}: {'within' if self.after is None else 'after'}"),
        )


def join_stream(left: Stream, right: Stream | Table, kind: JoinKind, times: JoinTimes, name: str | None) -> Stream:
    """Join a stream with a stream or with a table."""
    if isinstance(right, Stream):
        return _stream_stream(left, right, kind, times, name)
    node = left.draft.node_name(_KINDS[kind])
    if not isinstance(right, Table):
        raise InvalidTopology(
            f"{node}: {_shown(right)} is neither a stream nor a table; join the result of stream() or table()"
        )
    if kind is JoinKind.OUTER:
        raise InvalidTopology(
            f"{node}: {right.node} is a table, whose rows are not emitted without a stream record; use left_join()"
        )
    for argument in (*times.written, *(["name"] if name is not None else [])):
        raise InvalidTopology(f"{node}: a table has one row per key, so {argument}= has no meaning; remove it")
    table = as_row_table(right, left, node)
    _check(left, table, node)
    columns, has_key = _joined(left, table, node)
    left.enter(node)
    left.draft.add_node(
        StreamTableJoin(node, (left.node, table.node), columns, (), kind, table.store, left.columns, table.columns)
    )
    return replace(
        left, topics=left.topics | table.topics, node=node, columns=columns, source=None, steps=(), has_key=has_key
    )


def _stream_stream(left: Stream, right: Stream, kind: JoinKind, times: JoinTimes, name: str | None) -> Stream:
    draft = left.draft
    node = draft.node_name(_KINDS[kind])
    before_ms, after_ms = times.reach_ms(node)
    grace_ms = duration_ms(times.grace, f"{node}: grace")
    _check(left, right, node)
    columns, has_key = _joined(left, right, node)
    left.enter(node)
    right.enter(node)
    # As in Kafka Streams' JoinWindows: the window's size plus the grace.
    retention_ms = before_ms + after_ms + grace_ms
    if not retention_ms:
        # A store returns nothing older than its retention, not even rows of the newest time if the retention is 0.
        raise InvalidTopology(
            f"{node}: {', '.join(f'{name}={given!r}' for name, given in times.written.items())} without grace keeps no row, so "
            "nothing would be joined; give within='1ms', or a grace to join rows of equal timestamps only"
        )
    label = name or node
    stores = [
        StoreSpec(
            draft.store_name(f"{label}-{side}-store", node, "name="),
            StoreKind.WINDOW,
            retention_ms,
            max(retention_ms // 2, 60_000),
            columns=given.columns,
        )
        for side, given in (("this", left), ("other", right))
    ]
    if kind is not JoinKind.INNER:
        outer = draft.store_name(f"{label}-outer-store", node)
        stores.append(key_value_store(Materialized(outer), outer, node, columns))
    draft.add_node(
        StreamStreamJoin(
            node,
            (left.node, right.node),
            columns,
            tuple(stores),
            kind,
            before_ms,
            after_ms,
            grace_ms,
            left.columns,
            right.columns,
        )
    )
    return replace(
        left,
        topics=left.topics | right.topics,
        node=node,
        columns=columns,
        source=None,
        steps=(),
        window=None,
        window_columns=frozenset(),
        has_key=has_key,
    )


def join_tables(left: Table, right: Table, kind: JoinKind) -> Table:
    """Join two tables by key."""
    draft = left.draft
    node = draft.node_name("KTABLE-JOINTHIS")
    if not isinstance(right, Table):
        raise InvalidTopology(f"{node}: {_shown(right)} is not a table; a stream becomes one with to_table()")
    one, other = as_row_table(left, right, node), as_row_table(right, left, node)
    _check(one, other, node)
    columns, has_key = _joined(one, other, node)
    draft.add_node(
        TableTableJoin(
            node, (one.node, other.node), columns, (), kind, one.store, other.store, one.columns, other.columns
        ),
        is_end=True,
    )
    joined = StoreSpec(f"{node}-virtual", StoreKind.KEY_VALUE, None, None)
    return Table(draft, one.topics | other.topics, node, columns, one.key_name, one.key_type, joined, has_key=has_key)


def _shown(given: object) -> str:
    """Describe an invalid argument briefly, because a handle holds the whole topology."""
    node = getattr(given, "node", None)
    if isinstance(node, str):
        return f"{type(given).__name__} {node}"
    return type(given).__name__ if hasattr(given, "__dict__") else repr(given)


def _check(left: Stream | Table, right: Stream | Table, node: str) -> None:
    """Check application and key type of both sides, and let the same tasks read both from now on."""
    for side in (left, right):
        if isinstance(side, Stream):
            side.check_key(node)
    if left.draft is not right.draft:
        raise InvalidTopology(f"{node}: the two sides belong to two applications; join inside one Topology")
    if left.node == right.node:
        raise InvalidTopology(
            f"{node}: {left.node} is joined with itself; put a select() on one side, or join another source"
        )
    if left.key_type != right.key_type:
        raise InvalidTopology(
            f"{node}: the key of {left.node} is {left.key_type}, of {right.node} {right.key_type}, so equal keys may not "
            f"meet; read both with one type, or repartition('CAST({right.key_name} AS {left.key_type})') one stream"
        )
    left.draft.tie(left.topics | right.topics)


def _joined(left: Stream | Table, right: Stream | Table, node: str) -> tuple[tuple[Column, ...], bool]:
    """Return the columns of both sides, with the key's column once if it has the same name on both, and `has_key`."""
    names = {column.name.casefold() for column in left.columns}
    key = left.key_name.casefold()
    right_has_key = right.has_key and right.key_name.casefold() == key
    added: list[Column] = []
    for column in right.columns:
        if column.name.casefold() not in names:
            added.append(column)
        elif column.name.casefold() != key or not (left.has_key and right_has_key):
            raise InvalidTopology(
                f"{node}: both sides have a column '{column.name}', which is not the key of both; rename one before, e.g. "
                f"select('{column.name} AS {column.name}_2'), or name it as key="
            )
    return (*left.columns, *added), left.has_key if key in names else right_has_key
