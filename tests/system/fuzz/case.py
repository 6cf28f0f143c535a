"""A case: a topology, and the records that go through it with the commits, restarts and losses between them.

It is plain data, so that it can be drawn, shrunk, sent to Java and printed. `built` makes Tidemark's `Topology` of it,
`as_json` what `FuzzServer.java` reads, `as_test` a test to paste.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any

from tests.system.fuzz.expressions import Expression

from tidemark.topology.builder import Topology
from tidemark.topology.plan import TopologyPlan
from tidemark.topology.stores import Materialized, store
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import AnyWindows, hopping, session, sliding

APPLICATION_ID = "fuzz"
RETENTION_MS = 86_400_000
FUNCTIONS = "tests.system.fuzz.functions"

_INPUTS = ("input", "left", "right")

Row = Mapping[str, Any]


class After(Enum):
    """What follows a record."""

    NOTHING = "nothing"
    COMMIT = "commit"
    RESTART = "restart"
    LOSE_STATE = "lose_state"


@dataclass(frozen=True)
class Record:
    """One record of an input topic; `row` None is a null value. `after` comes once it was taken."""

    topic: str
    key: str | None
    row: Row | None
    timestamp: int
    after: After = After.NOTHING


@dataclass(frozen=True)
class Node:
    """A step of the topology. Fields named `input`, `left` and `right` are places in the case's nodes."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """The places of the nodes that it reads."""
        return tuple(getattr(self, field.name) for field in fields(self) if field.name in _INPUTS)


@dataclass(frozen=True)
class StreamNode(Node):
    """Reads a topic of rows with these BIGINT columns."""

    topic: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class TableNode(Node):
    """Reads a topic as a table."""

    topic: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class FilterNode(Node):
    input: int
    where: Expression


@dataclass(frozen=True)
class SelectNode(Node):
    input: int
    columns: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True)
class RekeyNode(Node):
    """A repartition by another key, which is text, or by the keys that a processor forwarded."""

    input: int
    key: Expression | None


@dataclass(frozen=True)
class ToTableNode(Node):
    input: int


@dataclass(frozen=True)
class ToStreamNode(Node):
    input: int


@dataclass(frozen=True)
class WindowOf:
    """`kind`: `tumbling` or `hopping` with an advance, `session` with its gap as size, `sliding` with its difference."""

    kind: str
    size: int
    advance: int
    grace: int
    retention: int = RETENTION_MS

    @property
    def windows(self) -> AnyWindows:
        """As a topology writes it."""
        if self.kind == "session":
            return session(self.size).grace(self.grace)
        if self.kind == "sliding":
            return sliding(self.size).grace(self.grace)
        return hopping(self.size, self.advance).grace(self.grace)

    @property
    def json(self) -> dict[str, Any]:
        """As Java reads it."""
        return dict(vars(self))


@dataclass(frozen=True)
class AggregateNode(Node):
    """SQL aggregates: (name, fold, expression)."""

    input: int
    window: WindowOf | None
    aggregates: tuple[tuple[str, str, Expression | None], ...]


@dataclass(frozen=True)
class FoldNode(Node):
    """A Python function of `functions`: `reduce` by two rows, or `fold` with a start."""

    input: int
    window: WindowOf | None
    function: str
    is_reduce: bool


@dataclass(frozen=True)
class SuppressNode(Node):
    input: int


@dataclass(frozen=True)
class JoinNode(Node):
    """Of two streams (`within` and `grace` in ms), a stream and a table, or two tables.

    `before` and `after`, in ms, replace `within` on one side each.
    """

    left: int
    right: int
    kind: str
    within: int = 0
    grace: int = 0
    before: int | None = None
    after: int | None = None

    @property
    def times(self) -> dict[str, int]:
        """The time arguments of `join`, without those that are left out."""
        names = ("before", "after") if None not in (self.before, self.after) else ("within", "before", "after")
        given = {name: getattr(self, name) for name in names}
        return {**{name: value for name, value in given.items() if value is not None}, "grace": self.grace}

    @property
    def reach(self) -> int:
        """How far apart in time the earliest and the latest partner of a record may be."""
        return sum(self.within if side is None else side for side in (self.before, self.after))


