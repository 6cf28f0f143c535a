"""Changes to what an instance sends, made between the task and the producer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any
from unittest import mock

from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitRecord

Messages = list[dict[str, Any]]
Change = Callable[[Messages], Messages]


@contextlib.contextmanager
def tampering(
    topic: str, change: Change, *, skip: int = 1, also: Callable[[int], None] = lambda _partition: None
) -> Iterator[None]:
    """The instance sends to `topic` what `change` makes of one of its calls; `skip` calls with records go by first.

    A call in which `change` changes nothing does not count. `also` is done then, with the partition of a changelog.
    """
    left = [skip]
    send_many = BatchProducer.send_many

    def tampered(
        self: BatchProducer, to: str, messages: Sequence[dict[str, Any]], partition: int | None = None
    ) -> None:
        if to == topic and left[0] >= 0:
            changed = change([dict(message) for message in messages])
            if changed != list(messages):
                left[0] -= 1
                if left[0] < 0:
                    messages = changed
                    also(partition or 0)
        send_many(self, to, messages, partition)

    with mock.patch.object(BatchProducer, "send_many", tampered):
        yield
    assert left[0] < 0, f"nothing was sent to {topic} that could be changed"


def doubled(messages: Messages) -> Messages:
    return [*messages, dict(messages[0])]


def lost(messages: Messages) -> Messages:
    return messages[1:]


def one_for_another(messages: Messages) -> Messages:
    """The first is lost, the second doubled: counts stay what they are."""
    return [dict(messages[1]), *messages[1:]] if len(messages) > 1 else messages


def json_changed(field: str, by: int) -> Change:
    def change(messages: Messages) -> Messages:
        body = json.loads(messages[0]["value"])
        body[field] = body[field] + by
        value = json.dumps(body, separators=(",", ":")).encode()
        return [{**messages[0], "value": value}, *messages[1:]]

    return change


def bytes_changed(messages: Messages) -> Messages:
    """The count of a stored value, the first byte behind schema, mask and timestamp, is another."""
    value = bytearray(messages[0]["value"])
    value[10] ^= 1
    return [{**messages[0], "value": bytes(value)}, *messages[1:]]


def tombstone_lost(messages: Messages) -> Messages:
    at = next((i for i, message in enumerate(messages) if message["value"] is None), None)
    return messages if at is None else messages[:at] + messages[at + 1 :]


def record_changed(**fields: Callable[[CommitRecord], Any]) -> Change:
    def change(messages: Messages) -> Messages:
        record = CommitRecord.from_bytes(messages[0]["value"])
        if record.kind != "batch":
            return messages
        body = json.loads(messages[0]["value"])
        body |= {name: make(record) for name, make in fields.items()}
        return [{**messages[0], "value": json.dumps(body).encode()}]

    return change


def time_moved(record: CommitRecord, by_ms: int) -> dict[str, Any]:
    """The record's stream times, the task's changed."""
    return asdict(replace(record.stream_times, task_ms=record.stream_times.task_ms + by_ms))


def node_times_moved(record: CommitRecord, by_ms: int) -> dict[str, Any]:
    """The record's stream times, those of all nodes changed."""
    moved = {store: time_ms + by_ms for store, time_ms in record.stream_times.by_store.items()}
    return asdict(replace(record.stream_times, by_store=moved))


def spans(record: CommitRecord, start: int, end: int) -> dict[str, dict[int, list[int]]]:
    return {t: {p: [s[0] + start, s[1] + end] for p, s in spans.items()} for t, spans in record.sources.items()}


def moved(start: int, end: int) -> Change:
    return record_changed(sources=lambda record: spans(record, start, end))


def dropped(messages: Messages) -> Messages:
    is_batch = CommitRecord.from_bytes(messages[0]["value"]).kind == "batch"
    return [] if is_batch else messages
