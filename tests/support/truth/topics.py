"""Reading whole topics with a plain consumer, for the recomputation. Knows nothing of Tidemark's own code."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

Place = tuple[str, int]
"""A topic and one of its partitions."""

T = TypeVar("T")

FETCH_WAIT_MS = 10
"""How long a broker waits for a record before it answers that there is none, with which the client reports the end of a
partition. The default is half a second."""

_COORDINATOR_MOVES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}

_LEADER_MOVES = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}


class Row(NamedTuple):
    """One record as the broker holds it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


@dataclass
class Past:
    """What is known of topics beside what they hold now.

    `since`: an application that has begun again is judged by what was written from these offsets on. `kept` are records that
    were read before somebody deleted them.
    """

    since: dict[Place, int] = field(default_factory=dict)
    kept: dict[Place, list[Row]] = field(default_factory=dict)

    def of(self, place: Place, start: int, rows: list[Row]) -> list[Row]:
        """The partition's rows, where it begins at `start` and holds `rows`."""
        before = [row for row in self.kept.get(place, []) if row.offset < start]
        return [row for row in (*before, *rows) if row.offset >= self.since.get(place, 0)]


NOTHING_PAST = Past()


class Unreadable(Exception):
    """A topic could not be read to its end: it is missing, or an open transaction hides its end."""


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "truth-reads-without-group",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            # Some 200 MB at most: a whole topic is read as fast as the broker gives it.
            "queued.max.messages.kbytes": 65536,
            "queued.min.messages": 500_000,
        }
    )


def _row(message: Any) -> Row:
    headers = tuple(message.headers() or ())
    stamp = message.timestamp()[1]
    return Row(message.topic(), message.partition(), message.offset(), stamp, message.key(), message.value(), headers)


def partitions(bootstrap: str, topics: Iterable[str], timeout_s: float = 60.0) -> list[Place]:
    """Every partition of `topics`. Raises `Unreadable` naming a topic that does not exist."""
    consumer = _consumer(bootstrap, "read_uncommitted")
    try:
        listed = consumer.list_topics(timeout=timeout_s).topics
    finally:
        consumer.close()
    wanted = list(dict.fromkeys(topics))
    absent = [topic for topic in wanted if topic not in listed]
    if absent:
        raise Unreadable(f"topics {absent} do not exist")
    return [(topic, partition) for topic in wanted for partition in sorted(listed[topic].partitions)]