@dataclass(frozen=True)
class ProcessNode(Node):
    """A counter, or where `every` is not 0 a ticker by stream time."""

    input: int
    every: int


@dataclass(frozen=True)
class ToNode(Node):
    """Writes to the topic `out<place>`; `says_window`: the window is part of the records' keys."""

    input: int
    says_window: bool = False


@dataclass(frozen=True)
class Shape:
    """What a node gives to the next one."""

    kind: str
    columns: tuple[str, ...]
    key_name: str = "key"
    in_spark: bool = False
    """Whether the steps so far run in Spark, so that SQL aggregates can follow."""
    knows_key: bool = False
    """Whether expressions may name `_key`."""
    is_coalesced: bool = False
    """Whether it is, or follows from, an aggregation: one update per key, window and commit."""
    closes: bool = False
    """Whether something upstream acts when a batch ends: suppress, rows without a partner, punctuation."""
    is_rekeyed: bool = False
    """Whether records may lie under keys of other tasks, so that a repartition must come first."""
    sources: frozenset[int] = frozenset()
    """The places of the sources whose records lead to one here."""
    from_windows: bool = False
    """Whether it is a stream of results of windows, of which a record may lead to several."""
    window: WindowOf | None = None
    texts: tuple[str, ...] = ()
    """Columns that are STRING; all others are BIGINT or DOUBLE."""
    doubles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """`rocksdb`: the stores are on disk instead of in memory."""

    nodes: tuple[Node, ...]
    records: tuple[Record, ...]
    rocksdb: bool = False

    @cached_property
    def plan(self) -> TopologyPlan:
        """What Tidemark makes of it. Raises `InvalidTopology`."""
        return built(self).plan()

    @property
    def commits_each(self) -> bool:
        """Whether every record has its own commit: there nothing may differ."""
        return all(record.after is not After.NOTHING for record in self.records)

    @property
    def batches(self) -> list[list[Record]]:
        """The records between two commits."""
        found: list[list[Record]] = [[]]
        for record in self.records:
            found[-1].append(record)
            if record.after is not After.NOTHING:
                found.append([])
        return [batch for batch in found if batch]


def shapes(nodes: Sequence[Node]) -> list[Shape]:
    """What each node gives. Raises `ValueError` for what the language does not have."""
    found: list[Shape] = []
    for place, node in enumerate(nodes):
        found.append(_shape(place, node, found))
    return found


def _shape(place: int, node: Node, found: Sequence[Shape]) -> Shape:
    match node:
        case StreamNode():
            return Shape("stream", node.columns, in_spark=True, knows_key=True, sources=frozenset([place]))
        case TableNode():
            return Shape("table", node.columns, sources=frozenset([place]))
        case JoinNode():
            return _joined(node, found[node.left], found[node.right])
    (given,) = (found[i] for i in node.inputs)
    if given.kind not in _TAKEN.get(type(node), ("stream",)):
        raise ValueError(f"{node} cannot follow a {given.kind}")
    if isinstance(node, AggregateNode) and not given.in_spark:
        raise ValueError(f"{node} follows a stateful node")
    if isinstance(node, ToNode) and node.says_window and given.kind != "windowed":
        raise ValueError(f"{node} follows what has no window")
    if given.is_rekeyed and not isinstance(node, FilterNode | SelectNode | RekeyNode | ToNode):
        raise ValueError(f"{node} needs a repartition first")
    if isinstance(node, RekeyNode) and node.key is None and given.in_spark:
        raise ValueError(f"{node} names no key")
    changes: dict[str, Any] = {}
    match node:
        case SelectNode():
            changes = {"columns": tuple(name for name, _ in node.columns), "knows_key": False}
            changes["texts"] = tuple(name for name, expression in node.columns if is_text(expression, given))
            changes["doubles"] = tuple(name for name, expression in node.columns if is_double(expression, given))
        case RekeyNode():
            bare = node.key.parts[0] if node.key is not None and node.key.op == "col" else None
            changes = {
                "key_name": bare or "key",
                "in_spark": True,
                "knows_key": True,
                "window": None,
                "is_rekeyed": False,
            }
        case ToTableNode():
            changes = {"kind": "table", "in_spark": False, "knows_key": False, "window": None}
        case ToStreamNode():
            changes = {"kind": "stream", "in_spark": False, "knows_key": False, "window": None}
            changes["from_windows"] = given.from_windows or given.kind == "windowed"
        case AggregateNode() | FoldNode():
            return _aggregated(node, given)
        case SuppressNode():
            changes = {"closes": True}
        case ProcessNode():
            changes = {"columns": ("seen", "added"), "in_spark": False, "knows_key": False, "texts": (), "doubles": ()}
            changes["closes"] = given.closes or node.every != 0
            changes["is_rekeyed"] = node.every != 0
    return Shape(**{**vars(given), **changes})


