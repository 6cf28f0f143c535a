"""Streams, grouped streams and tables: the words in which a topology is written after `Topology.stream()`.

Every word returns a new handle, so a stream can be continued more than once: two aggregations of one stream are two
branches of one sub-topology.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemark.errors import InvalidTopology
from tidemark.topology.aggregates import aggregate_name, build_aggregate, parse_aggregate
from tidemark.topology.draft import AggregationDraft, BranchDraft, Draft, store_spec
from tidemark.topology.durations import Duration, duration_ms, format_ms
from tidemark.topology.plan import Aggregate, Column, Filter, Fold, Select, Sink, Source, Step
from tidemark.topology.schema import RESERVED
from tidemark.topology.sql import UNKNOWN, bare_column, expression_type, parse, quoted
from tidemark.topology.windows import Windows

DEFAULT_RETENTION = "1d"


@dataclass(frozen=True)
class Stream:
    """Records of one source after some stateless steps.

    `columns` are the record's fields; until a `select` expressions may also name `_key`, `_topic`, `_partition`,
    `_offset` and `_timestamp`.
    """

    draft: Draft
    source: Source
    node: str
    steps: tuple[Step, ...]
    columns: tuple[Column, ...]

    @property
    def available(self) -> tuple[Column, ...]:
        """What the next expression may name."""
        selected = any(isinstance(step, Select) for step in self.steps)
        return self.columns if selected else (*self.columns, *RESERVED)

    def filter(self, condition: str) -> Stream:
        """Keep the records for which the SQL condition is true. Raises `InvalidTopology`."""
        node = self.draft.node_name("KSTREAM-FILTER")
        found = expression_type(condition, self.available, f"{node}: filter condition")
        if found not in ("BOOLEAN", UNKNOWN):
            raise InvalidTopology(
                f"{node}: filter condition: {quoted(condition)} is {found}, not BOOLEAN; compare it with something"
            )
        return self._then(Filter(node, condition.strip()), self.columns)

    def select(self, *columns: str, **named: str) -> Stream:
        """Replace the columns by `"expr AS name"`, plain column names, or `name="expr"`; key and timestamp stay.

        Raises `InvalidTopology`.
        """
        node = self.draft.node_name("KSTREAM-MAPVALUES")
        pairs = [_named(text, self.available, f"{node}: select") for text in columns]
        pairs += [(aggregate_name(name, f"{node}: select"), text) for name, text in named.items()]
        if not pairs:
            raise InvalidTopology(f"{node}: select() names no column; name one or leave the select out")
        selected: dict[str, Column] = {}
        for name, text in pairs:
            if name.casefold() in selected:
                raise InvalidTopology(f"{node}: select: column '{name}' stands twice; rename one")
            if name.casefold() in {reserved.name for reserved in RESERVED}:
                raise InvalidTopology(
                    f"{node}: select: '{name}' is reserved for the record's own; write '{name} AS another_name'"
                )
            found = expression_type(text, self.available, f"{node}: select {name}")
            if found in (UNKNOWN, "NULL"):
                raise InvalidTopology(
                    f"{node}: select {name}: the type of {quoted(text)} cannot be told before it runs; "
                    f"cast it explicitly, e.g. CAST({text.strip()} AS STRING)"
                )
            selected[name.casefold()] = Column(name, found)
        step = Select(node, tuple((name, text.strip()) for name, text in pairs))
        return self._then(step, tuple(selected.values()))

    def group_by_key(self) -> GroupedStream:
        """Group by the key that `stream(key=...)` names; what follows is stateful."""
        return GroupedStream(self, None)

    def to(self, topic: str) -> Stream:
        """Write each record as JSON to a topic, under its key. Raises `InvalidTopology`."""
        sink = Sink(node := self.draft.node_name("KSTREAM-SINK"), self.draft.topic(topic, f"{node}: to()"))
        for branch in self.draft.branches:
            if branch.aggregation is None and branch.end == self.node:
                branch.sinks.append(sink)
                return self
        self.draft.dead_ends.pop(self.node, None)
        self.draft.branches.append(BranchDraft(self.source, self.node, self.steps, self.columns, None, [sink]))
        return self

    def _then(self, step: Step, columns: tuple[Column, ...]) -> Stream:
        self.draft.dead_ends.pop(self.node, None)
        self.draft.dead_ends[step.node] = self.source.topic
        return Stream(self.draft, self.source, step.node, (*self.steps, step), columns)


@dataclass(frozen=True)
class GroupedStream:
    """A stream grouped by its key, in windows or not. Each aggregation makes one store."""

    stream: Stream
    windows: Windows | None

    def windowed_by(self, windows: Windows) -> GroupedStream:
        """Aggregate per key and window: `tumbling(size)` or `hopping(size, advance)`, with `.grace()`."""
        if self.windows is not None:
            raise InvalidTopology(f"{self.stream.node}: windowed_by() stands twice; give the windows once")
        if not isinstance(windows, Windows):
            raise InvalidTopology(
                f"{self.stream.node}: windowed_by({windows!r}): give tumbling('60s') or hopping('60s', '10s')"
            )
        return GroupedStream(self.stream, windows)

    def count(
        self,
        expression: str | None = None,
        *,
        name: str = "count",
        store: str | None = None,
        retention: Duration | None = None,
    ) -> Table:
        """Count the records, or those whose `expression` is not null. Raises `InvalidTopology`."""
        return self._one(Fold.COUNT, expression, name, store, retention)

    def sum(
        self, expression: str, *, name: str = "sum", store: str | None = None, retention: Duration | None = None
    ) -> Table:
        """Add up an expression; null values do not count. Raises `InvalidTopology`."""
        return self._one(Fold.SUM, expression, name, store, retention)

    def min(
        self, expression: str, *, name: str = "min", store: str | None = None, retention: Duration | None = None
    ) -> Table:
        """The smallest value of an expression. Raises `InvalidTopology`."""
        return self._one(Fold.MIN, expression, name, store, retention)

    def max(
        self, expression: str, *, name: str = "max", store: str | None = None, retention: Duration | None = None
    ) -> Table:
        """The largest value of an expression. Raises `InvalidTopology`."""
        return self._one(Fold.MAX, expression, name, store, retention)

    def mean(
        self, expression: str, *, name: str = "mean", store: str | None = None, retention: Duration | None = None
    ) -> Table:
        """The mean of an expression, kept as sum and count. Raises `InvalidTopology`."""
        return self._one(Fold.MEAN, expression, name, store, retention)

    def aggregate(self, *, store: str | None = None, retention: Duration | None = None, **aggregates: str) -> Table:
        """Several results in one store: `aggregate(pulses="count(*)", slowest="max(ibi_ms)")`.

        Raises `InvalidTopology`.
        """
        node, store = self._names(store)
        built = tuple(
            parse_aggregate(aggregate_name(name, node), text, self.stream.available, f"{node}: {name}")
            for name, text in aggregates.items()
        )
        return self._add(node, store, retention, built)

    def _one(
        self, fold: Fold, expression: str | None, name: str, store: str | None, retention: Duration | None
    ) -> Table:
        node, store = self._names(store)
        where = f"{node}: {fold.value}()"
        built = build_aggregate(fold, aggregate_name(name, where), expression, self.stream.available, where)
        return self._add(node, store, retention, (built,))

    def _names(self, store: str | None) -> tuple[str, str]:
        draft = self.stream.draft
        chosen = draft.node_name("KSTREAM-AGGREGATE-STATE-STORE") if store is None else store
        node = draft.node_name("KSTREAM-AGGREGATE")
        return node, draft.store_name(chosen, node)

    def _add(self, node: str, store: str, retention: Duration | None, aggregates: tuple[Aggregate, ...]) -> Table:
        stream = self.stream
        if not aggregates:
            raise InvalidTopology(f"{node}: store '{store}' would hold nothing; name an aggregate, e.g. n='count(*)'")
        key_name = stream.draft.key_names[stream.source.topic]
        emitted = {key_name.casefold(): "the key"}
        emitted |= {"window_start": "the window", "window_end": "the window"} if self.windows else {}
        for built in aggregates:
            if built.name.casefold() in emitted:
                raise InvalidTopology(
                    f"{node}: '{built.name}' is the name of {emitted[built.name.casefold()]} in the emitted record; "
                    f"give the aggregate another name"
                )
            emitted[built.name.casefold()] = "another aggregate"
        window = self.windows.plan() if self.windows else None
        spec = store_spec(store, window, self._retention_ms(node, retention))
        draft = AggregationDraft(node, spec, window, key_name, aggregates)
        stream.draft.dead_ends.pop(stream.node, None)
        stream.draft.branches.append(BranchDraft(stream.source, stream.node, stream.steps, stream.columns, draft))
        return Table(stream.draft, draft)

    def _retention_ms(self, node: str, retention: Duration | None) -> int | None:
        if self.windows is None:
            if retention is not None:
                raise InvalidTopology(
                    f"{node}: retention is for windows, and this store keeps every key; remove it or use windowed_by()"
                )
            return None
        kept_ms = duration_ms(DEFAULT_RETENTION if retention is None else retention, f"{node}: retention")
        least_ms = self.windows.size_ms + self.windows.grace_ms
        if kept_ms <= least_ms:
            source = f"the default retention {DEFAULT_RETENTION}" if retention is None else f"retention {retention}"
            raise InvalidTopology(
                f"{node}: {source} is not more than window size + grace ({format_ms(least_ms)}), so open windows "
                f"would be dropped; set retention above {format_ms(least_ms)}"
            )
        return kept_ms


@dataclass(frozen=True)
class Table:
    """The results of an aggregation: each commit emits the updated ones."""

    draft: Draft
    aggregation: AggregationDraft

    def to(self, topic: str) -> Table:
        """Write each updated result as JSON to a topic, under its key. Raises `InvalidTopology`."""
        node = self.draft.node_name("KSTREAM-SINK")
        self.aggregation.sinks.append(Sink(node, self.draft.topic(topic, f"{node}: to()")))
        return self


def _named(text: str, columns: tuple[Column, ...], where: str) -> tuple[str, str]:
    """Split `expr AS name`; a bare column is its own name."""
    from sqlglot import exp

    tree = parse(text, where)
    if isinstance(tree, exp.Alias):
        alias = re.search(r"(?is)^(.*?)(?:\s+as)?\s+`?" + re.escape(tree.alias) + r"`?\s*$", text)
        if alias:
            return aggregate_name(tree.alias, where), alias[1]
    if isinstance(tree, exp.Column):
        found = bare_column(tree.name, columns)
        return (found.name if found else tree.name), text
    raise InvalidTopology(f"{where}: {quoted(text)} has no name; write '{text.strip()} AS name' or name=...")
