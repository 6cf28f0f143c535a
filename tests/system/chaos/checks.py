"""The expected outputs, computed from the input alone, without Tidemark's code, commit records or batches.

Statistics and sessions come in steps, of which batches skip some: one that comes a second time, or behind a later one, is
duplicated, and where the last one is missing, something was lost. Everything else comes once per record, pair or window.

At least once, a record may also be counted twice, and then is in every later sum of its key: a sum that is too large has
something twice, one that is too small, or falls, has lost something.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from tests.support.truth.topics import NOTHING_PAST, Past, Row, by_partition, each_row, partitions, read_all
from tests.system.chaos.feeding import LAST, QUEUE
from tests.system.chaos.findings import Findings
from tests.system.chaos.processor import REFUSED

IntArray = np.ndarray[Any, np.dtype[np.int64]]
_WINDOW_MS, _GRACE_MS, _GAP_MS, _WITHIN_MS = 10_000, 3_600_000, 3_000, 2_000
_AHEAD_MS = 3_600_000
_HEADERS = ("tidemark.topic", "tidemark.partition", "tidemark.offset")


def check(
    bootstrap: str,
    dlq: str,
    found: Findings,
    may_double: bool = False,
    past: Past = NOTHING_PAST,
    excused: Collection[int] = (),
    timeout_s: float = 900,
) -> None:
    """Read all topics, recompute, compare, and add what differs. Nothing may be written meanwhile.

    `may_double`: of an application that processes each record at least once. `past` has elements of the queue that were
    deleted; those that are `excused` were deleted before anybody read them, and must not have come out.
    """
    _statistics(bootstrap, found, may_double, timeout_s)
    check_elements(bootstrap, QUEUE, "chaos-dequeued", found, past, excused, timeout_s)
    _events(bootstrap, dlq, found, may_double, timeout_s)


def _statistics(bootstrap: str, found: Findings, may_double: bool, timeout_s: float) -> None:
    """Kafka Streams' EOS system test: every minimum, maximum, sum and count that came out is right, in order, once.

    Of the millions of numbers only their keys' and their own are kept.
    """
    for place in partitions(bootstrap, ["chaos-numbers"]):
        keys: dict[bytes, int] = {}
        of, numbers = array("i"), array("q")
        for row in each_row(bootstrap, [place], timeout_s):
            of.append(keys.setdefault(row.key or b"", len(keys)))
            numbers.append(int((row.value or b"").rpartition(b":")[2][:-1]))
        found.records += len(numbers)
        results = each_row(bootstrap, [("chaos-stats", place[1])], timeout_s)
        compare = _compare_doubled_statistics if may_double else _compare_statistics
        compare(found, place[1], keys, np.asarray(of), np.asarray(numbers), results)


def _compare_statistics(
    found: Findings, partition: int, keys: Mapping[bytes, int], of: IntArray, values: IntArray, came: Iterable[Row]
) -> None:
    order = np.argsort(of, kind="stable")
    of, values = of[order], values[order]
    starts = np.searchsorted(of, np.arange(len(keys)))
    lengths = np.diff(np.append(starts, len(of)))
    total = np.cumsum(values)
    least, greatest = values.copy(), values.copy()
    for start, length in zip(starts, lengths, strict=True):
        part = slice(start, start + length)
        np.minimum.accumulate(values[part], out=least[part])
        np.maximum.accumulate(values[part], out=greatest[part])
    before = np.where(starts > 0, total[starts - 1], 0)
    newest = np.zeros(len(keys), np.int64)
    unlike, again = 0, list[tuple[str, int, int]]()
    for row in came:
        body = json.loads(row.value or b"{}")
        key, times = keys.get(row.key or b"", -1), body["times"]
        if key < 0 or not 1 <= times <= lengths[key]:
            unlike += 1
            continue
        at = starts[key] + times - 1
        if (body["least"], body["greatest"], body["total"]) != (least[at], greatest[at], total[at] - before[key]):
            unlike += 1
        elif times <= newest[key]:
            again.append(_place(row))
        else:
            newest[key] = times
    found.add("wrong", unlike, f"chaos-stats[{partition}]: no result of the numbers")
    found.add("duplicated", len(again), f"chaos-stats[{partition}]: a result that came before, or is older")
    found.again += again
    short = int((lengths - newest).clip(min=0).sum())
    found.add("lost", short, f"chaos-stats[{partition}]: numbers that no result counts")


def _compare_doubled_statistics(
    found: Findings, partition: int, keys: Mapping[bytes, int], of: IntArray, values: IntArray, came: Iterable[Row]
) -> None:
    """A number that is taken twice changes counts and sums; minima and maxima stay as they are."""
    order = np.argsort(of, kind="stable")
    of, values = of[order], values[order]
    starts = np.searchsorted(of, np.arange(len(keys)))
    lengths, totals = np.diff(np.append(starts, len(of))), np.add.reduceat(values, starts)
    least, greatest = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    newest: dict[bytes, dict[str, int]] = {}

    def sums() -> Iterator[tuple[bytes, tuple[int, int]]]:
        for row in came:
            key, body = row.key or b"", json.loads(row.value or b"{}")
            newest[key] = body
            yield key, (body["times"], body["total"])

    name = f"chaos-stats[{partition}]"
    wanted = {key: (int(lengths[at]), int(totals[at])) for key, at in keys.items()}
    found.compare_least(name, wanted, sums())
    bounds = {key: (int(least[at]), int(greatest[at])) for key, at in keys.items()}
    unlike = [key for key, body in newest.items() if (body["least"], body["greatest"]) != bounds.get(key)]
    found.add("wrong", len(unlike), f"{name}: no minimum and maximum of the numbers: {unlike[:3]}")


def check_elements(
    bootstrap: str,
    source: str,
    sink: str,
    found: Findings,
    past: Past = NOTHING_PAST,
    excused: Collection[int] = (),
    timeout_s: float = 900,
) -> None:
    """Jepsen's queue: every element once, in order, none that was aborted."""
    rows = read_all(bootstrap, [source, sink], timeout_s, past)
    for partition, given in by_partition(rows, source).items():
        came, name = rows[sink, partition], f"{sink}[{partition}]"
        found.records += len(given)
        elements = [json.loads(row.value or b"{}")["n"] for row in given]
        wanted = [element for element in elements if element not in excused]
        there = [json.loads(row.value or b"{}")["n"] for row in came]
        times = Counter(there)
        missing = set(wanted) - times.keys()
        found.add("lost", len(missing), f"{name}: {sorted(missing)[:3]}")
        seen, again = set[int](), list[tuple[str, int, int]]()
        for row, element in zip(came, there, strict=True):
            if element in seen:
                again.append(_place(row))
            seen.add(element)
        found.add("duplicated", len(again), name)
        found.again += again
        strange = times.keys() - set(wanted)
        found.add("wrong", len(strange), f"{name}: was aborted, or deleted before it was read: {sorted(strange)[:3]}")
        once = list(dict.fromkeys(n for n in there if n not in strange))
        places = {element: at for at, element in enumerate(wanted)}
        swapped = sum(places[a] > places[b] for a, b in pairwise(once))
        found.add("wrong", swapped, f"{name}: in another order")