_TAKEN: Mapping[type[Node], tuple[str, ...]] = {
    ToStreamNode: ("table", "windowed"),
    SuppressNode: ("windowed",),
    ToNode: ("stream", "table", "windowed"),
}
"""What a kind of node can follow, where that is not a stream."""


def _aggregated(node: AggregateNode | FoldNode, given: Shape) -> Shape:
    if isinstance(node, AggregateNode):
        values = tuple(name for name, _, _ in node.aggregates)
        doubles = tuple(name for name, fold, _ in node.aggregates if fold == "mean")
        texts: tuple[str, ...] = ()
    elif node.is_reduce:
        values, doubles, texts = given.columns, given.doubles, given.texts
    else:
        values, doubles, texts = ("folded", "last"), (), ()
    values = tuple(name for name in values if name != given.key_name)
    window = ("window_start", "window_end") if node.window else ()
    return Shape(
        "windowed" if node.window else "table",
        (given.key_name, *window, *values),
        given.key_name,
        is_coalesced=True,
        closes=given.closes,
        sources=given.sources,
        window=node.window,
        texts=(given.key_name, *(name for name in texts if name != given.key_name)),
        doubles=tuple(name for name in doubles if name != given.key_name),
    )


def _joined(node: JoinNode, left: Shape, right: Shape) -> Shape:
    added = [name for name in right.columns if name not in left.columns]
    for name in right.columns:
        if name in left.columns and not name == left.key_name == right.key_name:
            raise ValueError(f"both sides have {name}")
    is_of_streams = left.kind == right.kind == "stream"
    if (
        left.is_rekeyed
        or right.is_rekeyed
        or "windowed" in (left.kind, right.kind)
        or (left.kind, right.kind) == ("table", "stream")
    ):
        raise ValueError(f"{node} joins a {left.kind} and a {right.kind}")
    if is_of_streams != bool(node.within) or (node.kind == "outer" and left.kind != right.kind):
        raise ValueError(f"{node} joins a {left.kind} and a {right.kind}")
    return Shape(
        left.kind,
        (*left.columns, *added),
        left.key_name,
        is_coalesced=left.is_coalesced or right.is_coalesced,
        closes=left.closes or right.closes or (is_of_streams and node.kind != "inner"),
        # What comes from a stream's table comes by the stream's records.
        sources=left.sources if (left.kind, right.kind) == ("stream", "table") else left.sources | right.sources,
        from_windows=left.from_windows or right.from_windows,
        texts=tuple(dict.fromkeys((*left.texts, *right.texts))),
        doubles=(*left.doubles, *right.doubles),
    )


def is_text(expression: Expression, shape: Shape) -> bool:
    """Whether an expression gives STRING."""
    if expression.op == "coalesce":
        return any(is_text(part, shape) for part in expression.parts)
    if expression.op == "lit":
        return isinstance(expression.parts[0], str)
    return expression.op in ("str", "key") or (expression.op == "col" and expression.parts[0] in shape.texts)


def is_double(expression: Expression, shape: Shape) -> bool:
    """Whether an expression gives DOUBLE."""
    return expression.op == "col" and expression.parts[0] in shape.doubles


