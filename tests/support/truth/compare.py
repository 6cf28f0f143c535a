"""Compares what an application wrote with what it must have written, and never trusts its counters."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.support.truth.recompute import PATIENT_MONITORING, Coordinate, Counting, Truth, WindowKey
from tests.support.truth.topics import NOTHING_PAST, Past, Row, by_partition, committed_offsets, hidden_ends, read_all

CHANGELOG_VALUE = struct.Struct("<BBqq")
"""Schema version, validity bits, newest timestamp, count."""

WINDOW_START = struct.Struct(">q")
"""The last eight bytes of a window store's key."""


class Claim(Enum):
    """What a changelog is held to."""

    EVERY_UPDATE = "every update, once and in order"
    LAST_VALUES = "the last value of every key: it was written again"
    WHAT_IS_LEFT = "the last values of the keys that it holds: its beginning is gone"
    NOTHING = "nothing: it is known to be damaged"


@dataclass
class Difference:
    """Updates of one topic that should be there and are not, are there twice, or have another value."""

    missing: int = 0
    duplicated: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep the first few, for a person to begin with."""
        if len(self.examples) < 20:
            self.examples.append(text)

    def __bool__(self) -> bool:
        return bool(self.missing or self.duplicated or self.wrong)


@dataclass
class Comparison:
    """The verdict on one application."""

    sink: Difference
    changelog: Difference
    dead_letters: Difference
    dlq: int
    expected_dlq: int
    faults: list[str]

    @property
    def missing(self) -> int:
        return self.sink.missing + self.changelog.missing + self.dead_letters.missing

    @property
    def duplicated(self) -> int:
        return self.sink.duplicated + self.changelog.duplicated + self.dead_letters.duplicated

    @property
    def wrong(self) -> int:
        """Wrong values, and faults of commit records and offsets."""
        return self.sink.wrong + self.changelog.wrong + self.dead_letters.wrong + len(self.faults)

    @property
    def exact(self) -> bool:
        return not (self.missing or self.duplicated or self.wrong)

    def report(self) -> list[str]:
        """One line per fault; empty when all is exact."""
        lines = [f"commits: {fault}" for fault in self.faults[:20]]
        for name in ("sink", "changelog", "dead_letters"):
            lines.extend(f"{name}: {example}" for example in getattr(self, name).examples)
        return lines


Updates = dict[WindowKey, list[int]]
Logged = dict[WindowKey, list[int | None]]
"""None is a deletion, which only a rewind writes."""


def sink_updates(rows: Iterable[Row], rules: Counting, into: Difference) -> Updates:
    """Counts in the order in which each window's were written. A malformed record is wrong."""
    updates: Updates = {}
    for row in rows:
        try:
            value = json.loads(row.value or b"")
            key, start, end = value[rules.key_field], value["window_start"], value["window_end"]
            count = value[rules.count_field]
        except (ValueError, KeyError, TypeError):
            key = None
        if key is None or row.key != key.encode() or end != start + rules.window_ms:
            into.wrong += 1
            into.note(f"{row.topic}[{row.partition}]@{row.offset} is not an output: {row.key!r} {row.value!r}")
            continue
        updates.setdefault((key, start), []).append(count)
    return updates


def changelog_updates(rows: Iterable[Row], rules: Counting, truth: Truth, into: Difference) -> Logged:
    """Counts in the order in which each window's were logged; a record in another task's partition is wrong."""
    updates: Logged = {}
    for row in rows:
        key = row.key or b""
        if len(key) <= WINDOW_START.size or len(row.value or bytes(CHANGELOG_VALUE.size)) != CHANGELOG_VALUE.size:
            into.wrong += 1
            into.note(f"{row.topic}[{row.partition}]@{row.offset} is not a window's count: {row.key!r} {row.value!r}")
            continue
        window = (key[: -WINDOW_START.size].decode(), WINDOW_START.unpack(key[-WINDOW_START.size :])[0])
        if truth.homes.get(window, row.partition) != row.partition:
            into.wrong += 1
            into.note(f"{window} is logged in partition {row.partition}, not {truth.homes[window]}")
        updates.setdefault(window, []).append(None if row.value is None else CHANGELOG_VALUE.unpack(row.value)[3])
    return updates


def compare_updates(
    expected: Mapping[WindowKey, Sequence[int | None]],
    found: Mapping[WindowKey, Sequence[int | None]],
    into: Difference,
) -> Difference:
    """Each window's counts must be those of its batches, each once and in order.

    A count only grows from batch to batch, so within one window every expected value is another, unless a rewind made
    it come again. `missing`: expected, not there. `duplicated`: there more often than expected. `wrong`: a value that no
    batch produced, an order other than the batches', or a window that should not be.
    """
    for window in expected.keys() | found.keys():
        want, have = expected.get(window, []), found.get(window, [])
        if want == have:
            continue
        times, wanted = Counter(have), Counter(want)
        lost = (wanted - times).total()
        again = sum(n for value, n in (times - wanted).items() if value in wanted)
        strange = sum(n for value, n in times.items() if value not in wanted)
        into.missing += lost
        into.duplicated += again
        into.wrong += strange
        if not (lost or again or strange):
            into.wrong += 1
        into.note(f"{window}: expected {want}, found {have}")
    return into


