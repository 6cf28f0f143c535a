"""Topic settings of changelogs and of an application's other internal topics.

See invariants: commit records, two retentions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.kafka.record_timestamps import EVENT_TIME_CONFIG
from tidemark.settings import Settings
from tidemark.topology.plan import StoreKind, StoreSpec, TopologyPlan

DAY_MS = 86_400_000
UNLIMITED_BYTES = {"retention.bytes": "-1"}
"""Settings of a topic that never deletes by size, whatever `log.retention.bytes` the brokers have."""
DRILL_WINDOW_MS = 600_000
"""Age below which changelog records are not compacted, so that a drill can rebuild a recent state."""


PROFILES: Mapping[str, Mapping[str, str]] = {
    "default": {},
    # Small segments that roll soon, compacted as soon as a tenth of them is dirty: restores read less, brokers work more.
    "aggressive_compaction": {
        "segment.bytes": str(16 << 20),
        "segment.ms": "600000",
        "min.cleanable.dirty.ratio": "0.1",
        "max.compaction.lag.ms": "3600000",
        "min.compaction.lag.ms": "60000",
        "delete.retention.ms": "3600000",
    },
}
"""Named topic settings of a store's changelog."""


@dataclass(frozen=True)
class ChangelogPolicy:
    """Settings of one changelog topic. `retention_ms` is None if the topic is only compacted."""

    cleanup_policy: str
    retention_ms: int | None
    delete_retention_ms: int
    min_compaction_lag_ms: int
    more: tuple[tuple[str, str], ...] = ()

    def config(self) -> dict[str, str]:
        """Return the settings as Kafka topic configuration."""
        config = {
            "cleanup.policy": self.cleanup_policy,
            "delete.retention.ms": str(self.delete_retention_ms),
            "min.compaction.lag.ms": str(self.min_compaction_lag_ms),
            "message.timestamp.type": "CreateTime",
            **UNLIMITED_BYTES,
        }
        if self.retention_ms is not None:
            config["retention.ms"] = str(self.retention_ms)
        return {**config, **dict(self.more)}


def changelog_policy(store: StoreSpec) -> ChangelogPolicy:
    """Return the policy of a store: key-value stores compact; window stores also delete, one day after their retention.

    See invariant: two retentions.
    """
    more = {**PROFILES[store.profile], **dict(store.topic_config)}
    delete_retention_ms = int(more.pop("delete.retention.ms", DAY_MS))
    lag_ms = int(more.pop("min.compaction.lag.ms", DRILL_WINDOW_MS))
    rest = tuple(sorted(more.items()))
    if store.kind is StoreKind.KEY_VALUE or store.retention_ms is None:
        return ChangelogPolicy("compact", None, delete_retention_ms, lag_ms, rest)
    return ChangelogPolicy("compact,delete", store.retention_ms + DAY_MS, delete_retention_ms, lag_ms, rest)


def changelog_policies(plan: TopologyPlan) -> Mapping[str, ChangelogPolicy]:
    """Return the policy of each store by its name."""
    return {store.name: changelog_policy(store) for store in plan.stores}


def repartition_config() -> dict[str, str]:
    """Return the settings of `<app>-<name>-repartition`: records never expire; Tidemark deletes the committed ones.

    Timestamps are event time, however old or new that is. See invariant: one transaction per batch.
    """
    return {"cleanup.policy": "delete", "retention.ms": "-1", **UNLIMITED_BYTES, **EVENT_TIME_CONFIG}


def commits_config(settings: Settings) -> dict[str, str]:
    """Return the settings of `<app>-commits`: a task's last record is kept for ever, its history for the audit window.

    See invariant: commit records.
    """
    return {"cleanup.policy": "compact", "min.compaction.lag.ms": str(settings.commit_record_retention_ms)}


def dlq_config() -> dict[str, str]:
    """Return the settings of `<app>-dlq`: dead letters are kept for a week."""
    return {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)}


def events_config() -> dict[str, str]:
    """Return the settings of `<app>-events`: events of instances are kept for a week."""
    return {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)}


def endpoints_config() -> dict[str, str]:
    """Return the settings of `<app>-endpoints`, which says where queries are answered; the last record of a process counts.

    Each process writes one every half minute, and each start reads them all, so they are compacted after an hour.
    """
    return {"cleanup.policy": "compact", "segment.ms": "3600000"}


def topology_config() -> dict[str, str]:
    """Return the settings of `<app>-topology`, which describes the state; only the last record counts."""
    return {"cleanup.policy": "compact"}
