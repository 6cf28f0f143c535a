"""Inputs on which Tidemark and Kafka Streams must agree, although they judge time differently (rules 13 and 20).

Kafka Streams compares each record with the stream time that the record before it left, Tidemark with the stream time at
the start of the batch. Kafka Streams takes the records of two topics by the timestamps of what it has buffered, Tidemark
those of a batch by (timestamp, source, offset). So every record here is one of these, per partition:

- **in time**: at most 4 s (joins: 8 s) behind the newest record before it, which is within the grace period of both;
- **late**: its windows were closed already by a record `reach` records earlier in the same partition. A batch holds at
  most `reach` records, so they were closed when its batch began, too. Joins read two topics whose partitions are of one
  length and of one course in time, so there `reach` records of a task are `reach / 2` of each topic. In the left join only
  right records are late: Kafka Streams emits a late left record without a partner at once, which nothing else does.
  Sessions are short (a key is silent 90 s of every 240 s), so a late record never falls into a live one;
- **repeated**: an in-time or late record once more, bit for bit;
- **a table's**: the timestamps of one key never go back, except for keys that are there only twice, more than a batch apart,
  where the second record is the older one: the one with the higher offset stands.

A join with a table has stages. The first is mixed, in order, without equal timestamps across the topics, and smaller than
a batch: it is there before a side starts, so both take it by timestamp. Each later stage fills one topic only and is
produced when everything before it has been committed.

Where windows have to close, each partition ends with a record one hour ahead, under a key that is left out of the
comparison. Timestamps are multiples of 125 ms, so that records do fall on the ends of windows and gaps. `v` is unique per
record and topic. The Kafka timestamp is `ts`; a key's partition is murmur2's.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from tests.peers.cases import APART_MS, GAP_MS, GRACE_MS, JOIN_GRACE_MS, PARTITIONS, SIZE_MS, Case

from tidemark.partitioning import partitions_of

SENTINEL = "end-"
IDS = 500
_TICK_MS = 250
_MINUTE_MS = 60_000
_LATE_SHARE = 0.05
_REPEATED_SHARE = 0.03
_OUT_OF_ORDER_SHARE = 0.2
_PERIOD_MS, _ACTIVE_MS = 240_000, 150_000
_AHEAD_MS = 60 * _MINUTE_MS


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
    if case.name == "session":
        # Also the sessions around a late record must have ended and been closed.
        return [_windowed(size, rng, GAP_MS + GRACE_MS + _PERIOD_MS, in_bursts=True)]
    if case.roles == ("in",) and case.name != "table":
        return [_windowed(size, rng, SIZE_MS + GRACE_MS, in_bursts=False)]
    if case.name.startswith("stream-stream"):
        late_roles = ("right",) if case.name.endswith("left") else case.roles
        return [_two_streams(size, rng, late_roles)]
    if case.roles == ("stream", "table"):
        return _lookups(size, rng, deleted_share=0.6 if case.name == "tombstone" else 0.25)
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


class _Course:
    """The records of one partition of one topic, while its task's stream time goes on."""

    def __init__(self, rng: random.Random, keys: list[str], numbers: Iterator[int], partition: int) -> None:
        self._rng, self._keys, self._numbers, self._partition = rng, keys, numbers, partition
        self._recent: deque[tuple[Record, bool]] = deque(maxlen=5)
        self._phases = {key: rng.randrange(_PERIOD_MS) for key in keys}

    def next(
        self, now_ms: int, most_behind_ms: int, late_before_ms: int | None, late_share: float, in_bursts: bool
    ) -> Record:
        """One more record at `now_ms`, or before; a late one lies before `late_before_ms`."""
        rng, chance = self._rng, self._rng.random()
        if late_before_ms is not None and chance < late_share:
            ts_ms = late_before_ms - _TICK_MS * rng.randrange(1, 10 * _MINUTE_MS // _TICK_MS)
            return self._add(ts_ms, in_bursts, is_late=True)
        if chance > 1 - _REPEATED_SHARE and self._recent:
            record, is_late = rng.choice(self._recent)
            if is_late or now_ms - record.ts_ms <= most_behind_ms:
                return record
        if chance > 1 - _REPEATED_SHARE - _OUT_OF_ORDER_SHARE:
            return self._add(now_ms - _TICK_MS * rng.randrange(1, most_behind_ms // _TICK_MS + 1), in_bursts)
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


def _windowed(size: Size, rng: random.Random, closed_ms: int, in_bursts: bool) -> Stage:
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


def _two_streams(size: Size, rng: random.Random, late_roles: tuple[str, ...]) -> Stage:
    roles = ("left", "right")
    numbers = {role: count() for role in roles}
    found: Stage = {role: [] for role in roles}
    each, reach = size.records // PARTITIONS // 2, size.reach // 2
    closed_ms = 2 * APART_MS + JOIN_GRACE_MS
    for partition, keys in sorted(keys_by_partition("k", IDS).items()):
        # A tenth of the keys are on one side only.
        own = {"left": [k for k in keys if k[-1] != "1"], "right": [k for k in keys if k[-1] != "0"]}
        courses = {role: _Course(rng, own[role], numbers[role], partition) for role in roles}
        newest = list[int]()
        for place, now_ms in enumerate(_nows(rng, size.start_ms, each - 1, 250)):
            before_ms = newest[place - reach] - closed_ms if place >= reach else None
            latest_ms = newest[-1] if newest else 0
            for role in roles:
                share = _late_share(each, reach) if role in late_roles else 0.0
                record = courses[role].next(now_ms, JOIN_GRACE_MS - 2000, before_ms, share, in_bursts=False)
                latest_ms = max(latest_ms, record.ts_ms)
                found[role].append(record)
            newest.append(latest_ms)
        for role in roles:
            found[role].append(_sentinel(partition, newest[-1] + _AHEAD_MS))
    return found


def _tables(size: Size, rng: random.Random, roles: tuple[str, ...]) -> Stage:
    stage: Stage = {}
    late_keys = keys_by_partition("late", size.records)
    each, reach = size.records // PARTITIONS // len(roles), size.reach // len(roles)
    for role in roles:
        numbers, found = count(), list[Record]()
        for partition, keys in sorted(keys_by_partition("k", IDS).items()):
            fresh = iter(late_keys[partition])
            waiting: deque[tuple[int, Record]] = deque()
            for place, now_ms in enumerate(_nows(rng, size.start_ms, each, 125 * len(roles))):
                chance = rng.random()
                v = None if rng.random() < 0.1 else next(numbers)
                if waiting and waiting[0][0] < place - reach:
                    first = waiting.popleft()[1]
                    record = Record(partition, first.key, first.ts_ms - 10 * _MINUTE_MS, v)
                elif chance < _late_share(each, reach):
                    record = Record(partition, next(fresh), now_ms, next(numbers))
                    waiting.append((place, record))
                elif chance > 1 - _REPEATED_SHARE and found and found[-1].partition == partition:
                    record = found[-1]
                else:
                    record = Record(partition, rng.choice(keys), now_ms, v)
                found.append(record)
        stage[role] = found
    return stage


def _lookups(size: Size, rng: random.Random, deleted_share: float) -> list[Stage]:
    numbers = {"stream": count(), "table": count()}
    homes = keys_by_partition("k", IDS)
    once = keys_by_partition("late", 400)
    mixed = min(size.records // 10, size.reach * 4 // 5)
    rest = size.records - mixed
    plan = [("table", 0.2), ("stream", 0.2), ("table", 0.2), ("stream", 0.2), ("table", 0.1), ("stream", 0.1)]
    start_ms = size.start_ms

    def one(role: str, records: int, stage: int) -> list[Record]:
        found = list[Record]()
        for partition in range(PARTITIONS):
            # Every third key waits for a later stage to enter the table.
            keys = [k for k in homes[partition] if role == "stream" or stage > 1 or int(k[-3:]) % 3]
            if role == "table" and stage > 0:
                # Each time with an older timestamp than before.
                back_ms = 30 * _MINUTE_MS * (stage - 1)
                found += [Record(partition, k, start_ms - back_ms, next(numbers[role])) for k in once[partition]]
            elif role == "stream":
                keys = keys + once[partition][:20]
            for now_ms in _nows(rng, start_ms, records // PARTITIONS, 250):
                if rng.random() < _REPEATED_SHARE and found and found[-1].partition == partition:
                    found.append(found[-1])
                    continue
                is_deleted = role == "table" and stage in (0, 3) and rng.random() < deleted_share
                v = None if is_deleted else next(numbers[role])
                late_ms = 20 * _MINUTE_MS if role == "stream" and stage > 2 and rng.random() < 2 * _LATE_SHARE else 0
                # Half a tick apart, so that no timestamp is in both topics.
                half_ms = _TICK_MS // 2 if role == "stream" else 0
                found.append(Record(partition, rng.choice(keys), now_ms + half_ms - late_ms, v))
        return found

    made: list[Stage] = [{role: one(role, mixed // 2, 0) for role in numbers}]
    for number, (role, share) in enumerate(plan, 1):
        start_ms += 20 * _MINUTE_MS
        made.append({role: one(role, int(rest * share), number)})
    return made


def _sentinel(partition: int, ts_ms: int) -> Record:
    return Record(partition, keys_by_partition(SENTINEL, 64)[partition][0], ts_ms, 0)
