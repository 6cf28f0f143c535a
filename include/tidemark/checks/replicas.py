"""The samples of the durability check: the replicas of an application's topics, and the settings that protect them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidemark.names import TopicPartition
from tidemark.registry.topic_identities import LostTopic
from tidemark.topology.plan import Acks


class TopicRole(StrEnum):
    """The use that an application makes of a topic. State and exactly-once depend on the last two."""

    SOURCE = "source"
    SINK = "sink"
    INTERNAL = "internal"
    KAFKA = "kafka's own"

    @property
    def is_truth(self) -> bool:
        """Return whether a task cannot continue without the topic's records."""
        return self in (TopicRole.INTERNAL, TopicRole.KAFKA)


@dataclass(frozen=True)
class Replicas:
    """One partition. `leader` is None if it is offline. `eligible` are the brokers outside `in_sync` that have all acknowledged
    records and may lead again (eligible leader replicas); None if they were not asked for."""

    partition: TopicPartition
    leader: int | None
    replicas: frozenset[int]
    in_sync: frozenset[int]
    eligible: frozenset[int] | None = None


@dataclass(frozen=True)
class TopicDurability:
    """One topic. `unclean_election`: a replica that lacks records may become leader.

    `deleted_above_bytes`: the size of a partition above which the broker deletes its oldest records; None if it does not, or
    if the topic holds no state. `truncated` are the partitions of a changelog that have lost their beginning though the topic
    is only compacted.
    """

    topic: str
    role: TopicRole
    min_in_sync: int
    unclean_election: bool
    partitions: tuple[Replicas, ...]
    deleted_above_bytes: int | None = None
    truncated: tuple[int, ...] = ()

    @property
    def replication(self) -> int:
        """Return the smallest number of replicas among its partitions."""
        return min((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True)
class ClusterDurability:
    """A sample of the cluster. `brokers` are those that answer. `stated_acks` is the topology's setting for outputs, `acks`
    that of each running instance, None if its run file has none. `transaction_replication` and `transaction_min_in_sync` are
    the settings `transaction.state.log…`; `flush_messages` is `log.flush.interval.messages`. `tolerated_broker_failures`: what
    the topology asks for. `known_topics` counts the topics with an id in the last commit; `lost` are those of them that hold
    state and
    that were deleted or created again since."""

    brokers: frozenset[int]
    topics: tuple[TopicDurability, ...]
    acks: dict[int, Acks | None]
    transaction_replication: int
    transaction_min_in_sync: int
    flush_messages: int
    tolerated_broker_failures: int = 0
    known_topics: int = 0
    lost: tuple[LostTopic, ...] = ()
    stated_acks: Acks = Acks.ALL

    @property
    def weakest_acks(self) -> Acks:
        """Return the weakest `acks` of any output, by what the topology states and what running instances report."""
        said = [acks for acks in self.acks.values() if acks is not None]
        return min([self.stated_acks, *said], key=list(Acks).index)

    def acks_of(self, topic: TopicDurability) -> Acks:
        """Return the weakest `acks` with which records of a topic are written. State is always written with `all`."""
        return self.weakest_acks if topic.role is TopicRole.SINK else Acks.ALL

    def is_acknowledged_by_one(self, topic: TopicDurability) -> bool:
        """Return whether one of several replicas may acknowledge a record that waits for all in sync."""
        return topic.replication > 1 and topic.min_in_sync == 1 and self.acks_of(topic) is Acks.ALL

    @property
    def known_brokers(self) -> frozenset[int]:
        """Return the brokers that answer and those that should have a replica."""
        return self.brokers.union(*(p.replicas for topic in self.topics for p in topic.partitions))

    @property
    def is_single(self) -> bool:
        """Return whether the cluster has one broker by design."""
        return len(self.known_brokers) == 1
