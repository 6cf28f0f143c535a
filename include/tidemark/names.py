"""Names of things in Kafka, on disk and in Airflow, each derived in one place.

The naming follows Kafka Streams: `<application_id>-<store>-changelog`, task ids `<subtopology>_<partition>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

Topic = NewType("Topic", str)
StoreName = NewType("StoreName", str)
ApplicationId = NewType("ApplicationId", str)

MAINTENANCE_POOL = "maintenance"
"""Airflow's pool of the tasks that look after streams, so that they leave slots for the streams themselves."""

_LEGAL = re.compile(r"^[a-zA-Z0-9._-]{1,200}$")


def is_legal_name(name: str) -> bool:
    """Whether `name` may be part of a Kafka topic name and of a folder name."""
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
        """Read `topic[3]`; raises `ValueError` on anything else."""
        topic, bracket, number = text.removesuffix("]").rpartition("[")
        if not bracket or not topic or not text.endswith("]"):
            raise ValueError(f"'{text}' is no partition; write topic[0]")
        return cls(topic, int(number))


@dataclass(frozen=True, order=True)
class TaskId:
    """One sub-topology on one source partition; written `0_3`, as Kafka Streams does."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read `0_3`; raises `ValueError` on anything else."""
        subtopology, partition = text.split("_")
        return cls(int(subtopology), int(partition))


def changelog_topic(application_id: str, store: str, generation: int = 0) -> Topic:
    """Name of the topic that backs a store. Each upgrade or rescale that writes a store anew makes a new generation."""
    return Topic(f"{application_id}-{store}-changelog" + (f"-{generation}" if generation else ""))


def repartition_topic(application_id: str, name: str) -> Topic:
    """Name of a topic between two sub-topologies."""
    return Topic(f"{application_id}-{name}-repartition")


def is_repartition_topic(application_id: str, topic: str) -> bool:
    """Whether a topic has the name of one between two of the application's sub-topologies."""
    return topic.startswith(f"{application_id}-") and topic.endswith("-repartition")


def commits_topic(application_id: str) -> Topic:
    """Name of the compacted topic of commit records."""
    return Topic(f"{application_id}-commits")


def dlq_topic(application_id: str) -> Topic:
    """Name of the topic that receives records which cannot be processed."""
    return Topic(f"{application_id}-dlq")


DESCRIPTION_KEY = b"topology"
"""Key of every record of the topic that `topology_topic` names."""


def topology_topic(application_id: str) -> Topic:
    """Name of the compacted topic that describes what the application's state consists of."""
    return Topic(f"{application_id}-topology")


def events_topic(application_id: str) -> Topic:
    """Name of the topic of what instances tell of themselves."""
    return Topic(f"{application_id}-events")


def transactional_id(application_id: str, instance: int) -> str:
    """Stable per application and instance, so that a second copy of an instance fences the first."""
    return f"{application_id}-{instance}"


def group_instance_id(application_id: str, instance: int) -> str:
    """Static membership id of an instance; survives relaunches."""
    return f"{application_id}-{instance}"


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    """The same by topic and partition number, as records of commits and audits hold them."""
    found: dict[str, dict[int, int]] = {}
    for partition, offset in offsets.items():
        found.setdefault(partition.topic, {})[partition.partition] = offset
    return found
