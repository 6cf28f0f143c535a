"""Broker outages that keep an application from running: no answer, partitions without a leader, too few replicas in sync."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]

from tidemark.errors import TidemarkError
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import short_timeout_s, topic_configs
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

_ANSWER_S = 3.0
_NAMED = 5
_COORDINATORS = frozenset({"__consumer_offsets", "__transaction_state"})
_NOT_LET_IN = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})


@dataclass(frozen=True)
class Outage:
    """Brokers cannot serve an application, for the reason `why`. If `is_partial`, some of them still answer."""

    why: str
    is_partial: bool


def external_topics(plan: TopologyPlan) -> tuple[str, ...]:
    """Return the topics that an application reads or writes and whose names do not begin with its own."""
    found = {t for s in plan.subtopologies for t in (*s.source_topics, *s.sink_topics)}
    return tuple(sorted(t for t in found if not t.startswith(f"{plan.application_id}-")))


def find_outage(settings: Settings, application_id: str, topics: Collection[str]) -> Outage | None:
    """Look once for an outage that affects `topics` or the application's own topics; return None if there is none.

    Blocks, for up to three seconds if no broker answers. A broker that refuses the user, or whose certificate is not
    trusted, is not an outage, as waiting does not help. Raises `InvalidSettings`.
    """
    refused: list[KafkaError] = []
    # A new client for each look: after failed connections, librdkafka waits longer and longer before it tries again.
    config: dict[str, Any] = {**librdkafka_config(settings), "error_cb": refused.append}
    client = AdminClient(config)
    try:
        metadata = client.list_topics(timeout=short_timeout_s(settings, _ANSWER_S))
    except KafkaException as error:
        client.poll(0)
        if any(said.code() in _NOT_LET_IN for said in refused):
            return None
        return Outage(f"no broker answers at {settings.bootstrap_servers}: {error.args[0].str()}", is_partial=False)
    needed = {t for t in metadata.topics if t in _COORDINATORS or t in topics or t.startswith(f"{application_id}-")}
    leaderless = [
        f"{t}[{p}]" for t in sorted(needed) for p, found in metadata.topics[t].partitions.items() if found.leader < 0
    ]
    if leaderless:
        return Outage(f"no broker leads {_first(leaderless)}", is_partial=True)
    short = list(_short_of_replicas(client, settings, metadata, needed))
    if short:
        return Outage(f"fewer replicas than min.insync.replicas are in sync of {_first(short)}", is_partial=True)
    return None


def _short_of_replicas(
    client: AdminClient, settings: Settings, metadata: ClusterMetadata, needed: Collection[str]
) -> Iterator[str]:
    """Yield the partitions that accept no record with acks=all. Reads settings only of topics with replicas out of sync."""
    missing = [
        t for t in sorted(needed) if any(len(p.isrs) < len(p.replicas) for p in metadata.topics[t].partitions.values())
    ]
    try:
        configs: Mapping[str, Mapping[str, str]] = topic_configs(client, missing, settings)
    except TidemarkError:
        return  # The user may not read them, or a broker has just gone away: the next look decides.
    for topic in missing:
        least = int(configs[topic].get("min.insync.replicas", 1))
        yield from (
            f"{topic}[{p}]" for p, found in metadata.topics[topic].partitions.items() if len(found.isrs) < least
        )


def _first(partitions: list[str]) -> str:
    more = len(partitions) - _NAMED
    return ", ".join(partitions[:_NAMED]) + (f" and {more} more partitions" if more > 0 else "")
