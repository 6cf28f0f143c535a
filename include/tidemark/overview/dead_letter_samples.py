"""A few dead letters of each reason, shortened, for those who may read the data of a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.names import TopicPartition
from tidemark.operations.dead_letters.reader import StoredDeadLetter
from tidemark.store_rows import printable

OF_EACH_REASON = 3
_KEY_CHARACTERS, _VALUE_CHARACTERS = 60, 200


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


def sample_of(letter: StoredDeadLetter) -> DeadLetterSample:
    """Return what is shown of a dead letter."""
    return DeadLetterSample(
        letter.reason,
        letter.place.partition,
        letter.offset,
        letter.written_ms,
        letter.source,
        letter.source_offset,
        None if letter.key is None else printable(letter.key, _KEY_CHARACTERS),
        None if letter.value is None else printable(letter.value, _VALUE_CHARACTERS),
    )


def samples_of(letters: Iterable[DeadLetterSample]) -> tuple[DeadLetterSample, ...]:
    """Return the newest dead letters of each reason, the most frequent reason first."""
    found = list(letters)
    frequent = [reason for reason, _ in Counter(letter.reason for letter in found).most_common()]
    newest = sorted(found, key=lambda letter: (letter.written_ms, letter.offset), reverse=True)
    return tuple(
        letter for reason in frequent for letter in [one for one in newest if one.reason == reason][:OF_EACH_REASON]
    )
