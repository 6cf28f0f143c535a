"""The Kafka clients, the settings and the clock with which the operations on one application work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.committed_reader import ChangelogBatch, messages_until, read_committed_until, stalled_after
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TopicPartition
from tidemark.settings import Settings


@dataclass(frozen=True)
class Clients:
    """Reaches Kafka without knowing any plan. `clock` returns epoch milliseconds."""

    settings: Settings
    admin: AdminClient
    client_config: Mapping[str, Any]
    ends: EndOffsets
    clock: Callable[[], int]

    @classmethod
    def of(cls, settings: Settings, clock: Callable[[], int]) -> Clients:
        """Create the clients. Raises `InvalidSettings`."""
        client_config = librdkafka_config(settings)
        admin = AdminClient(client_config)
        return cls(settings, admin, client_config, EndOffsets(admin, settings.broker_timeout_ms / 1000), clock)

    def read(
        self, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool] = lambda: True
    ) -> Iterator[ChangelogBatch]:
        """Yield the committed records of [start, end), see `read_committed_until`."""
        stalled_after_s = stalled_after(self.settings)
        return read_committed_until(
            self.client_config, partition, start, end, stalled_after_s=stalled_after_s, should_continue=should_continue
        )

    def messages(self, partition: TopicPartition, start: int, end: int) -> Iterator[list[Message]]:
        """Yield the same records with their timestamps and headers. Blocks."""
        stalled_after_s = stalled_after(self.settings)
        found = messages_until(
            self.client_config, partition, start, end, stalled_after_s=stalled_after_s, should_continue=lambda: True
        )
        return (messages for messages, _ in found)
