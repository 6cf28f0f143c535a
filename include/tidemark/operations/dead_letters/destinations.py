"""The topics to which a replay sends dead letters: those that exist and are in use, and the largest record of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tidemark.errors import PreflightFailed
from tidemark.kafka.messages import Message
from tidemark.kafka.record_sizes import SizeLimits, raise_limit, record_bytes, topic_limits
from tidemark.kafka.topics import partition_counts
from tidemark.names import is_repartition_topic
from tidemark.operations.dead_letters.reader import DeadLetterFilter, DeadLetterReader, StoredDeadLetter
from tidemark.registry.operator_rights import operator_topics
from tidemark.registry.reader import recorded
from tidemark.settings import Settings
from tidemark.tasks.update import TOO_LARGE
from tidemark.topology.plan import TopologyPlan

LATER = "written after this replay began: run it again"


@dataclass(frozen=True)
class Destinations:
    """The partition counts of all topics of the cluster, and the limits of those to which dead letters go.

    `in_use` are the topics that the application reads and writes now, `hidden` those whose limit this user may not see.
    """

    application_id: str
    in_use: Collection[str]
    partitions: Mapping[str, int]
    limits: SizeLimits
    hidden: Collection[str] = ()

    @classmethod
    def of(
        cls, plan: TopologyPlan, letters: DeadLetterReader, wanted: DeadLetterFilter, settings: Settings
    ) -> Destinations:
        """Look up the topics that the dead letters name, and the topic of dead letters itself. Reads all dead letters. Blocks.

        `plan` is that of the topology module. Raises `PreflightFailed` if this user may not see a topic's settings,
        `StartRefused` if the description of the application was lost, `OutcomeUnknown` if no broker answers.
        """
        named = {topic_of(letter) or "" for letter in letters.read(wanted) if not letter.is_replayed}
        counts = partition_counts(letters.admin, settings)
        used = operator_topics(plan, recorded(settings, letters.admin, plan, counts), counts, 0).used
        in_use, app = used.sources | used.sinks | used.repartitions, plan.application_id
        # A user need not have rights to replaced topics.
        open_to_letters = {t for t in {letters.topic, *named} if t in counts and not _is_replaced(app, t, in_use)}
        own = {letters.topic, *in_use}
        limits = dict(topic_limits(sorted(open_to_letters & own), settings, letters.admin).by_topic)
        for topic in sorted(open_to_letters - own):
            # Nor to those that the topology has named before. A letter for one is left out then.
            with suppress(PreflightFailed):
                limits |= topic_limits([topic], settings, letters.admin).by_topic
        return cls(app, in_use, counts, SizeLimits(limits), open_to_letters - limits.keys())

    def absence(self, letter: StoredDeadLetter) -> str | None:
        """Return why there is nothing to which the letter could be sent; None if there is, or if it does not say where to."""
        topic, partition = topic_of(letter), partition_of(letter)
        if topic is None:
            return None
        if _is_replaced(self.application_id, topic, self.in_use):
            return (
                f"topic {topic} is not read any more, because the application was rescaled or upgraded: if it still matters, "
                "write the record that led to it, which `tidemark dlq show NAME LETTER` names, to its source again"
            )
        count = self.partitions.get(topic, 0)
        if not count:
            return f"topic {topic} does not exist: create it, then replay again"
        if partition is not None and partition >= count:
            return f"topic {topic} has no partition {partition}: add partitions to it, then replay again"
        if topic in self.limits.by_topic:
            return None
        if topic in self.hidden:
            return (
                f"this user may not see the settings of topic {topic}: allow DescribeConfigs on it, then replay again"
            )
        return LATER

    def refusal(self, topic: str, message: Message) -> str | None:
        """Return why the topic would refuse the record, with the remedy; None if it accepts it."""
        size = record_bytes(message["key"], message["value"], message.get("headers", ()))
        if size <= self.limits.of(topic):
            return None
        # Rounded, so that letters of about the same size have the same reason.
        return f"larger than topic {topic} accepts: {raise_limit(topic, 2 << size.bit_length())}"


def _is_replaced(application_id: str, topic: str, in_use: Collection[str]) -> bool:
    return is_repartition_topic(application_id, topic) and topic not in in_use


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