def compare_last(truth: Truth, found: Logged, claim: Claim, into: Difference) -> None:
    """Each window's last value in the changelog against its count."""
    have = {window: counts[-1] for window, counts in found.items() if counts[-1] is not None}
    for window in truth.counts.keys() | have.keys():
        want, there = truth.counts.get(window), have.get(window)
        if want == there or (there is None and claim is Claim.WHAT_IS_LEFT):
            continue
        into.wrong += 1
        into.note(f"{window}: the last value is {there}, should be {want}")


def coordinate(row: Row) -> Coordinate | None:
    """Where a dead letter came from, by its headers; None when they do not say."""
    headers = dict(row.headers)
    try:
        topic = headers["tidemark.topic"].decode()
        return topic, int(headers["tidemark.partition"]), int(headers["tidemark.offset"])
    except (KeyError, ValueError, AttributeError):
        return None


def compare_dead_letters(
    expected: Mapping[Coordinate, Row],
    found: Iterable[Row],
    into: Difference,
    read_again: Mapping[Coordinate, int] | None = None,
) -> Difference:
    """Each bad record once, with its own bytes and a reason; `read_again` times more where a rewind made it be read."""
    times: Counter[Coordinate] = Counter()
    for row in found:
        origin = coordinate(row)
        if origin is None or origin not in expected:
            into.wrong += 1
            into.note(f"{row.topic}[{row.partition}]@{row.offset} should not be there: {row.headers} {row.value!r}")
            continue
        times[origin] += 1
        bad = expected[origin]
        if (row.key, row.value) != (bad.key, bad.value) or not dict(row.headers).get("tidemark.reason"):
            into.wrong += 1
            into.note(f"{origin}: {row.key!r} {row.value!r} {row.headers} instead of {bad.key!r} {bad.value!r}")
    for origin in expected:
        if not times[origin]:
            into.missing += 1
            into.note(f"{origin} is missing: {expected[origin].value!r}")
    for origin, n in times.items():
        allowed = 1 + (read_again or {}).get(origin, 0)
        if n > allowed:
            into.duplicated += n - allowed
            into.note(f"{origin} is there {n} times")
    return into


def compare(
    bootstrap: str,
    truth: Truth,
    rules: Counting = PATIENT_MONITORING,
    timeout_s: float = 60.0,
    *,
    all_read: bool = True,
    past: Past = NOTHING_PAST,
    claim: Claim = Claim.EVERY_UPDATE,
) -> Comparison:
    """Read sink, changelog, dead letters and offsets (read_committed) and compare them with `truth`.

    With `all_read`, every record of the source must be in a batch. Call it while nothing is being committed: the
    group's offsets must equal the ends of the last batches. Blocks for the time of the reading; raises `Unreadable`.
    """
    topics = (rules.sink_topic, rules.changelog_topic, rules.dlq_topic)
    rows = read_all(bootstrap, topics, timeout_s, past)
    flat = {topic: [row for part in by_partition(rows, topic).values() for row in part] for topic in topics}
    sink, changelog = Difference(), Difference()
    compare_updates(truth.histories, sink_updates(flat[rules.sink_topic], rules, sink), sink)
    if claim is not Claim.NOTHING:
        logged = changelog_updates(flat[rules.changelog_topic], rules, truth, changelog)
        if claim is Claim.EVERY_UPDATE:
            compare_updates(truth.logged, logged, changelog)
        else:
            compare_last(truth, logged, claim, changelog)
    dead = compare_dead_letters(truth.dead, flat[rules.dlq_topic], Difference(), truth.dead_again)
    faults = list(truth.faults)
    if all_read and truth.unprocessed:
        faults.append(f"{truth.unprocessed} records of {rules.source_topic} are in no batch")
    lasts = {(rules.source_topic, p): t.next_offset for p, t in truth.tasks.items() if t.next_offset is not None}
    for place, offset in committed_offsets(bootstrap, rules.application_id, lasts).items():
        if offset != lasts[place]:
            faults.append(f"committed offset of {place} is {offset}, its last commit record ends at {lasts[place]}")
    for place, ends in hidden_ends(bootstrap, (rules.source_topic, rules.commits_topic, *topics)).items():
        faults.append(f"{place}: read_committed end {ends[0]} is not the read_uncommitted end {ends[1]}")
    return Comparison(
        sink, changelog, dead, len(flat[rules.dlq_topic]), len(truth.dead) + truth.dead_again.total(), faults
    )