def pruned(case: Case, sinks: Collection[int]) -> Case:
    """Only what leads to these sinks, without the records of topics that nobody reads."""
    needed: set[int] = set()
    for place in reversed(range(len(case.nodes))):
        if place in needed or place in sinks:
            needed |= {place, *case.nodes[place].inputs}
    kept = sorted(needed)
    moved = {old: new for new, old in enumerate(kept)}
    nodes = tuple(
        replace(node, **{name: moved[getattr(node, name)] for name in _INPUTS if hasattr(node, name)})
        for node in (case.nodes[place] for place in kept)
    )
    topics = {node.topic for node in nodes if isinstance(node, StreamNode | TableNode)}
    return replace(case, nodes=nodes, records=tuple(r for r in case.records if r.topic in topics))


def without_late_in_batch(records: Sequence[Record], nodes: Sequence[Node]) -> list[Record]:
    """With a commit before and after each record that may be late or close a window: both are judged by batch."""
    graces = [node.window.grace for node in nodes if isinstance(node, AggregateNode | FoldNode) and node.window]
    graces += [node.grace for node in nodes if isinstance(node, JoinNode) and node.within]
    if not graces:
        return list(records)
    found: list[Record] = []
    newest = -1
    for record in records:
        if record.timestamp + min(graces) < newest:
            if found[-1].after is After.NOTHING:
                found[-1] = replace(found[-1], after=After.COMMIT)
            if record.after is After.NOTHING:
                record = replace(record, after=After.COMMIT)
        found.append(record)
        newest = max(newest, record.timestamp)
    return found


def store_name(place: int) -> str:
    """The store of a node."""
    return f"s{place}"


def sink_name(place: int) -> str:
    """The topic that a `ToNode` writes."""
    return f"out{place}"


def built(case: Case) -> Topology:
    """The topology. Raises `InvalidTopology`."""
    topology = Topology(APPLICATION_ID)
    handles: list[Any] = []
    for place, node in enumerate(case.nodes):
        handles.append(_built(topology, place, node, handles))
    return topology


def _built(topology: Topology, place: int, node: Node, handles: Sequence[Any]) -> Any:
    kept = Materialized(store_name(place))
    match node:
        case StreamNode():
            return topology.stream(node.topic, schema=_schema(node.columns))
        case TableNode():
            return topology.table(node.topic, schema=_schema(node.columns), store=kept)
        case FilterNode():
            return handles[node.input].filter(node.where.sql)
        case SelectNode():
            return handles[node.input].select(**{name: expression.sql for name, expression in node.columns})
        case RekeyNode():
            return handles[node.input].repartition(node.key and node.key.sql, name=f"r{place}")
        case ToTableNode():
            return handles[node.input].to_table(kept)
        case ToStreamNode():
            return handles[node.input].to_stream()
        case AggregateNode():
            texts = {name: f"{fold}({'*' if of is None else of.sql})" for name, fold, of in node.aggregates}
            return _grouped(handles[node.input], node.window).aggregate(
                store=kept, retention=node.window and node.window.retention, **texts
            )
        case FoldNode():
            grouped = _grouped(handles[node.input], node.window)
            retention = node.window and node.window.retention
            if node.is_reduce:
                return grouped.reduce(f"{FUNCTIONS}:{node.function}", store=kept, retention=retention)
            return grouped.aggregate(
                initializer=f"{FUNCTIONS}:start",
                aggregator=f"{FUNCTIONS}:{node.function}",
                emits="folded BIGINT, last BIGINT",
                store=kept,
                retention=retention,
            )
        case SuppressNode():
            return handles[node.input].suppress(until_window_closes(), store=kept)
        case JoinNode():
            return _join(place, node, handles[node.left], handles[node.right])
        case ProcessNode():
            name = f"Ticker_{place}_{node.every}" if node.every else f"Counter_{place}"
            return handles[node.input].process(
                f"{FUNCTIONS}:{name}",
                emits="seen BIGINT, added BIGINT",
                stores=[store(store_name(place), "seen BIGINT, added BIGINT")],
                keeps_key=not node.every,
            )
        case ToNode():
            return handles[node.input].to(sink_name(place), windowed_key=node.says_window)
    raise TypeError(f"no node {node}")


def _schema(columns: Sequence[str]) -> str:
    return ", ".join(f"{name} BIGINT" for name in columns)


def _grouped(handle: Any, window: WindowOf | None) -> Any:
    grouped = handle.group_by_key()
    return grouped if window is None else grouped.windowed_by(window.windows)


