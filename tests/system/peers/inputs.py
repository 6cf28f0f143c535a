"""Inputs on which Tidemark and Kafka Streams must agree, although they judge time differently.

In windowed aggregations Kafka Streams compares each record with the stream time that the record before it left, Tidemark
with the stream time at the start of the batch. So every record of theirs is one of these, per partition:

- **in time**: at most 4 s behind the newest record before it, which is within the grace period of both;
- **late**: its windows were closed already by a record `reach` records earlier in the same partition. A batch holds at
  most `reach` records, so they were closed when its batch began, too. Sessions are short (a key is silent 90 s of every
  240 s), so a late record never falls into a live one;
- **repeated**: an in-time or late record once more, bit for bit.

Joins and tables take one record after another on both sides, two topics by the same rule: all their records are
there before a side starts, or come in stages that fill one topic only and are produced when everything before has been
committed. No timestamp is in both topics, for Kafka Streams leaves open which of two equal ones comes first. So:

- **an inner stream join's** records are as late as they like;
- **an outer one's** are at most 8 s late, or so late that no partner is left: which rows are given alone before a late
  partner comes depends in Kafka Streams on when it looks through them;
- **a table's** timestamps go back by up to ten minutes, also within a key: the last by offset stays.

What `lru` and `ttl` forget leaves Kafka Streams' stores with the record that makes it so, and Tidemark's at the end of a
batch, where the keys of one batch were used at the same time and go in the order of their bytes. So writes and questions
come in turns, each in a stage of its own whose keys ascend; and no key is asked for within minutes of its TTL.

Where windows have to close, each partition ends with a record one hour ahead, under a key that is left out of the
comparison. Timestamps are multiples of 125 ms, so that records do fall on the ends of windows and gaps. `v` is unique per
record and topic; in a question it is below 0. The Kafka timestamp is `ts`; a key's partition is murmur2's.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from tests.system.peers.cases import (
    APART_MS,
    DIFFERENCE_MS,
    GAP_MS,
    GRACE_MS,
    JOIN_GRACE_MS,
    MAX_ENTRIES,
    PARTITIONS,
    SIZE_MS,
    TTL_MS,
    Case,
)

from tidemark.kafka.partitioner import partitions_of

SENTINEL = "end-"
IDS = 500
_TICK_MS = 250
_MINUTE_MS = 60_000
_LATE_SHARE = 0.05
_REPEATED_SHARE = 0.03
_OUT_OF_ORDER_SHARE = 0.2
_PERIOD_MS, _ACTIVE_MS = 240_000, 150_000
_AHEAD_MS = 60 * _MINUTE_MS
_MOST_BACK_MS = 10 * _MINUTE_MS
_TURNS = 5


class Record(NamedTuple):
    """One record of an input topic; without `v` it has no value at all and deletes its key."""

    partition: int
    key: str
    ts_ms: int
    v: int | None

    @property
    def value(self) -> bytes | None:
        """As produced."""
        return None if self.v is None else json.dumps({"id": self.key, "ts": self.ts_ms, "v": self.v}).encode()


Stage = dict[str, list[Record]]
"""Role to records, those of each partition in the order of their offsets."""


@dataclass(frozen=True)
class Size:
    """How much: `reach` is at least what Tidemark takes in one batch; event time begins at `start_ms`, a whole minute."""

    records: int
    reach: int
    start_ms: int
    seed: int


def stages(case: Case, size: Size) -> list[Stage]:
    """The input of a case; the same arguments give the same records."""
    rng = random.Random(f"{case.name} {size.seed}")
    size = replace(size, reach=case.batch_records(size.reach))
    match case.name:
        case "session":
            # Also the sessions around a late record must have ended and been closed.
            return [_windowed(size, rng, GAP_MS + GRACE_MS + _PERIOD_MS, in_bursts=True)]
        case "sliding":
            return [_windowed(size, rng, DIFFERENCE_MS + GRACE_MS)]
        case "tumbling" | "hopping" | "suppress" | "rekey":
            return [_windowed(size, rng, SIZE_MS + GRACE_MS)]
        case "backlog":
            return [_backlog(size, rng)]
        case "stream-stream":
            return [_two_streams(size, rng, late_by_ms=0)]
        case "stream-stream-left" | "stream-stream-outer":
            # Partners are kept for twice APART_MS and the grace.
            return [_two_streams(size, rng, late_by_ms=3 * APART_MS + 2 * JOIN_GRACE_MS)]
        case "stream-table" | "stream-table-left":
            return _lookups(size, rng, deleted_share=0.6 if case.name.endswith("left") else 0.25)
        case "lru" | "ttl":
            return _turns(size, rng)
        case _:
            return [_tables(size, rng, case.roles)]


def late_records(stage: Stage, role: str, behind_ms: int) -> int:
    """How many records are more than `behind_ms` behind the newest before them in their partition."""
    newest: dict[int, int] = {}
    late = 0
    for record in stage.get(role, ()):
        newest[record.partition] = max(newest.get(record.partition, record.ts_ms), record.ts_ms)
        late += newest[record.partition] - record.ts_ms > behind_ms
    return late


def keys_by_partition(prefix: str, names: int) -> dict[int, list[str]]:
    """`prefix` with numbers, under the partition that murmur2 gives each."""
    keys = [f"{prefix}{number:04d}" for number in range(names)]
    homes: defaultdict[int, list[str]] = defaultdict(list)
    for key, partition in zip(keys, partitions_of([key.encode() for key in keys], PARTITIONS).tolist(), strict=True):
        homes[partition].append(key)
    return homes


def _nows(rng: random.Random, start_ms: int, records: int, mean_step_ms: int) -> list[int]:
    """Times that never go back and often repeat."""
    now_ms, nows = start_ms, []
    for _ in range(records):
        now_ms += _TICK_MS * rng.randrange(0, 2 * mean_step_ms // _TICK_MS + 1)
        nows.append(now_ms)
    return nows


def _back_ms(rng: random.Random, most_ms: int) -> int:
    """How far an out-of-order record lies behind: a tick at least."""
    return _TICK_MS * rng.randrange(1, most_ms // _TICK_MS + 1)


class _Course:
    """The records of one partition of one topic, while its task's stream time goes on."""

    def __init__(self, rng: random.Random, keys: list[str], numbers: Iterator[int], partition: int) -> None:
        self._rng, self._keys, self._numbers, self._partition = rng, keys, numbers, partition
        self._recent: deque[tuple[Record, bool]] = deque(maxlen=5)
        self._phases = {key: rng.randrange(_PERIOD_MS) for key in keys}

    def next(
        self, now_ms: int, most_behind_ms: int, late_before_ms: int | None, late_share: float, in_bursts: bool = False
    ) -> Record:
        """One more record at `now_ms`, or before; a late one lies before `late_before_ms`."""
        rng, chance = self._rng, self._rng.random()
        if late_before_ms is not None and chance < late_share:
            return self._add(late_before_ms - _back_ms(rng, _MOST_BACK_MS), in_bursts, is_late=True)
        if chance > 1 - _REPEATED_SHARE and self._recent:
            record, is_late = rng.choice(self._recent)
            if is_late or now_ms - record.ts_ms <= most_behind_ms:
                return record
        if chance > 1 - _REPEATED_SHARE - _OUT_OF_ORDER_SHARE:
            return self._add(now_ms - _back_ms(rng, most_behind_ms), in_bursts)
        return self._add(now_ms, in_bursts)

    def _add(self, ts_ms: int, in_bursts: bool, is_late: bool = False) -> Record:
        keys = self._keys
        if in_bursts:
            keys = [key for key in keys if (ts_ms + self._phases[key]) % _PERIOD_MS < _ACTIVE_MS]
        record = Record(self._partition, self._rng.choice(keys), ts_ms, next(self._numbers))
        self._recent.append((record, is_late))
        return record


