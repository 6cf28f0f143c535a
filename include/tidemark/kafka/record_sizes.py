"""The largest record that each topic accepts. A broker refuses a larger one together with its whole batch.

See invariant: no record stops a stream.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient

from tidemark.errors import PreflightFailed
from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.topics import written_topics
from tidemark.names import dlq_topic
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

MAX_MESSAGE_BYTES = "max.message.bytes"
_BATCH_BYTES = 61
"""Size of the header of a record batch, version 2, which a record that is sent alone needs too."""
_RECORD_BYTES = 36
_HEADER_BYTES = 10
"""The largest overhead of a record and of each of its headers, beside their contents (variable-length numbers)."""
_COMPRESSED_BY_TOPIC = 256
"""A topic that compresses by itself may enlarge incompressible data by one part in 256."""
_LEAST_DEAD_LETTER_BYTES = 16 << 10
BATCH_BYTES = 1 << 19
"""Size of the batches of a producer, unless a topic accepts less."""

SMALL_BATCH_BYTES = 15 << 10
"""Size of the batches for topics that a command creates later.

They accept as much as the brokers' default says, and an application whose topic of dead letters accepts less does not start.
"""

Headers = Sequence[tuple[str, bytes | None]]


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """Return the largest size that a record can have, sent alone and uncompressed; topics' limits apply to this size."""
    summary = sum(_HEADER_BYTES + len(name.encode()) + len(content or b"") for name, content in headers)
    return _BATCH_BYTES + _RECORD_BYTES + len(key or b"") + len(value or b"") + summary


@dataclass(frozen=True)
class SizeLimits:
    """The largest record, as counted by `record_bytes`, by topic. A topic that is not listed has no limit."""

    by_topic: Mapping[str, int] = field(default_factory=dict)

    def of(self, topic: str) -> int:
        """Return the size of the largest record that `topic` accepts."""
        return self.by_topic.get(topic, sys.maxsize)

    def oversized(self, topic: str, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the indexes of the messages that the topic would refuse."""
        if topic not in self.by_topic or not messages:
            return []
        limit = self.by_topic[topic]
        widest = sum(max(len(m[part] or b"") for m in messages) for part in ("key", "value"))
        if widest + _BATCH_BYTES + _RECORD_BYTES <= limit and not any("headers" in m for m in messages):
            return []
        sizes = (record_bytes(m["key"], m["value"], m.get("headers", ())) for m in messages)
        return [number for number, size in enumerate(sizes) if size > limit]

    def producer_config(self) -> dict[str, int]:
        """Return the options with which a librdkafka producer builds no batch that one of the topics refuses."""
        return {"batch.size": min([BATCH_BYTES, *self.by_topic.values()])}


NO_LIMITS = SizeLimits()


def limit_of(config: Mapping[str, str]) -> int:
    """Return the size of the largest record of a topic with these settings."""
    limit = int(config[MAX_MESSAGE_BYTES])
    if config.get("compression.type", "producer") in ("producer", "uncompressed"):
        return limit
    return limit - limit // _COMPRESSED_BY_TOPIC


def topic_limits(topics: Sequence[str], settings: Settings, admin: AdminClient) -> SizeLimits:
    """Return the limits of these topics, which must exist. Blocks; raises what `topic_configs` raises."""
    return SizeLimits({topic: limit_of(config) for topic, config in topic_configs(admin, topics, settings).items()})


def size_limits(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> SizeLimits:
    """Return the limits of every topic that instances write in a transaction. Blocks.

    Raises `PreflightFailed` if even a shortened dead letter would not fit into the topic of dead letters.
    """
    dlq = dlq_topic(plan.application_id)
    configs = topic_configs(admin, written_topics(plan), settings)
    limits = {topic: limit_of(config) for topic, config in configs.items()}
    if limits[dlq] < _LEAST_DEAD_LETTER_BYTES:
        raise PreflightFailed(
            f"topic {dlq} has {MAX_MESSAGE_BYTES}={configs[dlq][MAX_MESSAGE_BYTES]}: a dead letter with its reason takes up "
            f"to {_LEAST_DEAD_LETTER_BYTES} bytes; {raise_limit(dlq, _LEAST_DEAD_LETTER_BYTES)}"
        )
    return SizeLimits(limits)


def raise_limit(topic: str, needed_bytes: int) -> str:
    """Return the remedy, as text, that makes a topic accept records of this size."""
    return (
        f"raise it with `tidemark kafka configs --alter --entity-type topics --entity-name {topic} --add-config "
        f"{MAX_MESSAGE_BYTES}={needed_bytes}`"
    )
