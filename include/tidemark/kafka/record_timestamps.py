"""Timestamps that sinks accept: a broker refuses one too far from its clock, together with the record's whole batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.messages import Message
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

NO_BOUND_MS = (1 << 63) - 1
_TYPE, _CREATE_TIME = "message.timestamp.type", "CreateTime"
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
_CLOCKS_APART_MS = 60_000
EVENT_TIME_CONFIG: Mapping[str, str] = {_TYPE: _CREATE_TIME, _BEFORE: str(NO_BOUND_MS), _AFTER: str(NO_BOUND_MS)}
"""Settings of a topic that accepts every event time."""


@dataclass(frozen=True)
class TimestampBounds:
    """The range around the broker's clock in which a record's timestamp must be."""

    before_ms: int
    after_ms: int

    def within(self, messages: Sequence[Message], now_ms: int) -> Sequence[Message]:
        """Return the messages, with each timestamp that the topic would refuse replaced by the nearest one that it accepts.

        Keeps a margin of a minute for clocks that differ. See invariant: no record stops a stream.
        """
        first_ms = now_ms - self.before_ms + min(_CLOCKS_APART_MS, self.before_ms)
        last_ms = now_ms + self.after_ms - min(_CLOCKS_APART_MS, self.after_ms)
        if all(first_ms <= message["timestamp"] <= last_ms for message in messages):
            return messages
        return [{**message, "timestamp": min(max(message["timestamp"], first_ms), last_ms)} for message in messages]


def bounds_of(config: Mapping[str, str]) -> TimestampBounds | None:
    """Return a topic's bounds, or None if it accepts every timestamp or replaces them with its own."""
    before_ms, after_ms = (int(config.get(key, NO_BOUND_MS)) for key in (_BEFORE, _AFTER))
    if config.get(_TYPE, _CREATE_TIME) != _CREATE_TIME or before_ms == after_ms == NO_BOUND_MS:
        return None
    return TimestampBounds(before_ms, after_ms)


def sink_timestamp_bounds(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> Mapping[str, TimestampBounds]:
    """Return the bounds of the user's sinks, by topic. Logs a warning for each sink that does not keep event time. Blocks."""
    internal = set(plan.repartition_topics)
    sinks = sorted({topic for s in plan.subtopologies for topic in s.sink_topics if topic not in internal})
    found: dict[str, TimestampBounds] = {}
    for topic, config in topic_configs(admin, sinks, settings).items():
        if config.get(_TYPE, _CREATE_TIME) != _CREATE_TIME:
            log.warning(
                "sink topic %s has %s=%s: its records carry the time at which they are written, not their event time; to "
                "keep event time, set %s=%s", topic, _TYPE, config[_TYPE], _TYPE, _CREATE_TIME,
            )  # fmt: skip
        if bounds := bounds_of(config):
            found[topic] = bounds
    return found
