"""The topics to which a replay sends dead letters: those that exist, and the largest record that each accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.kafka.messages import Message
from tidemark.kafka.record_sizes import SizeLimits, raise_limit, record_bytes, topic_limits
from tidemark.kafka.topics import partition_counts
from tidemark.operations.dead_letters.reader import DeadLetterFilter, DeadLetterReader, StoredDeadLetter
from tidemark.settings import Settings
from tidemark.tasks.update import TOO_LARGE

LATER = "written after this replay began: run it again"


@dataclass(frozen=True)
class Destinations:
    """The partition counts of all topics of the cluster, and the limits of those to which dead letters go."""

    partitions: Mapping[str, int]
    limits: SizeLimits

    @classmethod
    def of(cls, letters: DeadLetterReader, wanted: DeadLetterFilter, settings: Settings) -> Destinations:
        """Look up the topics that the dead letters name, and the topic of dead letters itself. Reads all dead letters. Blocks.

        Raises `PreflightFailed` if this user may not see a topic's settings, `OutcomeUnknown` if no broker answers.
        """
        named = {topic_of(letter) for letter in letters.read(wanted) if not letter.is_replayed}
        counts = partition_counts(letters.admin, settings)
        existing = sorted(topic for topic in {letters.topic, *named} if topic in counts)
        return cls(counts, topic_limits(existing, settings, letters.admin))

    def absence(self, letter: StoredDeadLetter) -> str | None:
        """Return why there is nothing to which the letter could be sent; None if there is, or if it does not say where to."""
        topic, partition = topic_of(letter), partition_of(letter)
        if topic is None:
            return None
        count = self.partitions.get(topic, 0)
        if not count:
            return f"topic {topic} does not exist: create it, then replay again"
        if partition is not None and partition >= count:
            return f"topic {topic} has no partition {partition}: add partitions to it, then replay again"
        return None if topic in self.limits.by_topic else LATER

    def refusal(self, topic: str, message: Message) -> str | None:
        """Return why the topic would refuse the record, with the remedy; None if it accepts it."""
        size = record_bytes(message["key"], message["value"], message.get("headers", ()))
        if size <= self.limits.of(topic):
            return None
        # Rounded, so that letters of about the same size have the same reason.
        return f"larger than topic {topic} accepts: {raise_limit(topic, 2 << size.bit_length())}"


def topic_of(letter: StoredDeadLetter) -> str | None:
    """Return the topic to which a dead letter is sent back; None if its headers do not name it."""
    if letter.reason == TOO_LARGE:
        return letter.summary.get("tidemark.sink")
    return None if letter.source is None else letter.source.topic


def partition_of(letter: StoredDeadLetter) -> int | None:
    """Return the partition to which it is sent back; None if its key decides, or if its headers do not name it."""
    if letter.reason == TOO_LARGE:
        partition = letter.summary.get("tidemark.sink.partition")
        return None if partition is None else int(partition)
    return None if letter.source is None else letter.source.partition
