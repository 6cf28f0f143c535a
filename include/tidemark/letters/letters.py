"""Letters as they lie in `<app>-dlq`, and which of them somebody asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from tidemark.broker.clients import librdkafka_config
from tidemark.broker.offsets import EndOffsets
from tidemark.broker.topics import partition_counts
from tidemark.commit.dead_letters import OFFSET, PARTITION, PREFIX, REASON, SHORTENED, TIMESTAMP, TOPIC
from tidemark.errors import PreflightFailed
from tidemark.names import TopicPartition, dlq_topic
from tidemark.restore.changelog import messages_until
from tidemark.settings import Settings
from tidemark.start.witnesses import stalled_after
from tidemark.tasks.update import Headers

REPLAYED = "replayed"
"""Reason of the records by which a replay says which letters of their partition it has replayed: value `[offset, …]`."""


@dataclass(frozen=True)
class Letter:
    """One letter. `headers` are the record's own, `told` what Tidemark says of it, by header; `is_replayed` so far."""

    place: TopicPartition
    offset: int
    written_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    told: Mapping[str, str]
    is_replayed: bool = False

    @property
    def reason(self) -> str:
        return self.told.get(REASON, "")

    @property
    def source(self) -> TopicPartition | None:
        """The partition of the record behind it; None where it does not say."""
        topic, partition = self.told.get(TOPIC), self.told.get(PARTITION, "")
        return TopicPartition(topic, int(partition)) if topic and partition.isdigit() else None

    @property
    def source_offset(self) -> int | None:
        """Where in that partition."""
        return _number(self.told.get(OFFSET))

    @property
    def timestamp_ms(self) -> int:
        """The Kafka timestamp of what was read, or could not be sent; else that of the letter."""
        told = _number(self.told.get(TIMESTAMP))
        return self.written_ms if told is None else told

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it was left out."""
        return SHORTENED not in self.told


@dataclass(frozen=True)
class LetterFilter:
    """What is None asks for nothing. Times are those of writing, epoch milliseconds, `until_ms` exclusive."""

    reason: str | None = None
    topic: str | None = None
    partition: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, letter: Letter) -> bool:
        """Whether the letter is asked for. `topic` and `partition` are those of the record behind it."""
        source = letter.source
        return (
            (self.reason is None or letter.reason == self.reason)
            and (self.topic is None or (source is not None and source.topic == self.topic))
            and (self.partition is None or (source is not None and source.partition == self.partition))
            and (self.since_ms is None or letter.written_ms >= self.since_ms)
            and (self.until_ms is None or letter.written_ms < self.until_ms)
        )


class Letters:
    """The letters of one application. All methods block, and raise `OutcomeUnknown` without a broker."""

    def __init__(self, application_id: str, settings: Settings) -> None:
        """Raises `PreflightFailed` where the application has never run."""
        self.application_id = application_id
        self.topic = dlq_topic(application_id)
        self.client = librdkafka_config(settings)
        self.admin = AdminClient(self.client)
        self.ends = EndOffsets(self.admin, settings.broker_timeout_ms / 1000)
        self._stalled_after_s = stalled_after(settings)
        count = partition_counts(self.admin, settings).get(self.topic, 0)
        if not count:
            raise PreflightFailed(f"topic {self.topic} does not exist: {application_id} has never run here")
        self.partitions = [TopicPartition(self.topic, number) for number in range(count)]

    def read(self, wanted: LetterFilter, limit: int | None = None) -> Iterator[Letter]:
        """The letters that are there by now, partition by partition in the order of offsets, at most `limit`.

        Waits for transactions that are open.
        """
        given = 0
        begins, ends = self.ends.beginnings(self.partitions), self.ends.of(self.partitions)
        for place in self.partitions:
            span = place, begins[place], ends[place]
            # A letter comes before the record that says that it was replayed.
            said = [json.loads(x.value or b"[]") for x in self._all(*span) if x.reason == REPLAYED]
            replayed = {offset for offsets in said for offset in offsets}
            for letter in self._all(*span):
                if letter.reason == REPLAYED or not wanted.takes(letter):
                    continue
                if given == limit:
                    return
                given += 1
                yield replace(letter, is_replayed=letter.offset in replayed)

    def _all(self, place: TopicPartition, start: int, end: int) -> Iterator[Letter]:
        for messages, _ in messages_until(
            self.client, place, start, end, stalled_after_s=self._stalled_after_s, go_on=lambda: True
        ):
            yield from map(letter_of, messages)

    def one(self, partition: int, offset: int) -> Letter | None:
        """One letter by where it lies; None where there is none."""
        return next(
            (x for x in self.read(LetterFilter()) if (x.place.partition, x.offset) == (partition, offset)), None
        )

    def message(self, place: TopicPartition, offset: int) -> Message | None:
        """The record at these coordinates of any topic; None where it is gone."""
        if not self.ends.beginnings([place])[place] <= offset < self.ends.of([place])[place]:
            return None
        found: list[Message] = []
        for messages, _ in messages_until(
            self.client, place, offset, offset + 1, stalled_after_s=self._stalled_after_s, go_on=lambda: True
        ):
            found += messages
        return found[0] if found and found[0].offset() == offset else None


def letter_of(message: Message) -> Letter:
    """What a record of the topic says."""
    headers = headers_of(message)
    told = {name: (content or b"").decode(errors="replace") for name, content in headers if name.startswith(PREFIX)}
    place = TopicPartition(str(message.topic()), int(message.partition() or 0))
    own = tuple(header for header in headers if not header[0].startswith(PREFIX))
    key, value, written_ms = _bytes(message.key()), _bytes(message.value()), message.timestamp()[1]
    return Letter(place, int(message.offset() or 0), written_ms, key, value, own, told)


def headers_of(message: Message) -> Sequence[tuple[str, bytes | None]]:
    """A record's headers."""
    found: Any = message.headers() or ()
    return [(name, _bytes(content)) for name, content in found]


def _bytes(content: object) -> bytes | None:
    return content if isinstance(content, bytes) else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
