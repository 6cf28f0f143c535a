"""What each case must give: record by record, in the order in which Kafka Streams takes them, in plain Python.

Knows neither Kafka Streams' nor Tidemark's code. Results are what `outputs.reduce` makes of an output topic.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.system.peers.cases import (
    ADVANCE_MS,
    APART_MS,
    DIFFERENCE_MS,
    GAP_MS,
    GRACE_MS,
    GROUPS,
    JOIN_GRACE_MS,
    MAX_ENTRIES,
    PARTITIONS,
    SIZE_MS,
    TTL_MS,
    Case,
)
from tests.system.peers.inputs import SENTINEL, Record, Stage

Reduced = dict[tuple[Any, ...], Any]
Taken = Iterable[tuple[str, Record]]
"""Role and record."""


def expected(case: Case, stages: list[Stage]) -> Reduced:
    """The reduced output of a case, without the sentinels' keys."""
    if case.name == "rekey":
        # The records of all partitions meet, in an order that nothing depends on.
        return _groups(record for stage in stages for record in stage["in"])
    found: Reduced = {}
    for partition in range(PARTITIONS):
        taken = [pair for stage in stages for pair in in_order(stage, case.roles, partition)]
        found |= _of_partition(case, taken)
    return {place: value for place, value in found.items() if not place[0].startswith(SENTINEL)}


def in_order(stage: Stage, roles: tuple[str, ...], partition: int) -> Iterator[tuple[str, Record]]:
    """The records of one task: always the one of the two next ones that has the lower timestamp."""
    left = {role: [r for r in reversed(stage.get(role, ())) if r.partition == partition] for role in roles}
    while any(left.values()):
        role = min((role for role in roles if left[role]), key=lambda role: left[role][-1].ts_ms)
        yield role, left[role].pop()


def _of_partition(case: Case, taken: Taken) -> Reduced:
    match case.name:
        case "tumbling":
            return _windows(taken, SIZE_MS)[0]
        case "backlog":
            return _windows(((role, record) for role, record in taken if role == "stream"), SIZE_MS)[0]
        case "hopping":
            return _windows(taken, ADVANCE_MS)[0]
        case "sliding":
            return _sliding(taken)
        case "suppress":
            counts, stream_time_ms = _windows(taken, SIZE_MS)
            return {(*place, *value): 1 for place, value in counts.items() if place[2] + GRACE_MS <= stream_time_ms}
        case "session":
            return _sessions(taken)
        case "stream-stream":
            return _pairs(taken, ())
        case "stream-stream-left":
            return _pairs(taken, ("left",))
        case "stream-stream-outer":
            return _pairs(taken, ("left", "right"))
        case "stream-table" | "stream-table-left":
            return _looked_up(taken, case.name.endswith("left"))
        case "table":
            return {(key,): (record.v, record.ts_ms) for key, record in _table(taken).items()}
        case "table-table" | "table-table-left" | "table-table-outer":
            return _joined_tables(taken, case.name.removeprefix("table-table"))
        case "lru":
            return _remembered(taken, MAX_ENTRIES, sys.maxsize)
        case "ttl":
            return _remembered(taken, sys.maxsize, TTL_MS)
    raise ValueError(f"no case {case.name}")


def _windows(taken: Taken, advance_ms: int) -> tuple[Reduced, int]:
    """Counts and newest timestamps per key and window, and the stream time at the end."""
    found: Reduced = {}
    stream_time_ms = 0
    for _, record in taken:
        stream_time_ms = max(stream_time_ms, record.ts_ms)
        start_ms = record.ts_ms // advance_ms * advance_ms
        while start_ms > record.ts_ms - SIZE_MS:
            if start_ms + SIZE_MS + GRACE_MS > stream_time_ms:
                place = record.key, start_ms, start_ms + SIZE_MS
                found[place] = _counted(found.get(place), record)
            start_ms -= advance_ms
    return found, stream_time_ms


def _counted(before: tuple[int, int] | None, record: Record) -> tuple[int, int]:
    count, newest_ms = before or (0, record.ts_ms)
    return count + 1, max(newest_ms, record.ts_ms)


def _sliding(taken: Taken) -> Reduced:
    """A window ends at each record; another begins just after it, if there is a record in it."""
    times: defaultdict[str, list[int]] = defaultdict(list)
    stream_time_ms = 0
    for _, record in taken:
        stream_time_ms = max(stream_time_ms, record.ts_ms)
        if record.ts_ms + DIFFERENCE_MS >= stream_time_ms - GRACE_MS:
            times[record.key].append(record.ts_ms)
    found: Reduced = {}
    for key, of_key in times.items():
        of_key.sort()
        for start_ms in {ts_ms - DIFFERENCE_MS for ts_ms in of_key} | {ts_ms + 1 for ts_ms in of_key}:
            inside = of_key[bisect_left(of_key, start_ms) : bisect_right(of_key, start_ms + DIFFERENCE_MS)]
            if inside:
                found[key, start_ms, start_ms + DIFFERENCE_MS] = len(inside), inside[-1]
    return found