def _late_share(records: int, reach: int) -> float:
    """Chance of each record that can be late, so that of all 5 % are."""
    return min(0.3, _LATE_SHARE * records / (records - reach)) if records > reach else 0.0


def _windowed(size: Size, rng: random.Random, closed_ms: int, in_bursts: bool = False) -> Stage:
    numbers, found = count(), []
    each = size.records // PARTITIONS
    share = _late_share(each, size.reach)
    for partition, keys in sorted(keys_by_partition("k", IDS).items()):
        course, newest = _Course(rng, keys, numbers, partition), list[int]()
        for place, now_ms in enumerate(_nows(rng, size.start_ms, each - 1, 125)):
            before_ms = newest[place - size.reach] - closed_ms if place >= size.reach else None
            record = course.next(now_ms, GRACE_MS - 1000, before_ms, share, in_bursts)
            newest.append(max(newest[-1] if newest else 0, record.ts_ms))
            found.append(record)
        found.append(_sentinel(partition, newest[-1] + _AHEAD_MS))
    return {"in": found}


def _backlog(size: Size, rng: random.Random) -> Stage:
    """A stream, and a table of a few records that are all newer: read ahead, they must not make the stream late."""
    stream = _windowed(size, rng, SIZE_MS + GRACE_MS)["in"]
    newest_ms = max(record.ts_ms for record in stream if not record.key.startswith(SENTINEL))
    homes = keys_by_partition("k", IDS)
    table = [
        Record(partition, key, newest_ms + _TICK_MS // 2 + 10 * _MINUTE_MS + _back_ms(rng, _MINUTE_MS), number)
        for partition in range(PARTITIONS)
        for number, key in enumerate(rng.sample(homes[partition], 5))
    ]
    return {"stream": stream, "table": table}


def _two_streams(size: Size, rng: random.Random, late_by_ms: int) -> Stage:
    """Late records are more than `late_by_ms` behind the newest of both."""
    roles = {"left": 0, "right": _TICK_MS // 2}
    numbers = {role: count() for role in roles}
    found: Stage = {role: [] for role in roles}
    for partition, keys in sorted(keys_by_partition("k", IDS).items()):
        # A tenth of the keys are on one side only.
        own = {"left": [k for k in keys if k[-1] != "1"], "right": [k for k in keys if k[-1] != "0"]}
        courses = {role: _Course(rng, own[role], numbers[role], partition) for role in roles}
        newest_ms = 0
        for now_ms in _nows(rng, size.start_ms, size.records // PARTITIONS // 2 - 1, 250):
            for role, shift_ms in roles.items():
                before_ms = now_ms + shift_ms - late_by_ms
                record = courses[role].next(now_ms + shift_ms, JOIN_GRACE_MS - 2000, before_ms, _LATE_SHARE)
                newest_ms = max(newest_ms, record.ts_ms)
                found[role].append(record)
        for role, shift_ms in roles.items():
            found[role].append(_sentinel(partition, newest_ms + _AHEAD_MS + shift_ms))
    return found


def _tables(size: Size, rng: random.Random, roles: tuple[str, ...]) -> Stage:
    return {
        role: _updates(
            rng,
            keys_by_partition("k", IDS),
            size.start_ms + number * _TICK_MS // len(roles),
            size.records // len(roles),
            count(),
            deleted_share=0.1,
        )
        for number, role in enumerate(roles)
    }


def _updates(
    rng: random.Random,
    keys: Mapping[int, Sequence[str]],
    start_ms: int,
    records: int,
    numbers: Iterator[int],
    deleted_share: float = 0.0,
) -> list[Record]:
    """Records of one topic, each partition's from `start_ms` on, of which many come out of order."""
    found = list[Record]()
    for partition in range(PARTITIONS):
        for now_ms in _nows(rng, start_ms, records // PARTITIONS, 250):
            if rng.random() < _REPEATED_SHARE and found and found[-1].partition == partition:
                found.append(found[-1])
                continue
            v = None if rng.random() < deleted_share else next(numbers)
            back_ms = _back_ms(rng, _MOST_BACK_MS) if rng.random() < _OUT_OF_ORDER_SHARE else 0
            found.append(Record(partition, rng.choice(keys[partition]), now_ms - back_ms, v))
    return found


def _lookups(size: Size, rng: random.Random, deleted_share: float) -> list[Stage]:
    """First both topics at once, half of all records; then one topic after the other."""
    numbers = {"stream": count(), "table": count()}
    homes = keys_by_partition("k", IDS)
    # Every third key waits for a later stage to enter the table.
    first = {partition: [k for k in keys if int(k[-3:]) % 3] for partition, keys in homes.items()}

    def one(role: str, number: int, share: float) -> list[Record]:
        is_table = role == "table"
        return _updates(
            rng,
            first if is_table and number < 2 else homes,
            # Half a tick apart, so that no timestamp is in both topics.
            size.start_ms + 20 * _MINUTE_MS * number + (0 if is_table else _TICK_MS // 2),
            int(size.records * share),
            numbers[role],
            deleted_share if is_table and number in (0, 3) else 0.0,
        )

    made: list[Stage] = [{role: one(role, 0, 0.25) for role in numbers}]
    plan = [("table", 0.1), ("stream", 0.1), ("table", 0.1), ("stream", 0.1), ("table", 0.05), ("stream", 0.05)]
    made += [{role: one(role, number, share)} for number, (role, share) in enumerate(plan, 1)]
    return made


def _turns(size: Size, rng: random.Random) -> list[Stage]:
    """Writes and questions by turns: a turn's writes make things be forgotten, its questions show which."""
    numbers, homes = count(), keys_by_partition("k", IDS)
    each = size.records // PARTITIONS // 2 // _TURNS
    # What was written two turns ago is younger than the TTL, what was written three turns ago is older.
    turn_ms = TTL_MS * 2 // 5

    def one(start_ms: int, asked: bool) -> list[Record]:
        found = list[Record]()
        for partition, keys in sorted(homes.items()):
            some = rng.sample(keys, MAX_ENTRIES if asked else MAX_ENTRIES * 2 // 3)
            times = _nows(rng, start_ms, each, turn_ms // 8 // each)
            for key, now_ms in zip(sorted(rng.choices(some, k=each)), times, strict=True):
                # The first record moves stream time to this stage's.
                is_first = not found or found[-1].partition != partition
                if rng.random() < _REPEATED_SHARE and not is_first:
                    found.append(found[-1])
                    continue
                # Neither kind of store forgets by a record's own timestamp.
                is_behind = rng.random() < _OUT_OF_ORDER_SHARE and not is_first
                back_ms = _back_ms(rng, _MOST_BACK_MS) if is_behind else 0
                v = next(numbers)
                found.append(Record(partition, key, now_ms - back_ms, -1 - v if asked else v))
        return found

    starts = [size.start_ms + turn_ms * turn + turn_ms // 4 * asked for turn in range(_TURNS) for asked in (0, 1)]
    return [{"in": one(start_ms, asked=bool(number % 2))} for number, start_ms in enumerate(starts)]


def _sentinel(partition: int, ts_ms: int) -> Record:
    return Record(partition, keys_by_partition(SENTINEL, 64)[partition][0], ts_ms, 0)
