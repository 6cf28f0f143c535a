"""Output topics reduced to what must be equal, and compared value by value."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.truth.topics import Row, read_all
from tests.system.peers.cases import Case, Compared
from tests.system.peers.inputs import SENTINEL
from tests.system.peers.model import Reduced

MALFORMED = "malformed"
_SHOWN = 10


@dataclass(frozen=True)
class Verdict:
    """How many values all sides agree on, how many not, and the first few of those."""

    equal: int
    different: int
    examples: list[str]


def read_reduced(bootstrap: str, case: Case, topic: str) -> tuple[Reduced, int]:
    """Read an output topic as a read_committed consumer would, to its end, and reduce it; also how many records it has.

    Raises `Unreadable` when an open transaction hides its end for a minute.
    """
    rows = [row for of_partition in read_all(bootstrap, [topic]).values() for row in of_partition]
    return reduce(case, rows), len(rows)


def reduce(case: Case, rows: Iterable[Row]) -> Reduced:
    """Rows of one key in the order of their offsets; what is not an output of the case stays, under `MALFORMED`."""
    own = [row for row in rows if not (row.key or b"").startswith(SENTINEL.encode())]
    if case.compared is Compared.ALL:
        return dict(Counter((_key(row), *_fields(row, case.fields)) for row in own))
    if case.compared is Compared.LAST_PER_KEY:
        latest = {(_key(row),): None if row.value is None else _fields(row, case.fields) for row in own}
        return {key: fields for key, fields in latest.items() if fields is not None}
    last: Reduced = {}
    for row in own:
        if row.value is None and case.compared is Compared.SESSIONS:
            # A session that was taken into a larger one: its record names no window, and the larger one is here.
            continue
        start, end, *counted = _fields(row, case.fields)
        last[_key(row), start, end] = tuple(counted)
    return _outermost(last) if case.compared is Compared.SESSIONS else last


def compare(sides: Mapping[str, Reduced]) -> Verdict:
    """A value is equal when every side has it."""
    places = set().union(*sides.values())
    examples = []
    equal = 0
    for place in places:
        values = {name: reduced.get(place) for name, reduced in sides.items()}
        if len(set(values.values())) == 1:
            equal += 1
        elif len(examples) < _SHOWN:
            examples.append(f"{place}: " + ", ".join(f"{name} {value}" for name, value in values.items()))
    return Verdict(equal, len(places) - equal, examples)


def _key(row: Row) -> str:
    return (row.key or b"").decode(errors="replace")


def _fields(row: Row, names: tuple[str, ...]) -> tuple[Any, ...]:
    """The named fields, if the record has just those and its own key as `id`; then its timestamp."""
    try:
        value = json.loads(row.value or b"")
        if set(value) == {"id", *names} and value["id"] == _key(row):
            return (*(value[name] for name in names), row.timestamp_ms)
    except (ValueError, TypeError):
        pass
    return (MALFORMED, *[str(row.value)] * (len(names) - 1), row.timestamp_ms)


def _outermost(sessions: Reduced) -> Reduced:
    """Without the sessions that grew into another one: a session that grows is written anew, with another start or end."""
    kept = {place: count for place, count in sessions.items() if MALFORMED in place}
    by_key: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, start, end in sessions.keys() - kept.keys():
        by_key[key].append((start, end))
    for key, spans in by_key.items():
        # From the earliest start, and of one start from the latest end: what lies inside another comes behind it.
        latest = -1
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            if end > latest:
                kept[key, start, end] = sessions[key, start, end]
                latest = end
    return kept
