"""The comparison of the two sides: what differs, and whether a documented difference explains it.

With a commit after every record nothing may differ. Otherwise each class of differences has a predicate that must hold
for every sink and store that it excuses; what none excuses is `DIFFERENT`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.system.fuzz.case import (
    After,
    AggregateNode,
    Case,
    FilterNode,
    FoldNode,
    JoinNode,
    Node,
    Record,
    RekeyNode,
    SelectNode,
    Shape,
    StreamNode,
    ToNode,
    shapes,
    sink_name,
    store_name,
)
from tests.system.fuzz.results import Line, Results


class Difference(Enum):
    """Why two results may not be equal, as `docs/semantics.md` says."""

    COALESCED = "coalesced"
    """An aggregation gives one update per key, window and commit: ours are some of theirs, in order, with the same last."""
    LATE_BY_BATCH = "late by batch"
    """A record was late for one side only, since lateness is judged at the batch's start: it changes its key and windows."""
    CLOSING_BY_BATCH = "closing by batch"
    """What time emits comes at the batch's end: the same results in another order."""
    DIFFERENT = "different"


@dataclass(frozen=True)
class Verdict:
    """`classes` are the documented differences that were met; `difference` describes what nothing excuses, or is None.

    `not_compared` are the sinks and stores that differ, and of which no line is left to compare, because a record that may be
    late for one side can change each.
    """

    classes: frozenset[Difference]
    difference: str | None
    not_compared: tuple[str, ...] = ()


Sequences = Mapping[tuple[Any, ...], Sequence[tuple[Any, Any]]]
"""By key and window, rows and timestamps in order."""


def compare(case: Case, ours: Results, theirs: Results) -> Verdict:
    """Compare Tidemark's results with Kafka Streams'."""
    classes: set[Difference] = set()
    wrong: list[str] = []
    not_compared: list[str] = []
    known = shapes(case.nodes)
    judges_time = _downstream(case.nodes, _judges_time)
    sessions = [line for held in ours.stores.values() for line in held if line.end is not None]
    for place, node in enumerate(case.nodes):
        if isinstance(node, ToNode):
            name = sink_name(place)
            lines = ours.sinks[name], theirs.sinks[name]
            if known[node.input].from_windows and not case.commits_each:
                lines = _with_windows(lines[0]), _with_windows(lines[1])
            mine, other = _sequences(*lines)
            found = _of_sink(case, known[node.input], *lines, sessions)
            if found is Difference.DIFFERENT and _is_late(case, ours, theirs) and place in judges_time:
                left = _spared(case, known, place, *lines)
                if not any(left):
                    not_compared.append(name)
                    continue
                if _of_sink(case, known[node.input], *left, sessions) is not Difference.DIFFERENT:
                    found = Difference.LATE_BY_BATCH
            if found is Difference.DIFFERENT:
                wrong.append(_described(f"sink {name}", mine, other))
            elif found is not None:
                classes.add(found)
        names = _store_names(place, node)
        for our_name, their_name in names:
            held = ours.stores.get(our_name, ()), theirs.stores.get(their_name, ())
            mine_held, other_held = _contents(*held)
            if isinstance(node, JoinNode):
                everything = held
                for newest in _newest(case, known[place], [n for _, n in names], theirs):
                    held = _unexpired(everything, newest - node.reach - node.grace)
                    mine_held, other_held = _contents(*held)
                    if mine_held == other_held:
                        break
            if mine_held == other_held:
                continue
            if _is_late(case, ours, theirs) and place in judges_time:
                left = _spared(case, known, place, *held)
                if not any(left):
                    not_compared.append(our_name)
                    continue
                mine_left, other_left = _contents(*left)
                if mine_left == other_left:
                    classes.add(Difference.LATE_BY_BATCH)
                    continue
            wrong.append(_described_store(our_name, mine_held, other_held))
    return Verdict(frozenset(classes), "\n".join(wrong) or None, tuple(not_compared))


def _of_sink(
    case: Case, shape: Shape, ours: Sequence[Line], theirs: Sequence[Line], sessions: Sequence[Line]
) -> Difference | None:
    mine, other = _sequences(ours, theirs)
    if mine == other:
        return None
    if case.commits_each:
        return Difference.DIFFERENT
    if shape.is_coalesced:
        says_window = not shape.from_windows and (shape.kind != "windowed" or _says_window(ours))
        if (
            _are_some_of(mine, other)
            if says_window
            else _are_some_of_windows(mine, _by_key(theirs, _has_time(ours), True))
        ):
            return Difference.COALESCED
    if shape.closes and _counted(mine) == _counted(other):
        return Difference.CLOSING_BY_BATCH
    if shape.closes and _are_some_of_sessions(mine, other, sessions):
        return Difference.COALESCED
    return Difference.DIFFERENT


