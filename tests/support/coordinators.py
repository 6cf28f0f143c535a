"""The broker that coordinates a transactional id, computed from its name: confluent-kafka has no call that asks for it."""

from __future__ import annotations

from confluent_kafka.admin import ClusterMetadata

from tidemark.kafka.availability import coordinator_partition

TRANSACTIONS = "__transaction_state"
"""The topic whose leaders coordinate transactions."""


def transaction_coordinator(name: str, metadata: ClusterMetadata) -> int:
    """Return the id of the broker that coordinates a transactional id. `TRANSACTIONS` must be in the metadata."""
    partitions = metadata.topics[TRANSACTIONS].partitions
    return partitions[coordinator_partition(name, len(partitions))].leader