def _join(place: int, node: JoinNode, left: Any, right: Any) -> Any:
    method = {"inner": left.join, "left": left.left_join}.get(node.kind) or left.outer_join
    if not node.within:
        return method(right)
    return method(right, **node.times, name=f"j{place}")


def as_json(case: Case, records: Sequence[Record]) -> dict[str, Any]:
    """The case for Java, with the records in the order in which they are to be piped."""
    known = shapes(case.nodes)
    joined = {i for node in case.nodes if isinstance(node, JoinNode) for i in node.inputs}
    nodes = [_node_json(place, node, known) | {"is_joined": place in joined} for place, node in enumerate(case.nodes)]
    return {"nodes": nodes, "records": [[r.topic, r.key, r.row, r.timestamp] for r in records]}


def _node_json(place: int, node: Node, known: Sequence[Shape]) -> dict[str, Any]:
    kept: dict[str, Any] = {"store": store_name(place)}
    inputs = node.inputs
    if len(inputs) == 1:
        kept |= {"in": inputs[0], "key_name": known[inputs[0]].key_name}
    match node:
        case StreamNode():
            return {"op": "stream", "topic": node.topic}
        case TableNode():
            return {"op": "table", "topic": node.topic, **kept}
        case FilterNode():
            return {"op": "filter", "where": node.where.json, **kept}
        case SelectNode():
            return {"op": "select", "columns": [[name, of.json] for name, of in node.columns], **kept}
        case RekeyNode():
            return {"op": "rekey", "key": node.key and node.key.json, "name": f"r{place}", **kept}
        case ToTableNode():
            return {"op": "to_table", **kept}
        case ToStreamNode():
            return {"op": "to_stream", **kept}
        case AggregateNode():
            aggregates = [[name, fold, of and of.json] for name, fold, of in node.aggregates]
            return {"op": "aggregate", "aggregates": aggregates, "window": node.window and node.window.json, **kept}
        case FoldNode():
            op = "reduce" if node.is_reduce else "fold"
            return {"op": op, "function": node.function, "window": node.window and node.window.json, **kept}
        case SuppressNode():
            return {"op": "suppress", **kept}
        case JoinNode():
            columns = {"left_columns": known[node.left].columns, "right_columns": known[node.right].columns}
            return {"op": "join", **vars(node), **columns, "name": f"j{place}"}
        case ProcessNode():
            return {"op": "process", "every": node.every, **kept}
        case ToNode():
            return {"op": "to", "topic": sink_name(place), **kept}
    raise TypeError(f"no node {node}")


def expressions(case: Case) -> Mapping[str, Expression]:
    """Every expression of the case by its SQL text."""
    return {found.sql: found for node in case.nodes for found in _expressions(node)}


def _expressions(node: Node) -> Iterator[Expression]:
    match node:
        case FilterNode():
            yield node.where
        case SelectNode():
            yield from (of for _, of in node.columns)
        case RekeyNode(key=Expression() as key):
            yield key
        case AggregateNode():
            yield from (of for _, _, of in node.aggregates if of is not None)


def as_test(case: Case, name: str) -> str:
    """The case as a test of `tests/system/fuzz`, to paste."""
    nodes = "".join(f"            {_python(node)},\n" for node in case.nodes)
    records = "".join(f"            {_python(record)},\n" for record in case.records)
    rocksdb = "        rocksdb=True,\n" if case.rocksdb else ""
    return (
        f"def {name}(java):\n    case = Case(\n        nodes=(\n{nodes}        ),\n        records=(\n{records}        ),\n"
        f"{rocksdb}    )\n    assert compared(case, java).difference is None\n"
    )


def _python(value: Any) -> str:
    if isinstance(value, Expression):
        return value.python
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, tuple):
        return f"({''.join(_python(part) + ', ' for part in value).rstrip()})"
    if hasattr(value, "__dataclass_fields__"):
        said = [(field, getattr(value, field.name)) for field in fields(value)]
        parts = [
            ("" if field.default is MISSING else f"{field.name}=") + _python(part)
            for field, part in said
            if part != field.default
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    return repr(value)
