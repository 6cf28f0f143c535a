"""A few dead letters of each reason, shortened, for those who may read the data of a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.names import TopicPartition
from tidemark.operations.dead_letters.reader import StoredDeadLetter

OF_EACH_REASON = 3
_KEY_CHARACTERS, _VALUE_CHARACTERS = 60, 200
_LONGEST_CHARACTER_BYTES = 4


@dataclass(frozen=True)
class DeadLetterSample:
    """One dead letter. `source` and `source_offset` are those of the original record, if its headers name them.

    `key` and `value` are printable and shortened; None if the record had none. They may be data of persons, so they are
    not part of the text of this object, which a log or an error could contain.
    """

    reason: str
    partition: int
    offset: int
    written_ms: int
    source: TopicPartition | None
    source_offset: int | None
    key: str | None = field(repr=False)
    value: str | None = field(repr=False)


def samples_of(letters: Iterable[StoredDeadLetter]) -> tuple[DeadLetterSample, ...]:
    """Return the newest dead letters of each reason, the most frequent reason first."""
    found = list(letters)
    frequent = [reason for reason, _ in Counter(letter.reason for letter in found).most_common()]
    newest = sorted(found, key=lambda letter: (letter.written_ms, letter.offset), reverse=True)
    return tuple(
        _sample(letter)
        for reason in frequent
        for letter in [one for one in newest if one.reason == reason][:OF_EACH_REASON]
    )


def _sample(letter: StoredDeadLetter) -> DeadLetterSample:
    return DeadLetterSample(
        letter.reason,
        letter.place.partition,
        letter.offset,
        letter.written_ms,
        letter.source,
        letter.source_offset,
        printable(letter.key, _KEY_CHARACTERS),
        printable(letter.value, _VALUE_CHARACTERS),
    )


def printable(content: bytes | None, most_characters: int) -> str | None:
    """Return bytes as text of at most so many characters, and `…` if something is missing.

    What is not UTF-8, and what is not printable, appears as an escape such as `\\xff` or `\\n`.
    """
    if content is None:
        return None
    # More bytes than this cannot be shown. The end may cut a character in two, so one more is read and dropped.
    text = content[: (most_characters + 1) * _LONGEST_CHARACTER_BYTES].decode(errors="backslashreplace")
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return shown if len(shown) <= most_characters else f"{shown[:most_characters]}…"
