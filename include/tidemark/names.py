"""Names of topics, tasks, folders and ids in Kafka, on disk and in Airflow. Each is derived in one place.

The naming follows Kafka Streams: `<application_id>-<store>-changelog`, task ids `<subtopology>_<partition>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType

DRILLS_FOLDER = ".drills"

Topic = NewType("Topic", str)
StoreName = NewType("StoreName", str)
ApplicationId = NewType("ApplicationId", str)

MAINTENANCE_POOL = "maintenance"
"""Airflow's pool for tasks that maintain streams, so that they do not take the slots of the streams themselves."""

_LEGAL = re.compile(r"^[a-zA-Z0-9._-]{1,200}$")


def is_legal_name(name: str) -> bool:
    """Return whether `name` may be part of a Kafka topic name and of a folder name."""
    return bool(_LEGAL.match(name)) and name not in {".", ".."}


@dataclass(frozen=True, order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """Read `topic[3]`. Raises `ValueError` on anything else."""
        topic, bracket, number = text.removesuffix("]").rpartition("[")
        if not bracket or not topic or not text.endswith("]"):
            raise ValueError(f"'{text}' is not a partition; write topic[0]")
        return cls(topic, int(number))


@dataclass(frozen=True, order=True)
class TaskId:
    """One sub-topology on one source partition, written `0_3` as in Kafka Streams."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read `0_3`. Raises `ValueError` on anything else."""
        subtopology, partition = text.split("_")
        return cls(int(subtopology), int(partition))


def changelog_topic(application_id: str, store: str, generation: int = 0) -> Topic:
    """Return the name of a store's changelog topic. An upgrade or rescale that rewrites the store adds a generation."""
    return Topic(f"{application_id}-{store}-changelog" + (f"-{generation}" if generation else ""))


def repartition_topic(application_id: str, name: str) -> Topic:
    """Return the name of the repartition topic between two sub-topologies."""
    return Topic(f"{application_id}-{name}-repartition")


def is_repartition_topic(application_id: str, topic: str) -> bool:
    """Return whether a topic has the name of one of the application's repartition topics."""
    return topic.startswith(f"{application_id}-") and topic.endswith("-repartition")


def commits_topic(application_id: str) -> Topic:
    """Return the name of the compacted topic of commit records."""
    return Topic(f"{application_id}-commits")


def dlq_topic(application_id: str) -> Topic:
    """Return the name of the topic of dead letters: records that could not be processed."""
    return Topic(f"{application_id}-dlq")


DESCRIPTION_KEY = b"topology"
"""Key of every record in the topic that `topology_topic` names."""


def topology_topic(application_id: str) -> Topic:
    """Return the name of the compacted topic that describes the application's state."""
    return Topic(f"{application_id}-topology")


def events_topic(application_id: str) -> Topic:
    """Return the name of the topic to which instances write events about themselves."""
    return Topic(f"{application_id}-events")


def endpoints_topic(application_id: str) -> Topic:
    """Return the name of the compacted topic on which instances and standbys announce where they answer queries."""
    return Topic(f"{application_id}-endpoints")


def transactional_id(application_id: str, instance: int) -> str:
    """Return the transactional id. It is stable per application and instance, so a second copy fences the first."""
    return f"{application_id}-{instance}"


def replays_transactional_id(application_id: str) -> str:
    """Return the transactional id of `dlq replay`. A second replay fences the first."""
    return f"{application_id}-dlq-replay"


def group_instance_id(application_id: str, instance: int) -> str:
    """Return the static membership id of an instance. It is the same after a relaunch."""
    return f"{application_id}-{instance}"


def first_named(named: Sequence[object], most: int = 3, what: str = "") -> str:
    """Return the first few names for a message, and how many more there are. `what` follows that number, such as ` topics`."""
    more = len(named) - most
    return ", ".join(map(str, named[:most])) + (f" and {more} more{what}" if more > 0 else "")


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    """Group offsets by topic and partition number, the form used in commit records and audits."""
    found: dict[str, dict[int, int]] = {}
    for partition, offset in offsets.items():
        found.setdefault(partition.topic, {})[partition.partition] = offset
    return found