def _events(bootstrap: str, dlq: str, found: Findings, may_double: bool, timeout_s: float) -> None:
    sinks = ["chaos-finals", "chaos-sessions", "chaos-pairs", "chaos-named", "chaos-totals", "chaos-kinds"]
    rows = read_all(bootstrap, ["chaos-events", "chaos-others", *sinks, dlq], timeout_s)
    events, bad = _readable(_of(rows, "chaos-events"), {"id": str, "ts": int, "v": int, "kind": str})
    others, more = _readable(_of(rows, "chaos-others"), {"id": str, "ts": int, "w": int})
    found.records += len(events) + len(others) + len(bad) + len(more)
    refused = [_place(row) for row, body in events if body["v"] >= REFUSED]
    letters = Counter(map(_letter, _of(rows, dlq)))
    found.compare("dead letters", Counter([*map(_place, [*bad, *more]), *refused]), letters)
    came = {topic: [json.loads(row.value) for row in _of(rows, topic) if row.value is not None] for topic in sinks}
    by_key, others_by_key = _by_key(events), _by_key(others)
    last_ms = max((body["ts"] for own in by_key.values() for body in own), default=0)
    finals, pairs, totals = Counter[Any](), Counter[Any](), Counter[Any]()
    for key, own in by_key.items():
        finals.update(_windows(key, own, last_ms))
        pairs.update(_pairs(own, others_by_key.get(key, [])))
        totals.update((key, total) for total in accumulate(b["v"] for b in own if b["v"] < REFUSED))
    named = Counter((b["v"], f"name {int(b['id'][1:])}") for own in by_key.values() for b in own if b["id"][0] == "i")
    found.compare("chaos-named", named, Counter((b["v"], b["name"]) for b in came["chaos-named"]))
    found.compare("chaos-pairs", pairs, Counter((b["v"], b["w"]) for b in came["chaos-pairs"]))
    # What closes the windows has one key in all partitions, and nothing follows it.
    by_key.pop(LAST, None)
    came["chaos-sessions"] = [body for body in came["chaos-sessions"] if body["id"] != LAST]
    came["chaos-kinds"] = [body for body in came["chaos-kinds"] if body["kind"] != LAST]
    sessions, kinds = _session_steps(by_key), _sums_by_kind(by_key)
    if may_double:
        _compare_doubled_events(found, came, finals, totals, sessions, kinds)
        return
    found.compare(
        "chaos-finals", finals, Counter((b["id"], b["window_start"], b["count"]) for b in came["chaos-finals"])
    )
    found.compare("chaos-totals", totals, Counter((b["id"], b["total"]) for b in came["chaos-totals"]))
    _sessions(found, sessions, came["chaos-sessions"])
    _kinds(found, kinds, came["chaos-kinds"])