def _sessions(taken: Taken) -> Reduced:
    """Records of one key, none further from the next than the gap; ends are the first and the last record's time."""
    sessions: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    stream_time_ms = 0
    for _, record in taken:
        stream_time_ms = max(stream_time_ms, record.ts_ms)
        near = [s for s in sessions[record.key] if s[0] - GAP_MS <= record.ts_ms <= s[1] + GAP_MS]
        start_ms = min([record.ts_ms, *(s[0] for s in near)])
        end_ms = max([record.ts_ms, *(s[1] for s in near)])
        if end_ms + GAP_MS + GRACE_MS < stream_time_ms:
            continue
        apart = [s for s in sessions[record.key] if s not in near]
        sessions[record.key] = [*apart, (start_ms, end_ms, 1 + sum(s[2] for s in near))]
    return {(key, start, end): (n, end) for key, of_key in sessions.items() for start, end, n in of_key}


def _groups(records: Iterable[Record]) -> Reduced:
    """Counts and newest timestamps by the records' new keys."""
    found: Reduced = {}
    for record in records:
        place = (f"g{(record.v or 0) % GROUPS}",)
        found[place] = _counted(found.get(place), record)
    return found


def _pairs(taken: Taken, outer: tuple[str, ...]) -> Reduced:
    """How often each pair comes; and the records of the `outer` roles that found nobody.

    What is `retention_ms` older than the newest record of its role is forgotten, and is nobody's partner any more. A record
    that comes when its window is over does not wait for a partner.
    """
    retention_ms = 2 * APART_MS + JOIN_GRACE_MS
    seen: dict[str, defaultdict[str, list[tuple[int, Record]]]] = {r: defaultdict(list) for r in ("left", "right")}
    newest_ms = dict.fromkeys(seen, 0)
    waiting: dict[int, tuple[str, Record]] = {}
    found: Counter[tuple[Any, ...]] = Counter()
    stream_time_ms = 0

    def add(role: str, record: Record, partner: Record | None) -> None:
        own_v, other_v = record.v, partner.v if partner else None
        pair = (own_v, other_v) if role == "left" else (other_v, own_v)
        found[record.key, *pair, max(record.ts_ms, partner.ts_ms if partner else 0)] += 1

    for number, (role, record) in enumerate(taken):
        stream_time_ms = max(stream_time_ms, record.ts_ms)
        newest_ms[role] = max(newest_ms[role], record.ts_ms)
        other = "right" if role == "left" else "left"
        partners = [
            (n, partner)
            for n, partner in seen[other][record.key]
            if abs(partner.ts_ms - record.ts_ms) <= APART_MS and partner.ts_ms > newest_ms[other] - retention_ms
        ]
        for partner_number, partner in partners:
            add(role, record, partner)
            if partner.ts_ms + APART_MS + JOIN_GRACE_MS >= stream_time_ms:
                waiting.pop(partner_number, None)
        if not partners and role in outer:
            if record.ts_ms + APART_MS < stream_time_ms:
                add(role, record, None)
            else:
                waiting[number] = role, record
        seen[role][record.key].append((number, record))
    for role, record in waiting.values():
        if record.ts_ms + APART_MS + JOIN_GRACE_MS < stream_time_ms:
            add(role, record, None)
    return dict(found)


def _looked_up(taken: Taken, is_left: bool) -> Reduced:
    """Each record of the stream with what the table says at that moment."""
    table: dict[str, int] = {}
    found: Counter[tuple[Any, ...]] = Counter()
    for role, record in taken:
        if role == "stream":
            if is_left or record.key in table:
                found[record.key, record.v, table.get(record.key), record.ts_ms] += 1
        elif record.v is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.v
    return dict(found)


def _table(taken: Taken) -> dict[str, Record]:
    """What is left at the end: the record with the highest offset of each key, unless it deletes it."""
    latest = {record.key: record for _, record in taken}
    return {key: record for key, record in latest.items() if record.v is not None}


def _joined_tables(taken: Taken, kind: str) -> Reduced:
    """What the last update of each key gave; it has the newer of its own timestamp and of the other table's row's."""
    tables: dict[str, dict[str, Record]] = {"left": {}, "right": {}}
    found: Reduced = {}
    for role, record in taken:
        if record.v is None:
            tables[role].pop(record.key, None)
        else:
            tables[role][record.key] = record
        left, right = (table.get(record.key) for table in tables.values())
        needed = {"": (left, right), "-left": (left,), "-outer": (left or right,)}[kind]
        if None in needed:
            found.pop((record.key,), None)
            continue
        other = right if role == "left" else left
        ts_ms = max(record.ts_ms, other.ts_ms if other else 0)
        found[record.key,] = left.v if left else None, right.v if right else None, ts_ms
    return found


def _remembered(taken: Taken, max_entries: int, ttl_ms: int) -> Reduced:
    """Each question with what was written last under its key, unless that is forgotten.

    What was neither written nor asked for longest is forgotten where there are more than `max_entries`; and what was not
    written for more than `ttl_ms` of stream time.
    """
    held: OrderedDict[str, tuple[int, int]] = OrderedDict()
    found: Counter[tuple[Any, ...]] = Counter()
    stream_time_ms = 0
    for _, record in taken:
        assert record.v is not None
        stream_time_ms = max(stream_time_ms, record.ts_ms)
        if record.v >= 0:
            held[record.key] = record.v, stream_time_ms
            held.move_to_end(record.key)
            if len(held) > max_entries:
                held.popitem(last=False)
            continue
        v, written_ms = held.get(record.key, (None, 0))
        if v is not None and stream_time_ms - written_ms > ttl_ms:
            del held[record.key]
            v = None
        if v is not None:
            held.move_to_end(record.key)
        found[record.key, record.v, v, record.ts_ms] += 1
    return dict(found)
