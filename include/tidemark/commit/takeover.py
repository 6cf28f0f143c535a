"""Takes the transactional id of an instance over: its open transaction is settled, and copies of it can no longer commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient

from tidemark.commit.lost_markers import LostMarkers
from tidemark.commit.producer import TransactionalProducer
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import partition_counts, written_partitions
from tidemark.names import transactional_id
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

_QUEUED_RECORDS = 500_000


@dataclass(frozen=True)
class Takeover:
    """Takes over transactional ids of the instances of one application."""

    plan: TopologyPlan
    settings: Settings
    client_config: Mapping[str, Any]
    admin: AdminClient
    ends: EndOffsets

    def of(self, instance: int, timeout_ms: int) -> TransactionalProducer:
        """Return an initialised producer with the instance's transactional id and this transaction time-out. Blocks.

        Raises `PreflightFailed` if only the instance itself can end what it has left open, and what `LostMarkers.init` raises.
        """
        name = transactional_id(self.plan.application_id, instance)
        producer = TransactionalProducer(self.client_config, name, timeout_ms, _QUEUED_RECORDS)
        places = written_partitions(self.plan, partition_counts(self.admin, self.settings))
        LostMarkers(producer, self.admin, self.ends, self.settings, places).init(
            stalled_after(self.settings), ends_them=False
        )
        return producer
