"""The record of a dead letter: what was read, why it could not be processed, and where it came from.

Headers, each UTF-8 text: `tidemark.reason`; the source record's `tidemark.topic`, `.partition`, `.offset` and `.timestamp`
(epoch milliseconds); and the headers in `DeadLetter.details`. A dead letter that the topic would refuse is shortened: first
its value, then the record's own headers, then its key. `tidemark.shortened` names the shortened parts; `tidemark.value.bytes`,
`.key.bytes` and `.headers.count` give the original sizes. See invariant: no record stops a stream.
"""

from __future__ import annotations

from tidemark.kafka.record_sizes import record_bytes
from tidemark.tasks.update import DeadLetter

PREFIX = "tidemark."
REASON, TOPIC, PARTITION, OFFSET, TIMESTAMP = (
    PREFIX + name for name in ("reason", "topic", "partition", "offset", "timestamp")
)
SHORTENED = PREFIX + "shortened"
VALUE_BYTES, KEY_BYTES, HEADERS_COUNT = (PREFIX + name for name in ("value.bytes", "key.bytes", "headers.count"))
_KEPT_KEY_BYTES = 1024

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Key, value, headers."""


def dead_letter_record(letter: DeadLetter, limit_bytes: int) -> Record:
    """Return the record for a topic that accepts `limit_bytes`, which must be enough without value and own headers."""
    summary = _format(letter)
    whole = [*letter.headers, *summary]
    if record_bytes(letter.key, letter.value, whole) <= limit_bytes:
        return letter.key, letter.value, whole
    summary += [(VALUE_BYTES, _text(len(letter.value or b"")))]
    counted = (HEADERS_COUNT, _text(len(letter.headers)))
    shorter_key = letter.key and letter.key[:_KEPT_KEY_BYTES]
    for key, headers in (
        (letter.key, [*letter.headers, *summary, (SHORTENED, b"value")]),
        (letter.key, [*summary, counted, (SHORTENED, b"value,headers")]),
        (
            shorter_key,
            [*summary, counted, (KEY_BYTES, _text(len(letter.key or b""))), (SHORTENED, b"value,headers,key")],
        ),
    ):
        room = limit_bytes - record_bytes(key, None, headers)
        if room >= 0 or key is not letter.key:
            break
    return key, letter.value and letter.value[: max(0, room)], headers


def _format(letter: DeadLetter) -> list[tuple[str, bytes | None]]:
    summary: list[tuple[str, bytes | None]] = [
        (REASON, letter.reason.encode()),
        (TOPIC, letter.topic.encode()),
        (PARTITION, _text(letter.partition)),
    ]
    if letter.offset is not None:
        summary.append((OFFSET, _text(letter.offset)))
    if letter.timestamp_ms is not None:
        summary.append((TIMESTAMP, _text(letter.timestamp_ms)))
    return [*summary, *letter.details]


def _text(number: int) -> bytes:
    return str(number).encode()
