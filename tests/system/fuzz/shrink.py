"""Makes a failing case small: fewer records, fewer nodes, fewer commits, plainer values, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

from tests.system.fuzz.case import (
    After,
    Case,
    Node,
    Record,
    StreamNode,
    TableNode,
    ToNode,
    pruned,
    shapes,
    without_late_in_batch,
)

from tidemark.errors import InvalidTopology

_PASSES = 4

Fails = Callable[[Case], bool]


def shrunk(case: Case, fails: Fails) -> Case:
    """The smallest that was found. `fails` says whether a case still does; it is asked some hundred times."""
    for _ in range(_PASSES):
        before = case
        for step in (_nodes, _records, _afters, _values, _times, _storage):
            case = step(case, fails)
        if case == before:
            break
    return case


def _try(case: Case, candidate: Case, fails: Fails) -> Case | None:
    """The candidate, if it is a case at all and fails."""
    try:
        if candidate == case or not candidate.records or not _is_legal(candidate) or not fails(candidate):
            return None
    except (InvalidTopology, ValueError, KeyError):
        return None
    return candidate


def _is_legal(case: Case) -> bool:
    topics = {node.topic for node in case.nodes if isinstance(node, StreamNode | TableNode)}
    known = shapes(case.nodes)
    is_sunk = any(isinstance(node, ToNode) for node in case.nodes)
    if not case.commits_each and list(case.records) != without_late_in_batch(case.records, case.nodes):
        return False
    return bool(case.plan) and is_sunk and len(known) > 0 and all(r.topic in topics for r in case.records)


def _first(case: Case, candidates: Iterator[Case], fails: Fails) -> Case | None:
    return next((found for c in candidates if (found := _try(case, c, fails)) is not None), None)


def _until_none(case: Case, candidates: Callable[[Case], Iterator[Case]], fails: Fails) -> Case:
    while (found := _first(case, candidates(case), fails)) is not None:
        case = found
    return case


def _records(case: Case, fails: Fails) -> Case:
    """Leave out half, a quarter, …, single records."""
    size = max(1, len(case.records) // 2)
    while True:
        at = 0
        while at < len(case.records):
            rest = case.records[:at] + case.records[at + size :]
            found = _try(case, replace(case, records=rest), fails)
            if found is None:
                at += size
            else:
                case = found
        if size == 1:
            return case
        size //= 2


def _nodes(case: Case, fails: Fails) -> Case:
    return _until_none(case, lambda c: (*_without_ends(c), *_bypassed(c), *_plainer(c)).__iter__(), fails)


def _without_ends(case: Case) -> Iterator[Case]:
    """With one sink only, without one sink, or with a sink one step before it."""
    sinks = _sinks(case)
    if len(sinks) > 1:
        for place in sinks:
            yield pruned(case, [place])
        for place in sinks:
            yield pruned(case, [other for other in sinks if other != place])
    for place in sinks:
        for i in case.nodes[case.nodes[place].inputs[0]].inputs:
            yield pruned(replace(case, nodes=(*case.nodes[:place], ToNode(i), *case.nodes[place + 1 :])), sinks)


def _sinks(case: Case) -> list[int]:
    return [place for place, node in enumerate(case.nodes) if isinstance(node, ToNode)]


def _bypassed(case: Case) -> Iterator[Case]:
    """Without one node, whose readers read one of its inputs instead."""
    for place, node in enumerate(case.nodes):
        for i in node.inputs:
            without = _without(case, place, {place: i})
            yield pruned(without, _sinks(without))


def _without(case: Case, place: int, instead: dict[int, int]) -> Case:
    def moved(i: int) -> int:
        i = instead.get(i, i)
        return i - (i > place)

    nodes = []
    for old, node in enumerate(case.nodes):
        if old == place:
            continue
        names = [field.name for field in fields(node) if field.name in ("input", "left", "right")]
        nodes.append(replace(node, **{name: moved(getattr(node, name)) for name in names}))
    return replace(case, nodes=tuple(nodes))


def _plainer(case: Case) -> Iterator[Case]:
    """With one node made simpler."""
    for place, node in enumerate(case.nodes):
        for simpler in _simpler(node):
            yield replace(case, nodes=(*case.nodes[:place], simpler, *case.nodes[place + 1 :]))


def _simpler(node: Node) -> Iterator[Node]:
    aggregates = getattr(node, "aggregates", ())
    for i in range(len(aggregates)):
        if len(aggregates) > 1:
            yield replace(node, aggregates=aggregates[:i] + aggregates[i + 1 :])  # type: ignore[call-arg]
    window = getattr(node, "window", None)
    if window is not None and window.grace:
        yield replace(node, window=replace(window, grace=0))  # type: ignore[call-arg]
    if getattr(node, "within", 0) and getattr(node, "grace", 0):
        yield replace(node, grace=0)  # type: ignore[call-arg]
    for side in ("before", "after"):
        if getattr(node, side, None) is not None:
            yield replace(node, **{side: None})


def _afters(case: Case, fails: Fails) -> Case:
    """With fewer restarts and losses; without commits, or else with one after every record."""
    all_commit = tuple(replace(r, after=After.COMMIT if r.after is After.NOTHING else r.after) for r in case.records)
    case = _try(case, replace(case, records=all_commit), fails) or case
    for place, record in enumerate(case.records):
        plainer = [After.COMMIT] if record.after in (After.RESTART, After.LOSE_STATE) else []
        if record.after is not After.NOTHING and not case.commits_each:
            plainer.insert(0, After.NOTHING)
        case = _first(case, (_with(case, place, replace(record, after=a)) for a in plainer), fails) or case
    return case


def _values(case: Case, fails: Fails) -> Case:
    for place, record in enumerate(case.records):
        candidates = [replace(record, key="a")] if record.key not in ("a", None) else []
        if record.row is not None:
            zeros: dict[str, int] = dict.fromkeys(record.row, 0)
            candidates.append(replace(record, row=zeros))
            for name, value in record.row.items():
                if value not in (0, 1):
                    candidates += [replace(record, row={**record.row, name: plain}) for plain in (0, 1)]
        case = _first(case, (_with(case, place, c) for c in candidates), fails) or case
    return case


def _times(case: Case, fails: Fails) -> Case:
    """All earlier by as much as can be, then one by one."""
    least = min(r.timestamp for r in case.records)
    for shift in (least, least - least % 1000, least - least % 10):
        moved = tuple(replace(r, timestamp=r.timestamp - shift) for r in case.records)
        if (found := _try(case, replace(case, records=moved), fails)) is not None:
            case = found
            break
    for place, record in enumerate(case.records):
        at = record.timestamp
        candidates = [0, *(r.timestamp for r in case.records[:place]), at // 100 * 100, at // 10 * 10, at - 1]
        plainer = (_with(case, place, replace(record, timestamp=t)) for t in dict.fromkeys(candidates) if 0 <= t < at)
        case = _first(case, plainer, fails) or case
    return case


def _storage(case: Case, fails: Fails) -> Case:
    return _try(case, replace(case, rocksdb=False), fails) or case


def _with(case: Case, place: int, record: Record) -> Case:
    return replace(case, records=(*case.records[:place], record, *case.records[place + 1 :]))


def kind_of(nodes: Sequence[Node]) -> str:
    """The kinds of a case's nodes, to tell differences apart."""
    return " ".join(type(node).__name__.removesuffix("Node") for node in nodes)
