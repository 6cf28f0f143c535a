"""The broker that coordinates a transactional id, computed from its name: confluent-kafka has no call that asks for it."""

from __future__ import annotations

from confluent_kafka.admin import ClusterMetadata

TRANSACTIONS = "__transaction_state"
"""The topic whose leaders coordinate transactions."""


def transaction_coordinator(name: str, metadata: ClusterMetadata) -> int:
    """Return the id of the broker that coordinates a transactional id. `TRANSACTIONS` must be in the metadata."""
    partitions = metadata.topics[TRANSACTIONS].partitions
    return partitions[_java_hash(name) % len(partitions)].leader


def _java_hash(text: str) -> int:
    """Return `String.hashCode` without its sign, which is what Kafka computes the partition of a name from."""
    found = 0
    for character in text:
        found = (31 * found + ord(character)) & 0xFFFFFFFF
    return found & 0x7FFFFFFF
