"""Draws cases with hypothesis: a topology of a few nodes, and records at, one before and one after every bound of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from hypothesis import assume, reject
from hypothesis import strategies as st
from tests.system.fuzz.case import (
    After,
    AggregateNode,
    Case,
    FilterNode,
    FoldNode,
    JoinNode,
    Node,
    ProcessNode,
    Record,
    RekeyNode,
    SelectNode,
    Shape,
    StreamNode,
    SuppressNode,
    TableNode,
    ToNode,
    ToStreamNode,
    ToTableNode,
    WindowOf,
    is_text,
    shapes,
    without_late_in_batch,
)
from tests.system.fuzz.expressions import Expression, col, lit, of

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import Process

KINDS = ("stateless", "tables", "aggregates", "windows", "sessions", "sliding", "suppress", "joins", "rekeys", "folds",
         "processors", "nulls")  # fmt: skip
"""What `--only` chooses from. `nulls` are null keys and null values; `joins` are all joins."""

_KEYS = ("a", "b", "c")
_SIZES = (10, 20, 30)
_GRACES = (0, 0, 5, 20, 100)
_BASES = (0, 0, 7, 1000, 10_000_000)
_BYTES_A_RECORD = 6


@dataclass(frozen=True)
class Only:
    """Which kinds of nodes and inputs are drawn; all where there is none."""

    kinds: frozenset[str] = frozenset(KINDS)

    def __contains__(self, kind: str) -> bool:
        return kind in self.kinds


@st.composite
def cases(draw, only: Only = Only(), commits_each: bool | None = None):  # type: ignore[no-untyped-def]
    """A case; with `commits_each` one that commits after every record, or one that does not."""
    # One draw for all: hypothesis would repeat parts of earlier cases, and `shrink` knows better what a smaller case is.
    chance = draw(st.randoms(use_true_random=True))
    nodes = _drawn_nodes(chance, only)
    strict = chance.randint(0, 5) == 0 if commits_each is None else commits_each
    strict = strict or _is_strict(nodes)
    records = _drawn_records(chance, nodes, only, strict)
    case = Case(tuple(nodes), tuple(records), rocksdb=chance.randint(0, 19) == 7)
    try:
        assume(_has_one_stream_time(case))
        return case
    except InvalidTopology:
        reject()


def _is_strict(nodes: Sequence[Node]) -> bool:
    """Whether only a commit after every record is comparable: what follows from how batches were merged is not."""
    known = shapes(nodes)
    for node in nodes:
        if isinstance(node, ProcessNode) and node.every:
            return True
        given = [known[i] for i in node.inputs]
        is_kept = isinstance(node, SelectNode | ToTableNode | ToStreamNode | SuppressNode | ToNode)
        if not is_kept and any(shape.is_coalesced for shape in given):
            return True
        # In a commit the results of several windows come in another order.
        if isinstance(node, SelectNode | ToTableNode) and given[0].from_windows:
            return True
        if isinstance(node, JoinNode) and _is_rekeyed(nodes, node):
            return True
    return False


def _is_rekeyed(nodes: Sequence[Node], node: Node) -> bool:
    return isinstance(node, RekeyNode) or any(_is_rekeyed(nodes, nodes[i]) for i in node.inputs)


def _drawn_nodes(chance: Random, only: Only) -> list[Node]:
    nodes: list[Node] = []
    _add_source(chance, nodes, only)
    for _ in range(chance.randint(1, 6)):
        _add(chance, nodes, only)
    used = {i for node in nodes for i in node.inputs}
    known = shapes(nodes)
    for place in range(len(nodes)):
        is_end = place not in used
        shows = known[place].kind != "stream" and chance.random() < 0.5
        if is_end or shows:
            nodes.append(ToNode(place, known[place].kind == "windowed" and chance.randint(0, 3) > 0))
    return nodes


def _add_source(chance: Random, nodes: list[Node], only: Only, *, is_table: bool | None = None) -> int:
    number = sum(isinstance(node, StreamNode | TableNode) for node in nodes)
    if is_table is None:
        is_table = "tables" in only and chance.random() < 0.2
    kind = TableNode if is_table else StreamNode
    nodes.append(kind(f"t{number}", (f"u{number}", f"v{number}")))
    return len(nodes) - 1


def _add(chance: Random, nodes: list[Node], only: Only) -> None:
    """One more node, on one of those that there are."""
    known = shapes(nodes)
    place = chance.choice(range(len(nodes))) if chance.randint(0, 3) == 0 else len(nodes) - 1
    shape = known[place]
    to_stream = [] if any(isinstance(node, ToStreamNode) and node.input == place for node in nodes) else ["to_stream"]
    if shape.kind == "windowed":
        choices = to_stream + (["suppress"] * 2 if "suppress" in only and _can_suppress(nodes, place) else [])
    elif shape.kind == "table":
        choices = to_stream + (["join"] * 2 if "joins" in only else [])
    elif shape.is_rekeyed:
        choices = (["filter", "select"] if "stateless" in only else []) + (
            ["repartition"] * 2 if "rekeys" in only else []
        )
    else:
        choices = ["filter", "select"] if "stateless" in only else []
        choices += ["to_table"] if "tables" in only else []
        choices += ["join"] * 2 if "joins" in only else []
        choices += ["rekey"] if "rekeys" in only else []
        choices += ["process"] if "processors" in only else []
        choices += ["tick"] if "processors" in only and _can_tick(nodes) else []
        choices += ["fold"] if "folds" in only else []
        if shape.in_spark:
            for kind in ("aggregates", "windows", "sessions", "sliding"):
                choices += [kind] * 2 if kind in only else []
    if not choices:
        return
    choice = chance.choice(choices)
    if choice in ("aggregates", "windows", "sessions", "sliding"):
        nodes.append(AggregateNode(place, _drawn_window(chance, choice), _drawn_aggregates(chance, shape, len(nodes))))
        return
    match choice:
        case "filter":
            nodes.append(FilterNode(place, _condition(chance, shape)))
        case "select":
            nodes.append(SelectNode(place, _selected(chance, shape, len(nodes))))
        case "to_table":
            nodes.append(ToTableNode(place))
        case "to_stream":
            nodes.append(ToStreamNode(place))
        case "suppress":
            nodes.append(SuppressNode(place))
        case "rekey":
            nodes.append(RekeyNode(place, _new_key(chance, shape)))
        case "repartition":
            nodes.append(RekeyNode(place, None))
        case "process":
            nodes.append(ProcessNode(place, 0))
        case "tick":
            nodes.append(ProcessNode(place, chance.choice([10, 15])))
        case "fold":
            _add_fold(chance, nodes, place, only)
        case "join":
            _add_join(chance, nodes, place, only)


def _can_tick(nodes: Sequence[Node]) -> bool:
    """Whether a ticker's results can be compared: of two punctuations that are due at once either may come first."""
    return not any(isinstance(node, SuppressNode) or getattr(node, "every", 0) for node in nodes)