def _ask(consumer: Consumer, ask: Callable[[], T], moves: Collection[int], timeout_s: float) -> T:
    """What `ask` says of the brokers, asked again until `timeout_s` while it raises one of the errors `moves`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in moves or time.monotonic() > deadline:
                raise
        consumer.poll(0.2)


def _offsets(bootstrap: str, places: Iterable[Place], isolation: str, which: int, timeout_s: float) -> dict[Place, int]:
    """The offsets of these partitions' ends or beginnings, asked again while another broker becomes a leader.

    Each leader is asked once for all of its partitions: a test asks several times a second for those of dozens. What the
    client calls offsets for times are these where the time is `OFFSET_END` or `OFFSET_BEGINNING`.
    """
    wanted = [TopicPartition(*place, which) for place in places]
    if not wanted:
        return {}
    consumer = _consumer(bootstrap, isolation)

    def ask() -> dict[Place, int]:
        found = consumer.offsets_for_times(wanted, timeout=timeout_s)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return {(each.topic, each.partition): each.offset for each in found}

    try:
        return _ask(consumer, ask, _LEADER_MOVES, timeout_s)
    finally:
        consumer.close()


def end_offsets(bootstrap: str, places: Iterable[Place], isolation: str, timeout_s: float = 60.0) -> dict[Place, int]:
    """The offset after the last one, as a reader of `isolation` sees it (markers count).

    Each partition learns of the end of a transaction by itself, and the group's offsets may be there first. So whether all
    records of an application are processed is known only by `read_uncommitted`: with `read_committed`, a partition may seem to
    end before records that are committed.
    """
    return _offsets(bootstrap, places, isolation, OFFSET_END, timeout_s)


def hidden_ends(bootstrap: str, topics: Iterable[str]) -> dict[Place, tuple[int, int]]:
    """Partitions whose read_committed end is not their read_uncommitted end: a transaction is open there."""
    places = partitions(bootstrap, topics)
    committed = end_offsets(bootstrap, places, "read_committed")
    uncommitted = end_offsets(bootstrap, places, "read_uncommitted")
    return {p: (committed[p], uncommitted[p]) for p in places if committed[p] != uncommitted[p]}


def read_all(
    bootstrap: str, topics: Iterable[str], timeout_s: float = 60.0, past: Past = NOTHING_PAST
) -> dict[Place, list[Row]]:
    """All records of `topics`, read_committed, up to the read_uncommitted end at the time of the call.

    With those that `past` has kept, without those before it. Blocks, and raises, as `each_row` does.
    """
    places = partitions(bootstrap, topics)
    starts = beginnings(bootstrap, places)
    rows: dict[Place, list[Row]] = {place: [] for place in places}
    for row in each_row(bootstrap, places, timeout_s):
        rows[row.topic, row.partition].append(row)
    return {place: past.of(place, starts[place], found) for place, found in rows.items()}


def beginnings(bootstrap: str, places: Iterable[Place], timeout_s: float = 60.0) -> dict[Place, int]:
    """The first offset that each partition holds."""
    return _offsets(bootstrap, places, "read_committed", OFFSET_BEGINNING, timeout_s)


def each_row(bootstrap: str, places: Iterable[Place], timeout_s: float = 60.0) -> Iterator[Row]:
    """Every record of these partitions, one after the other, as `read_all` reads them; none is kept.

    Blocks until every partition's next offset has reached its end. Raises `Unreadable` after `timeout_s` without it:
    then a transaction is open, and what has been read would not be the whole truth.
    """
    places = list(places)
    ends = end_offsets(bootstrap, places, "read_uncommitted")
    starts = beginnings(bootstrap, places)
    unread = {p for p in places if starts[p] < ends[p]}
    consumer = _consumer(bootstrap, "read_committed")
    try:
        if unread:
            consumer.assign([TopicPartition(*p, starts[p]) for p in sorted(unread)])
        deadline = time.monotonic() + timeout_s
        while unread:
            if time.monotonic() > deadline:
                raise Unreadable(f"not at the end after {timeout_s:.0f} s, a transaction may be open: {sorted(unread)}")
            # In two steps, because the client waits for the whole time-out unless it gets all that it was asked for.
            for message in consumer.consume(1, 0.2) + consumer.consume(20_000, 0.01):
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                row = _row(message)
                place = (row.topic, row.partition)
                if row.offset >= ends[place]:
                    # A later record, or the end-of-partition event, which carries the next offset, markers passed over;
                    # where more keeps coming the client tells no end.
                    unread.discard(place)
                elif error is None:
                    yield row
    finally:
        consumer.close()


def committed_offsets(
    bootstrap: str, group: str, places: Iterable[Place], timeout_s: float = 60.0, isolation: str = "read_committed"
) -> dict[Place, int]:
    """The group's committed offsets; -1 where there is none. Joins no group.

    With `read_committed` the answer comes when no transaction is about to change them, with `read_uncommitted` at once; what
    a transaction has not committed is in neither. A broker that has just started moves its coordinators about; it is asked
    again until `timeout_s`.
    """
    settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    wanted = [TopicPartition(*place) for place in places]
    try:
        found = _ask(consumer, lambda: consumer.committed(wanted, timeout=timeout_s), _COORDINATOR_MOVES, timeout_s)
        return {(f.topic, f.partition): f.offset if f.offset >= 0 else -1 for f in found}
    finally:
        consumer.close()


def commits_past(bootstrap: str, group: str, marks: Mapping[Place, int]) -> bool:
    """Whether the group has committed a record at or after each of these offsets. Joins no group, waits for no transaction."""
    found = committed_offsets(bootstrap, group, marks, isolation="read_uncommitted")
    return all(found[place] > offset for place, offset in marks.items())


def by_partition(rows: Mapping[Place, list[Row]], topic: str) -> dict[int, list[Row]]:
    """One topic's rows, by partition number."""
    return {partition: found for (name, partition), found in rows.items() if name == topic}
