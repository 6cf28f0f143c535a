"""What each case must give: record by record, in the order in which Kafka Streams takes them, in plain Python.

Knows neither Kafka Streams' nor Tidemark's code. Results are what `outputs.reduce` makes of an output topic.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.peers.cases import ADVANCE_MS, APART_MS, GAP_MS, GRACE_MS, JOIN_GRACE_MS, PARTITIONS, SIZE_MS, Case, Compared
from tests.peers.inputs import SENTINEL, Record, Stage

Reduced = dict[tuple[Any, ...], Any]
Taken = Iterable[tuple[str, Record]]
"""Role and record."""


def expected(case: Case, stages: list[Stage]) -> Reduced:
    """The reduced output of a case, without the sentinels' keys."""
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
        case "hopping":
            return _windows(taken, ADVANCE_MS)[0]
        case "suppress":
            counts, stream_time_ms = _windows(taken, SIZE_MS)
            return {(*place, n): 1 for place, n in counts.items() if place[2] + GRACE_MS <= stream_time_ms}
        case "session":
            return _sessions(taken)
        case "stream-stream" | "stream-stream-left":
            return _pairs(taken, case.name.endswith("left"))
        case "stream-table" | "tombstone":
            return _looked_up(taken, case.name == "tombstone")
        case "table":
            return {(key,): record.v for key, record in _table(taken, "in").items()}
        case "table-table":
            left, right = _table(taken, "left"), _table(taken, "right")
            return {(key,): (left[key].v, right[key].v) for key in left.keys() & right.keys()}
    raise ValueError(f"no case {case.name}, compared by {Compared}")


def _windows(taken: Taken, advance_ms: int) -> tuple[Reduced, int]:
    """Counts per key and window, and the stream time at the end."""
    counts: Counter[tuple[Any, ...]] = Counter()
    stream_time_ms = 0
    for _, record in taken:
        stream_time_ms = max(stream_time_ms, record.ts_ms)
        start_ms = record.ts_ms // advance_ms * advance_ms
        while start_ms > record.ts_ms - SIZE_MS:
            if start_ms + SIZE_MS + GRACE_MS > stream_time_ms:
                counts[record.key, start_ms, start_ms + SIZE_MS] += 1
            start_ms -= advance_ms
    return dict(counts), stream_time_ms


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
    return {(key, start, end): n for key, of_key in sessions.items() for start, end, n in of_key}


def _pairs(taken: Taken, is_left: bool) -> Reduced:
    """How often each pair comes; of a left join also the left records that found nobody."""
    seen: dict[str, defaultdict[str, list[Record]]] = {"left": defaultdict(list), "right": defaultdict(list)}
    found: Counter[tuple[Any, ...]] = Counter()
    stream_time_ms = 0
    for role, record in taken:
        stream_time_ms = max(stream_time_ms, record.ts_ms)
        if record.ts_ms + APART_MS + JOIN_GRACE_MS < stream_time_ms:
            continue
        other = "right" if role == "left" else "left"
        for partner in seen[other][record.key]:
            if abs(partner.ts_ms - record.ts_ms) <= APART_MS:
                left, right = (record, partner) if role == "left" else (partner, record)
                found[record.key, left.v, right.v] += 1
        seen[role][record.key].append(record)
    if is_left:
        for key, records in seen["left"].items():
            for record in records:
                alone = all(abs(r.ts_ms - record.ts_ms) > APART_MS for r in seen["right"][key])
                if alone and record.ts_ms + APART_MS + JOIN_GRACE_MS < stream_time_ms:
                    found[key, record.v, None] += 1
    return dict(found)


def _looked_up(taken: Taken, is_left: bool) -> Reduced:
    """Each record of the stream with what the table says at that moment."""
    table: dict[str, int] = {}
    found: Counter[tuple[Any, ...]] = Counter()
    for role, record in taken:
        if role == "stream":
            if is_left or record.key in table:
                found[record.key, record.v, table.get(record.key)] += 1
        elif record.v is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.v
    return dict(found)


def _table(taken: Taken, role: str) -> dict[str, Record]:
    """What stands at the end: the record with the highest offset of each key, unless it deletes it."""
    latest = {record.key: record for of, record in taken if of == role}
    return {key: record for key, record in latest.items() if record.v is not None}