def _has_one_stream_time(case: Case) -> bool:
    """TopologyTestDriver has one task, with one stream time that calls tickers, for all sub-topologies."""
    if not any(getattr(node, "every", 0) for node in case.nodes):
        return True
    topics = {node.topic for node in case.nodes if isinstance(node, StreamNode | TableNode)}
    (ticking,) = (
        s for s in case.plan.subtopologies if any(isinstance(n, Process) and not n.keeps_key for n in s.nodes)
    )
    return set(ticking.source_topics) == topics


def _can_suppress(nodes: Sequence[Node], place: int) -> bool:
    """Kafka Streams 4.3.1 fails to log a suppressed result that a punctuation led to, as it comes from no topic."""
    return not isinstance(nodes[place], SuppressNode) and not any(getattr(node, "every", 0) for node in nodes)


def _drawn_window(chance: Random, kind: str) -> WindowOf | None:
    if kind == "aggregates":
        return None
    size = chance.choice(_SIZES)
    grace = chance.choice(_GRACES)
    if kind == "windows":
        advance = chance.choice([size, size, size // 2, 7])
        return WindowOf("tumbling" if advance == size else "hopping", size, advance, grace)
    return WindowOf("session" if kind == "sessions" else "sliding", size, 0, grace)


def _drawn_aggregates(chance: Random, shape: Shape, place: int) -> tuple[tuple[str, str, Expression | None], ...]:
    found: list[tuple[str, str, Expression | None]] = [(f"n{place}", "count", None)]
    numbers = _numbers(shape)
    for i in range(chance.randint(0, 2) if numbers else 0):
        fold = chance.choice(["sum", "min", "max", "mean", "count"])
        found.append((f"a{place}_{i}", fold, _number(chance, shape)))
    return tuple(found)


def _numbers(shape: Shape) -> list[str]:
    # A deletion of a window still says which one it is, where Kafka Streams' function sees a null value.
    hidden = {*shape.texts, *shape.doubles, *(("window_start", "window_end") if shape.from_windows else ())}
    return [name for name in shape.columns if name not in hidden]


def _number(chance: Random, shape: Shape) -> Expression:
    numbers = _numbers(shape)
    if not numbers:
        return lit(chance.randint(0, 3))
    first = col(chance.choice(numbers))
    op = chance.choice(["", "", "+", "-", "*", "coalesce"])
    if not op:
        return first
    other = col(chance.choice(numbers)) if chance.random() < 0.5 else lit(chance.randint(0, 3))
    return of(op, first, other)


def _condition(chance: Random, shape: Shape) -> Expression:
    if chance.randint(0, 4) == 0:
        return of("isnull", _number(chance, shape))
    return of(chance.choice(["<", ">", "=", "<>"]), _number(chance, shape), lit(chance.randint(0, 4)))


def _selected(chance: Random, shape: Shape, place: int) -> tuple[tuple[str, Expression], ...]:
    found = [(f"x{place}", _number(chance, shape))]
    if chance.random() < 0.5:
        found.append((f"y{place}", _number(chance, shape)))
    if chance.randint(0, 3) == 0:
        found.append((f"s{place}", _new_key(chance, shape)))
    return tuple(found)


def _new_key(chance: Random, shape: Shape) -> Expression:
    """An expression of type STRING; some are null for some records, some name the old key, some are constant."""
    choice = chance.randint(0, 5)
    number = _number(chance, shape)
    if choice == 0:
        return of("coalesce", of("str", number), lit("z"))
    if choice == 1:
        return of("coalesce", lit("k"), of("str", number))
    if choice == 2 and shape.knows_key:
        return of("coalesce", of("key"), lit("q"))
    # A deletion of an aggregation's result still says its key, where Kafka Streams' function sees a null value.
    texts = [] if shape.is_coalesced else [name for name in shape.columns if name in shape.texts]
    if choice == 3 and texts:
        return col(chance.choice(texts))
    return of("str", of("%", number, lit(2)))


def _add_fold(chance: Random, nodes: list[Node], place: int, only: Only) -> None:
    window = _drawn_window(chance, "windows" if "windows" in only and chance.random() < 0.5 else "aggregates")
    is_reduce = chance.random() < 0.5
    function = chance.choice(["add_up", "larger", "toggle"] if is_reduce else ["tally", "tally_to_two"])
    columns = shapes(nodes)[place].columns
    if is_reduce and window is not None and {"window_start", "window_end"} & set(columns):
        return
    if is_reduce and "key" in columns:
        return
    nodes.append(FoldNode(place, window, function, is_reduce))


def _add_join(chance: Random, nodes: list[Node], place: int, only: Only) -> None:
    shape = shapes(nodes)[place]
    left = place
    others = [
        i
        for i, other in enumerate(shapes(nodes))
        if i != place and not isinstance(nodes[i], ToNode) and _can_join(shape, other)
    ]
    if others and chance.random() < 0.5:
        right = chance.choice(others)
    else:
        is_table = shape.kind == "table" or ("tables" in only and chance.random() < 0.4)
        right = _add_source(chance, nodes, only, is_table=is_table)
    known = shapes(nodes)
    if known[left].kind == known[right].kind == "table" and chance.random() < 0.5:
        left, right = right, left
    if known[right].kind == "table":
        kinds = ["inner", "left", "outer"] if known[left].kind == "table" else ["inner", "left"]
        nodes.append(JoinNode(left, right, chance.choice(kinds)))
        return
    within, grace = chance.choice([5, 10, 20]), chance.choice(_GRACES)
    before, after = (chance.choice([None, None, 0, 5, 20]) for _ in range(2))
    if before == after == 0:
        # Kafka Streams' store cannot show its contents then.
        after = None
    kind = chance.choice(["inner", "left", "outer"])
    nodes.append(JoinNode(left, right, kind, within, grace, before, after))


def _can_join(left: Shape, right: Shape) -> bool:
    if right.kind == "windowed" or right.is_rekeyed or left.key_name != right.key_name:
        return False
    if left.kind == "table" and right.kind == "stream":
        return False
    shared = set(left.columns) & set(right.columns)
    return all(name == left.key_name == right.key_name for name in shared)


def _bounds(nodes: Sequence[Node]) -> list[int]:
    """Every duration at which something changes."""
    found = {1, 5}
    for node in nodes:
        window = getattr(node, "window", None)
        if window is not None:
            found |= {window.size, window.grace, window.size + window.grace, 2 * window.size + window.grace}
            found |= {window.advance}
        if isinstance(node, JoinNode) and node.within:
            sides = {node.within if side is None else side for side in (node.before, node.after)}
            found |= {t + grace for t in (*sides, node.reach) for grace in (0, node.grace)}
        if isinstance(node, ProcessNode) and node.every:
            found |= {node.every}
    return sorted(found - {0})


def _drawn_records(chance: Random, nodes: Sequence[Node], only: Only, strict: bool) -> list[Record]:
    sources = [node for node in nodes if isinstance(node, StreamNode | TableNode)]
    bounds = _bounds(nodes)
    count = chance.randint(3, 30)
    drawn = chance.randbytes(count * _BYTES_A_RECORD)
    base = chance.choice(_BASES)
    keys = _KEYS[: chance.choice([1, 2, 2, 3])]
    records: list[Record] = []
    newest = last = base
    for at in range(0, len(drawn), _BYTES_A_RECORD):
        which, key_byte, time_byte, offset_byte, value_byte, after_byte = drawn[at : at + _BYTES_A_RECORD]
        source = sources[which % len(sources)]
        key: str | None = keys[key_byte % len(keys)]
        if "nulls" in only and key_byte > 247:
            key = None
        time = _time(time_byte, offset_byte, bounds, newest, last)
        nulls = 5 if isinstance(source, TableNode) else 13
        has_null_value = ("nulls" in only or nulls == 5) and value_byte % nulls == 0
        row = None if has_null_value else _row(source.columns, value_byte)
        records.append(Record(source.topic, key, row, time, _after(after_byte, strict)))
        newest, last = max(newest, time), time
    return records if strict else without_late_in_batch(records, nodes)


def _time(time_byte: int, offset_byte: int, bounds: Sequence[int], newest: int, last: int) -> int:
    """Mostly a little later; often at a bound before or after the newest or the last time, or one beside it."""
    choice = time_byte % 16
    bound = bounds[(time_byte // 16 + offset_byte // 4) % len(bounds)]
    beside = offset_byte % 3 - 1
    if choice < 5:
        time = last + offset_byte % 8
    elif choice < 8:
        time = newest + bound + beside
    elif choice < 11:
        time = newest - bound + beside
    elif choice < 13:
        time = last - bound + beside
    elif choice == 13:
        time = last + bound + beside
    elif choice == 14:
        time = newest
    else:
        time = newest + 10 * bound
    return max(0, time)


def _row(columns: Sequence[str], value_byte: int) -> dict[str, int | None]:
    values = [value_byte % 7, value_byte // 32]
    return {name: None if value == 6 else value for name, value in zip(columns, values, strict=True)}


def _after(after_byte: int, strict: bool) -> After:
    if after_byte < 10:
        return After.LOSE_STATE
    if after_byte < 25:
        return After.RESTART
    if strict or after_byte < 90:
        return After.COMMIT
    return After.NOTHING


__all__ = ["KINDS", "Only", "cases", "is_text"]
