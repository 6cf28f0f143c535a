"""The dead letters in `<app>-dlq`, and filters to select some of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from tidemark.commit.dead_letter import OFFSET, PARTITION, REASON, SHORTENED, TIMESTAMP, TOPIC
from tidemark.errors import PreflightFailed
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.committed_reader import messages_until, stalled_after
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import partition_counts
from tidemark.names import TopicPartition, dlq_topic
from tidemark.settings import Settings
from tidemark.tasks.update import Headers

REPLAYED = "replayed"
"""Reason of a record by which a replay marks the dead letters of its partition as replayed: value `[offset, …]`."""


@dataclass(frozen=True)
class ReplayMarker:
    """The record by which a replay has marked dead letters of its own partition as replayed."""

    place: TopicPartition
    offset: int
    written_ms: int

    def is_after(self, letter: StoredDeadLetter) -> bool:
        """Return whether it was written after a dead letter. Of another partition, only the times of writing say it."""
        if self.place == letter.place:
            return self.offset > letter.offset
        return self.written_ms > letter.written_ms


@dataclass(frozen=True)
class StoredDeadLetter:
    """One dead letter. `headers` are those of the original record, `summary` those that Tidemark added, by header.

    `marker` is that of the replay that has sent it back; None if none has.
    """

    place: TopicPartition
    offset: int
    written_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    summary: Mapping[str, str]
    marker: ReplayMarker | None = None

    @property
    def is_replayed(self) -> bool:
        """Return whether a replay has sent it back by now."""
        return self.marker is not None

    @property
    def reason(self) -> str:
        return self.summary.get(REASON, "")

    @property
    def source(self) -> TopicPartition | None:
        """Return the partition of the original record; None if the headers do not name it."""
        topic, partition = self.summary.get(TOPIC), self.summary.get(PARTITION, "")
        return TopicPartition(topic, int(partition)) if topic and partition.isdigit() else None

    @property
    def source_offset(self) -> int | None:
        """Return the offset of the original record in that partition; None if the headers do not name it."""
        return _number(self.summary.get(OFFSET))

    @property
    def timestamp_ms(self) -> int:
        """Return the Kafka timestamp of the record that was read or could not be sent; else that of the dead letter."""
        summary = _number(self.summary.get(TIMESTAMP))
        return self.written_ms if summary is None else summary

    @property
    def is_whole(self) -> bool:
        """Return whether nothing of the record was left out."""
        return SHORTENED not in self.summary


@dataclass(frozen=True)
class DeadLetterFilter:
    """Conditions on dead letters; None is no condition. Times are of writing, in epoch milliseconds, `until_ms` exclusive."""

    reason: str | None = None
    topic: str | None = None
    partition: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, letter: StoredDeadLetter) -> bool:
        """Return whether the dead letter meets all conditions. `topic` and `partition` are those of the original record."""
        source = letter.source
        return (
            (self.reason is None or letter.reason == self.reason)
            and (self.topic is None or (source is not None and source.topic == self.topic))
            and (self.partition is None or (source is not None and source.partition == self.partition))
            and (self.since_ms is None or letter.written_ms >= self.since_ms)
            and (self.until_ms is None or letter.written_ms < self.until_ms)
        )


class DeadLetterReader:
    """The dead letters of one application. All methods block, and raise `OutcomeUnknown` if no broker answers."""

    def __init__(self, application_id: str, settings: Settings) -> None:
        """Raises `PreflightFailed` if the application has never run."""
        self.application_id = application_id
        self.topic = dlq_topic(application_id)
        self.client = librdkafka_config(settings)
        self.admin = AdminClient(self.client)
        self.timeout_s = settings.broker_timeout_ms / 1000
        self.ends = EndOffsets(self.admin, self.timeout_s)
        self._stalled_after_s = stalled_after(settings)
        count = partition_counts(self.admin, settings).get(self.topic, 0)
        if not count:
            raise PreflightFailed(f"topic {self.topic} does not exist: {application_id} has never run here")
        self.partitions = [TopicPartition(self.topic, number) for number in range(count)]

    def read(self, wanted: DeadLetterFilter, limit: int | None = None) -> Iterator[StoredDeadLetter]:
        """Yield the dead letters written so far, partition by partition in the order of offsets, at most `limit`.

        Waits for open transactions.
        """
        given = 0
        begins, ends = self.ends.beginnings(self.partitions), self.ends.of(self.partitions)
        for place in self.partitions:
            span = place, begins[place], ends[place]
            # A dead letter comes before the record that marks it as replayed, so this reads the partition twice.
            markers = {
                offset: ReplayMarker(place, x.offset, x.written_ms)
                for x in self._all(*span)
                if x.reason == REPLAYED
                for offset in json.loads(x.value or b"[]")
            }
            for letter in self._all(*span):
                if letter.reason == REPLAYED or not wanted.takes(letter):
                    continue
                if given == limit:
                    return
                given += 1
                yield replace(letter, marker=markers.get(letter.offset))

    def _all(self, place: TopicPartition, start: int, end: int) -> Iterator[StoredDeadLetter]:
        for messages, _ in messages_until(
            self.client, place, start, end, stalled_after_s=self._stalled_after_s, should_continue=lambda: True
        ):
            yield from map(letter_of, messages)

    def one(self, partition: int, offset: int) -> StoredDeadLetter | None:
        """Return the dead letter at this place; None if there is none."""
        return next(
            (x for x in self.read(DeadLetterFilter()) if (x.place.partition, x.offset) == (partition, offset)), None
        )

    def message(self, place: TopicPartition, offset: int) -> Message | None:
        """Return the record at these coordinates of any topic; None if it is gone."""
        if not self.ends.beginnings([place])[place] <= offset < self.ends.of([place])[place]:
            return None
        found: list[Message] = []
        for messages, _ in messages_until(
            self.client, place, offset, offset + 1, stalled_after_s=self._stalled_after_s, should_continue=lambda: True
        ):
            found += messages
        return found[0] if found and found[0].offset() == offset else None


def letter_of(message: Message) -> StoredDeadLetter:
    """Parse a record of the topic of dead letters."""
    headers = headers_of(message)
    # The summary comes last and begins with the reason. Before it, the record's own headers may have the same names.
    start = max((i for i, (name, _) in enumerate(headers) if name == REASON), default=len(headers))
    summary = {name: (content or b"").decode(errors="replace") for name, content in headers[start:]}
    place = TopicPartition(str(message.topic()), int(message.partition() or 0))
    own = tuple(headers[:start])
    key, value, written_ms = _bytes(message.key()), _bytes(message.value()), message.timestamp()[1]
    return StoredDeadLetter(place, int(message.offset() or 0), written_ms, key, value, own, summary)


def headers_of(message: Message) -> Sequence[tuple[str, bytes | None]]:
    """Return a record's headers."""
    found: Any = message.headers() or ()
    return [(name, _bytes(content)) for name, content in found]


def _bytes(content: object) -> bytes | None:
    return content if isinstance(content, bytes) else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