def _by_key(rows: Iterable[tuple[Row, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _, body in rows:
        found[body["id"]].append(body)
    return found


def _readable(rows: Iterable[Row], fields: Mapping[str, type]) -> tuple[list[tuple[Row, dict[str, Any]]], list[Row]]:
    """Records that can be processed, and those that cannot, by the rules of the documentation."""
    good, bad = [], []
    for row in rows:
        try:
            body = json.loads(row.value or b"")
        except ValueError:
            body = None
        fits = isinstance(body, dict) and all(
            isinstance(body.get(name), kind) and not isinstance(body.get(name), bool) for name, kind in fields.items()
        )
        if (
            isinstance(body, dict)
            and fits
            and body["id"].encode() == row.key
            and 0 <= body["ts"] <= row.timestamp_ms + _AHEAD_MS
        ):
            good.append((row, body))
        else:
            bad.append(row)
    return good, bad


def _place(row: Row) -> tuple[str, int, int]:
    return row.topic, row.partition, row.offset


def _letter(letter: Row) -> tuple[str, int, int]:
    """The coordinates of the record that a dead letter is about."""
    headers = dict(letter.headers)
    topic, partition, offset = (headers[name].decode() for name in _HEADERS)
    return topic, int(partition), int(offset)


def _of(rows: Mapping[tuple[str, int], list[Row]], topic: str) -> list[Row]:
    return [row for place, found in sorted(rows.items()) if place[0] == topic for row in found]


def _windows(key: str, own: list[dict[str, Any]], last_ms: int) -> Iterator[tuple[str, int, int]]:
    """Windows that are over: each comes once."""
    for start, number in Counter(body["ts"] // _WINDOW_MS * _WINDOW_MS for body in own).items():
        if start + _WINDOW_MS + _GRACE_MS <= last_ms:
            yield key, start, number


def _pairs(own: list[dict[str, Any]], others: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Both come in the order of their time."""
    first = 0
    for body in own:
        while first < len(others) and others[first]["ts"] < body["ts"] - _WITHIN_MS:
            first += 1
        for other in others[first:]:
            if other["ts"] > body["ts"] + _WITHIN_MS:
                break
            yield body["v"], other["w"]


def _session_steps(by_key: Mapping[str, list[dict[str, Any]]]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """By key and start: end and sum of each session after each of its events."""
    steps: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for key, own in by_key.items():
        start, end, total = 0, -_GAP_MS, 0
        for body in own:
            if body["ts"] - end > _GAP_MS:
                start, total = body["ts"], 0
            end, total = body["ts"], total + body["v"]
            steps.setdefault((key, start), []).append((end, total))
    return steps


def _sums_by_kind(by_key: Mapping[str, list[dict[str, Any]]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for own in by_key.values():
        for body in own:
            sums[body["kind"]] += body["v"]
    return sums


def _sessions(
    found: Findings, steps: Mapping[tuple[str, int], list[tuple[int, int]]], came: list[dict[str, Any]]
) -> None:
    """A session comes as it stands after some of its events, each time further on, and as it ends."""
    places = {session: {step: at for at, step in enumerate(of)} for session, of in steps.items()}
    newest: dict[tuple[str, int], int] = {}
    for body in came:
        session = body["id"], body["window_start"]
        at = places.get(session, {}).get((body["window_end"], body["sum"]))
        if at is None:
            found.add("wrong", 1, f"chaos-sessions: follows from nothing: {body}")
        elif at <= newest.get(session, -1):
            found.add("duplicated", 1, f"chaos-sessions: {body}")
        else:
            newest[session] = at
    short = [session for session, of in steps.items() if newest.get(session, -1) < len(of) - 1]
    found.add("lost", len(short), f"chaos-sessions: the ends of {short[:3]}")


def _kinds(found: Findings, wanted: Mapping[str, int], came: list[dict[str, Any]]) -> None:
    """Behind the re-key the order is the application's own: totals grow, and the last one is that of all events."""
    newest: dict[str, int] = {}
    for body in came:
        again = body["total"] <= newest.get(body["kind"], -1)
        found.add("duplicated", again, f"chaos-kinds: {body} is not newer than {newest.get(body['kind'])}")
        newest[body["kind"]] = body["total"]
    short = [kind for kind in wanted if newest.get(kind, -1) < wanted[kind]]
    found.add("lost", len(short), f"chaos-kinds: {[(kind, newest.get(kind), wanted[kind]) for kind in short[:3]]}")
    large = [kind for kind in newest if newest[kind] > wanted[kind]]
    found.add("duplicated", len(large), f"chaos-kinds: {large[:3]} are too large")


def _compare_doubled_events(
    found: Findings,
    came: Mapping[str, list[dict[str, Any]]],
    finals: Iterable[tuple[str, int, int]],
    totals: Iterable[tuple[str, int]],
    sessions: Mapping[tuple[str, int], list[tuple[int, int]]],
    kinds: Mapping[str, int],
) -> None:
    """Counts and sums, each of which must be in the end what all events make, at least."""
    windows = {(key, start): number for key, start, number in finals}
    found.compare_least(
        "chaos-finals", windows, (((b["id"], b["window_start"]), b["count"]) for b in came["chaos-finals"])
    )
    found.compare_least("chaos-totals", dict(sorted(totals)), ((b["id"], b["total"]) for b in came["chaos-totals"]))
    found.compare_least(
        "chaos-sessions",
        {session: steps[-1] for session, steps in sessions.items()},
        (((b["id"], b["window_start"]), (b["window_end"], b["sum"])) for b in came["chaos-sessions"]),
    )
    found.compare_least("chaos-kinds", kinds, ((b["kind"], b["total"]) for b in came["chaos-kinds"]))
