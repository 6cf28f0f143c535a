"""The stores of a topology that can be queried, and what their bytes mean.

A store whose contents only its operator understands (the buffer of a suppress, the sides of a join, the order in which keys
expire) cannot be queried, as in Kafka Streams. Neither can a store that the topology marks `private`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidemark.queries.answer_form import KEY, WINDOW_END, WINDOW_START, Results, one_array
from tidemark.queries.errors import StorePrivate, StoreUnknown
from tidemark.registry.store_roles import ORDER, PROCESS, role_of
from tidemark.stores.layout import ValueLayout, split_window_key
from tidemark.stores.session_keys import split_session_key
from tidemark.tasks.fold import result_columns
from tidemark.tasks.rows import decode_rows
from tidemark.tasks.values import value_layouts
from tidemark.topology.plan import (
    Aggregate,
    Process,
    Reduce,
    SlidingWindow,
    StoreKind,
    StoreSpec,
    SubTopology,
    TableSource,
    TaskNode,
    TopologyPlan,
    Window,
)

Item = tuple[bytes, bytes]
"""The key and the value of a store as it holds them."""


@dataclass(frozen=True)
class QueryableStore:
    """A store that can be queried.

    If `is_by_key`, the task that owns a key is that of the key's partition; the keys of a processor's own store may be in any
    task. `window_size_ms` is None if the windows have no size of their own, or if there are none.
    """

    subtopology: SubTopology
    spec: StoreSpec
    is_by_key: bool
    window_size_ms: int | None
    layout: ValueLayout | None
    aggregates: tuple[Aggregate, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of answers."""
        schema: pa.Schema = self.table([]).schema
        return schema

    def results(self, items: Sequence[Item]) -> Results:
        """Return the keys, windows and values of stored items. Raises `TaskCorrupted` for bytes of another layout."""
        return Results(self._keys([key for key, _ in items]), self._values([value for _, value in items]))

    def table(self, items: Sequence[Item]) -> pa.Table:
        """Return the same as a table."""
        return self.results(items).table()

    def key_table(self, keys: Sequence[bytes]) -> pa.Table:
        """Return stored keys as a table of keys and windows."""
        return Results(self._keys(keys), {}).key_table()

    def _keys(self, keys: Sequence[bytes]) -> dict[str, list[Any]]:
        if self.spec.kind is StoreKind.KEY_VALUE:
            return {KEY: list(keys)}
        parts: list[tuple[bytes, int, int | None]]
        if self.spec.kind is StoreKind.SESSION:
            parts = [*map(split_session_key, keys)]
        else:
            parts = [(key, start, self._end_of(start)) for key, start in map(split_window_key, keys)]
        columns = [list(column) for column in zip(*parts, strict=True)] or [[], [], []]
        return dict(zip((KEY, WINDOW_START, WINDOW_END), columns, strict=True))

    def _end_of(self, start_ms: int) -> int | None:
        return None if self.window_size_ms is None else start_ms + self.window_size_ms

    def _values(self, values: Sequence[bytes]) -> dict[str, pa.Array]:
        if self.layout is not None:
            return dict(result_columns(self.layout, self.aggregates, self.layout.decode(values)))
        rows = decode_rows(values, self.spec.columns).combine_chunks()
        return {name: one_array(rows.column(name)) for name in rows.column_names}


@dataclass(frozen=True)
class Catalog:
    """The stores of one application by name."""

    application_id: str
    stores: Mapping[str, QueryableStore]
    private: frozenset[str]
    internal: frozenset[str]

    @classmethod
    def of(cls, plan: TopologyPlan) -> Catalog:
        """Sort the stores of a plan into those that can be queried, private ones, and those only operators understand."""
        found = {store.spec.name: store for s in plan.subtopologies for store in _readable(s)}
        private = frozenset(name for name, store in found.items() if store.spec.private)
        internal = frozenset(spec.name for spec in plan.stores) - found.keys()
        public = {name: store for name, store in sorted(found.items()) if name not in private}
        return cls(plan.application_id, public, private, internal)

    def store(self, name: str, may_read: Callable[[str], bool] = lambda _: True) -> QueryableStore:
        """Return a store. Raises `StorePrivate`, or `StoreUnknown`, which names the stores that the caller may read."""
        found = self.stores.get(name)
        if found is not None:
            return found
        if name in self.private:
            raise StorePrivate(
                f"store {name} of {self.application_id} is private: the topology does not let it be read",
                "ask the owner of the topology to remove private=True from the store",
            )
        known = ", ".join(filter(may_read, self.stores))
        remedy = f"query one of the stores {known}" if known else "ask with a token that may read a store that exists"
        if name in self.internal:
            raise StoreUnknown(
                f"store {name} of {self.application_id} belongs to an operator, which alone understands its contents",
                remedy,
            )
        raise StoreUnknown(f"{self.application_id} has no store {name}", remedy)


def _readable(subtopology: SubTopology) -> list[QueryableStore]:
    layouts = value_layouts(subtopology)
    found = [
        QueryableStore(subtopology, a.store, True, _size_ms(a.window), layouts[a.store.name], tuple(a.aggregates))
        for a in subtopology.aggregations
    ]
    for node in subtopology.nodes:
        for place, spec in enumerate(node.stores):
            role = role_of(node, place)
            if isinstance(node, Reduce | TableSource | Process) and role != ORDER and spec.columns:
                found.append(QueryableStore(subtopology, spec, role != PROCESS, _window_of(node), None, ()))
    return found


def _window_of(node: TaskNode) -> int | None:
    return _size_ms(node.window) if isinstance(node, Reduce) else None


def _size_ms(window: object) -> int | None:
    if isinstance(window, Window):
        return window.size_ms
    return window.difference_ms if isinstance(window, SlidingWindow) else None