def _with_windows(lines: Sequence[Line]) -> list[Line]:
    """A stream of windows' results by window: those of one commit come in another order."""
    return [
        line._replace(start=(line.row or {}).get("window_start"), end=(line.row or {}).get("window_end"))
        for line in lines
    ]


def _counted(found: Sequences) -> dict[tuple[Any, ...], Counter[str]]:
    return {key: Counter(repr((sorted((row or {}).items()), at)) for row, at in pairs) for key, pairs in found.items()}


def _are_some_of(ours: Sequences, theirs: Sequences) -> bool:
    """Whether ours are, for every key, a subsequence of theirs with the same last; a deletion may have nothing to delete."""
    if not ours.keys() <= theirs.keys():
        return False
    return all(_is_some_of(ours.get(key, ()), expected) for key, expected in theirs.items())


def _is_some_of(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    if not _is_subsequence(given, expected):
        return False
    if expected[-1][0] is None:
        return not given or given[-1][0] is None
    return bool(given) and given[-1] == expected[-1]


def _are_some_of_sessions(ours: Sequences, theirs: Sequences, sessions: Sequence[Line]) -> bool:
    """Whether what is missing are finals of sessions that closed and grew in one batch: ours is the longer one alone."""
    if not ours.keys() <= theirs.keys() or any(ours[key] != theirs[key] for key in ours):
        return False
    return all(
        any(line.key == key and line.start <= start and end <= line.end and line.end - line.start > end - start
            for line in sessions)
        for key, start, end in theirs.keys() - ours.keys()
    )  # fmt: skip


def _are_some_of_windows(ours: Sequences, theirs: Sequences) -> bool:
    """As `_are_some_of`, where deletions do not say their window: they are counted by key.

    A window that was deleted may not have been there at all for us, where its results were merged into another's.
    """
    deleted = [Counter[Any](), Counter[Any]()]
    for counter, sequences in zip(deleted, (ours, theirs), strict=True):
        for key, pairs in sequences.items():
            counter[key[0]] += sum(row is None for row, _ in pairs)
    spare = deleted[1].copy()
    live = {key: pairs for key, pairs in ours.items() if key[1] is not None}
    for key, expected in theirs.items():
        if key[1] is None or _is_some_of(live.get(key, ()), expected):
            continue
        if not _is_subsequence(live.get(key, ()), expected):
            return False
        if expected[-1][0] is not None:
            spare[key[0]] -= 1
    return live.keys() <= theirs.keys() and deleted[0] <= deleted[1] and all(count >= 0 for count in spare.values())


def _is_subsequence(some: Iterable[Any], everything: Iterable[Any]) -> bool:
    rest = iter(everything)
    return all(any(each == other for other in rest) for each in some)


def _is_late(case: Case, ours: Results, theirs: Results) -> bool:
    return not case.commits_each and ours.late != theirs.late


def _spared(
    case: Case, known: Sequence[Shape], place: int, ours: Sequence[Line], theirs: Sequence[Line]
) -> tuple[list[Line], list[Line]]:
    """The lines of both sides that no record changes which may be late for one side; none where it may change any."""
    times = _late_times(case)
    upstream = _upstream(case.nodes, place)
    judges = [at for at in upstream if _judges_time(case.nodes[at])]
    if any(isinstance(case.nodes[at], RekeyNode) or getattr(case.nodes[at], "every", 0) for at in upstream) or any(
        len([at for at in _upstream(case.nodes, judge) if at in judges]) > 1 for judge in judges
    ):
        # Under which key it goes on, or what time the next node that judges it has, may depend on it.
        return [], []
    shape = known[case.nodes[place].inputs[0]] if isinstance(case.nodes[place], ToNode) else known[place]
    window = shape.window if shape.kind == "windowed" and _keeps_times(case.nodes, judges) else None

    def is_spared(line: Line) -> bool:
        own = times.get(line.key, [])
        if window is None or window.kind not in ("tumbling", "hopping") or line.start is None:
            return not own
        return not any(line.start <= time < line.start + window.size for time in own)

    return [line for line in ours if is_spared(line)], [line for line in theirs if is_spared(line)]


def _late_times(case: Case) -> dict[str | None, list[int]]:
    """By key, the times of the records that may be late for one side: before the newest of their batch, or of one before."""
    graces = [node.window.grace for node in case.nodes if isinstance(node, AggregateNode | FoldNode) and node.window]
    graces += [node.grace for node in case.nodes if isinstance(node, JoinNode) and node.within]
    found: defaultdict[str | None, list[int]] = defaultdict(list)
    newest, batch = -1, list[Record]()
    for record in case.records:
        batch.append(record)
        newest = max(newest, record.timestamp)
        if record.after is not After.NOTHING or record is case.records[-1]:
            for one in batch:
                if one.timestamp + min(graces) <= newest and one.timestamp < newest:
                    found[one.key].append(one.timestamp)
            batch = []
    return dict(found)


def _keeps_times(nodes: Sequence[Node], judges: Sequence[int]) -> bool:
    """Whether rows come to these nodes with the times of their records."""
    plain = (StreamNode, FilterNode, SelectNode)
    return all(isinstance(nodes[at], plain) for judge in judges for at in _upstream(nodes, judge) if at != judge)


def _upstream(nodes: Sequence[Node], place: int) -> list[int]:
    """The node, and all that leads to it."""
    found = {place}
    for at in range(place, -1, -1):
        if at in found:
            found.update(nodes[at].inputs)
    return sorted(found)


def _judges_time(node: Node) -> bool:
    return (isinstance(node, AggregateNode | FoldNode) and node.window is not None) or (
        isinstance(node, JoinNode) and node.within > 0
    )


def _downstream(nodes: Sequence[Node], starts: Any) -> set[int]:
    found: set[int] = set()
    for place, node in enumerate(nodes):
        if starts(node) or found & set(node.inputs):
            found.add(place)
    return found


def _store_names(place: int, node: Node) -> list[tuple[str, str]]:
    """The names of a node's stores on both sides, as far as their contents can be compared."""
    if isinstance(node, JoinNode) and node.within:
        outer = "" if node.kind == "inner" else "-outer"
        return [
            (f"j{place}-this-store", f"j{place}{'-outer' if node.kind == 'outer' else ''}-this-join-store"),
            (f"j{place}-other-store", f"j{place}{outer}-other-join-store"),
        ]
    if isinstance(node, ToNode) or type(node).__name__ == "SuppressNode":
        return []
    return [(store_name(place), store_name(place))]


def _sequences(ours: Sequence[Line], theirs: Sequence[Line]) -> tuple[Sequences, Sequences]:
    """Both sides by key and window. What our side does not say (a timestamp, a deletion's window) is not compared."""
    return tuple(_by_key(lines, _has_time(ours), _says_window(ours)) for lines in (ours, theirs))  # type: ignore[return-value]


def _has_time(ours: Sequence[Line]) -> bool:
    return all(line.timestamp is not None for line in ours)


def _says_window(ours: Sequence[Line]) -> bool:
    return all(line.start is not None for line in ours if line.row is None)


def _by_key(lines: Sequence[Line], has_time: bool, says_window: bool) -> Sequences:
    found: defaultdict[tuple[Any, ...], list[tuple[Any, Any]]] = defaultdict(list)
    for line in lines:
        window = (line.start, line.end) if line.row is not None or says_window else (None, None)
        found[line.key, *window].append((line.row, line.timestamp if has_time else None))
    return dict(found)


Held = tuple[Sequence[Line], Sequence[Line]]


def _newest(case: Case, shape: Shape, stores: Sequence[str], theirs: Results) -> Iterator[int]:
    """By what a join's rows may have expired: the newest that is kept, or the newest that may have come, kept or not."""
    yield max((line.start or 0 for name in stores for line in theirs.stores.get(name, ())), default=0)
    topics = {getattr(case.nodes[place], "topic", None) for place in shape.sources}
    yield max((record.timestamp for record in case.records if record.topic in topics), default=0)


def _unexpired(held: Held, oldest: int) -> Held:
    """What both sides must still hold: each drops older rows when it pleases."""
    ours, theirs = ([line for line in lines if (line.start or 0) > oldest] for lines in held)
    return ours, theirs


def _contents(ours: Sequence[Line], theirs: Sequence[Line]) -> tuple[list[Any], list[Any]]:
    # Kafka Streams keeps none in session stores.
    has_time = all(line.timestamp is not None for line in (*ours, *theirs))
    is_session = any(line.end is not None for line in ours)

    def listed(lines: Sequence[Line]) -> list[Any]:
        rows = [
            (line.key, line.start, line.end if is_session else None, line.row, line.timestamp if has_time else None)
            for line in lines
        ]
        return sorted(rows, key=repr)

    return _canonical(listed(ours)), _canonical(listed(theirs))


def _canonical(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: repr((row[:3], sorted((row[3] or {}).items()), row[4])))


def _described(what: str, ours: Sequences, theirs: Sequences) -> str:
    lines = [f"{what}:"]
    for key in sorted({*ours, *theirs}, key=repr):
        mine, other = list(ours.get(key, ())), list(theirs.get(key, ()))
        if mine != other:
            lines += [f"  {key}", f"    Tidemark      {mine}", f"    Kafka Streams {other}"]
    return "\n".join(lines)


def _described_store(name: str, ours: list[Any], theirs: list[Any]) -> str:
    lines = [f"store {name}:"]
    lines += [f"    only Tidemark      {row}" for row in ours if row not in theirs]
    lines += [f"    only Kafka Streams {row}" for row in theirs if row not in ours]
    if len(ours) != len(theirs):
        lines.append(f"    {len(ours)} entries in Tidemark, {len(theirs)} in Kafka Streams")
    return "\n".join(lines)
