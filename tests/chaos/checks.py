"""What must have come out, from what went in alone: nothing here knows Tidemark's code, commit records or batches.

Statistics and sessions come in steps, of which batches skip some: one that comes a second time, or behind a later one, is
duplicated, and where the last one is missing, something was lost. Everything else comes once per record, pair or window.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from tests.chaos.feeding import LAST
from tests.chaos.processor import REFUSED
from tests.truth.topics import Row, by_partition, each_row, partitions, read_all

IntArray = np.ndarray[Any, np.dtype[np.int64]]
_WINDOW_MS, _GRACE_MS, _GAP_MS, _WITHIN_MS = 10_000, 3_600_000, 3_000, 2_000
_AHEAD_MS = 3_600_000
_HEADERS = ("tidemark.topic", "tidemark.partition", "tidemark.offset")


@dataclass
class Findings:
    """What differs, and how many records were looked at."""

    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    records: int = 0
    report: list[str] = field(default_factory=list)
    again: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, partition and offset of statistics and of the queue's elements that came once more."""

    def add(self, kind: str, number: int, text: str) -> None:
        """`number` more of a kind; one line about them."""
        if number:
            setattr(self, kind, getattr(self, kind) + int(number))
            self.report.append(f"{kind}: {number} × {text}")

    def compare(self, name: str, wanted: Counter[Any], there: Counter[Any]) -> None:
        """What must come a number of times each."""
        missing = wanted - there
        self.add("lost", missing.total(), f"{name}: {list(missing)[:3]}")
        again = Counter({one: n - wanted[one] for one, n in there.items() if one in wanted and n > wanted[one]})
        self.add("duplicated", again.total(), f"{name}: {list(again)[:3]}")
        strange = [one for one in there if one not in wanted]
        self.add("wrong", len(strange), f"{name}: follows from nothing: {strange[:3]}")


def check(bootstrap: str, dlq: str, found: Findings, timeout_s: float = 900) -> None:
    """Read all topics, recompute, compare, and add what differs. Nothing may be written meanwhile."""
    _statistics(bootstrap, found, timeout_s)
    _queue(bootstrap, found, timeout_s)
    _events(bootstrap, dlq, found, timeout_s)


def _statistics(bootstrap: str, found: Findings, timeout_s: float) -> None:
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
        _compare_statistics(found, place[1], keys, np.asarray(of), np.asarray(numbers), results)


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


def _queue(bootstrap: str, found: Findings, timeout_s: float) -> None:
    """Jepsen's queue: every element once, in order, none that was aborted."""
    rows = read_all(bootstrap, ["chaos-queue", "chaos-dequeued"], timeout_s)
    for partition, given in by_partition(rows, "chaos-queue").items():
        came = rows["chaos-dequeued", partition]
        found.records += len(given)
        wanted = [json.loads(row.value or b"{}")["n"] for row in given]
        there = [json.loads(row.value or b"{}")["n"] for row in came]
        times = Counter(there)
        missing = set(wanted) - times.keys()
        found.add("lost", len(missing), f"chaos-dequeued[{partition}]: {sorted(missing)[:3]}")
        seen, again = set[int](), list[tuple[str, int, int]]()
        for row, element in zip(came, there, strict=True):
            if element in seen:
                again.append(_place(row))
            seen.add(element)
        found.add("duplicated", len(again), f"chaos-dequeued[{partition}]")
        found.again += again
        aborted = times.keys() - set(wanted)
        found.add("wrong", len(aborted), f"chaos-dequeued[{partition}]: was never committed: {sorted(aborted)[:3]}")
        once = list(dict.fromkeys(n for n in there if n not in aborted))
        places = {element: at for at, element in enumerate(wanted)}
        swapped = sum(places[a] > places[b] for a, b in pairwise(once))
        found.add("wrong", swapped, f"chaos-dequeued[{partition}]: in another order")


def _events(bootstrap: str, dlq: str, found: Findings, timeout_s: float) -> None:
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
    wanted: dict[str, Counter[Any]] = {"finals": Counter(), "pairs": Counter(), "totals": Counter()}
    for key, own in by_key.items():
        wanted["finals"].update(_windows(key, own, last_ms))
        wanted["pairs"].update(_pairs(own, others_by_key.get(key, [])))
        wanted["totals"].update((key, total) for total in accumulate(b["v"] for b in own if b["v"] < REFUSED))
    named = Counter((b["v"], f"name {int(b['id'][1:])}") for own in by_key.values() for b in own if b["id"][0] == "i")
    found.compare("chaos-named", named, Counter((b["v"], b["name"]) for b in came["chaos-named"]))
    there = Counter((b["id"], b["window_start"], b["count"]) for b in came["chaos-finals"])
    found.compare("chaos-finals", wanted["finals"], there)
    found.compare("chaos-pairs", wanted["pairs"], Counter((b["v"], b["w"]) for b in came["chaos-pairs"]))
    found.compare("chaos-totals", wanted["totals"], Counter((b["id"], b["total"]) for b in came["chaos-totals"]))
    # What closes the windows has one key in all partitions, and nothing follows it.
    by_key.pop(LAST, None)
    _sessions(found, by_key, [body for body in came["chaos-sessions"] if body["id"] != LAST])
    _kinds(found, by_key, [body for body in came["chaos-kinds"] if body["kind"] != LAST])


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


def _sessions(found: Findings, by_key: Mapping[str, list[dict[str, Any]]], came: list[dict[str, Any]]) -> None:
    """A session comes as it stands after some of its events, each time further on, and as it ends."""
    steps: dict[tuple[str, int], dict[tuple[int, int], int]] = {}
    for key, own in by_key.items():
        start, end, total = 0, -_GAP_MS, 0
        for body in own:
            if body["ts"] - end > _GAP_MS:
                start, total = body["ts"], 0
            end, total = body["ts"], total + body["v"]
            of = steps.setdefault((key, start), {})
            of[end, total] = len(of)
    newest: dict[tuple[str, int], int] = {}
    for body in came:
        session = body["id"], body["window_start"]
        at = steps.get(session, {}).get((body["window_end"], body["sum"]))
        if at is None:
            found.add("wrong", 1, f"chaos-sessions: follows from nothing: {body}")
        elif at <= newest.get(session, -1):
            found.add("duplicated", 1, f"chaos-sessions: {body}")
        else:
            newest[session] = at
    short = [session for session, of in steps.items() if newest.get(session, -1) < len(of) - 1]
    found.add("lost", len(short), f"chaos-sessions: the ends of {short[:3]}")


def _kinds(found: Findings, by_key: Mapping[str, list[dict[str, Any]]], came: list[dict[str, Any]]) -> None:
    """Behind the re-key the order is the application's own: totals grow, and the last one is that of all events."""
    wanted: Counter[str] = Counter()
    for own in by_key.values():
        for body in own:
            wanted[body["kind"]] += body["v"]
    newest: dict[str, int] = {}
    for body in came:
        again = body["total"] <= newest.get(body["kind"], -1)
        found.add("duplicated", again, f"chaos-kinds: {body} is not newer than {newest.get(body['kind'])}")
        newest[body["kind"]] = body["total"]
    short = [kind for kind in wanted if newest.get(kind, -1) < wanted[kind]]
    found.add("lost", len(short), f"chaos-kinds: {[(kind, newest.get(kind), wanted[kind]) for kind in short[:3]]}")
    large = [kind for kind in newest if newest[kind] > wanted[kind]]
    found.add("duplicated", len(large), f"chaos-kinds: {large[:3]} are too large")
