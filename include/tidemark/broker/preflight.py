"""What must hold before an instance starts: broker, topics, partitions, folders. Each failure is one line with a remedy."""

from __future__ import annotations

import os
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from tidemark.broker.topics import ensure_internal_topics, partition_counts, user_topics
from tidemark.errors import PreflightFailed
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


def preflight(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> Mapping[str, int]:
    """Check, create internal topics, and give the partition count of every topic. Raises `PreflightFailed`."""
    existing = partition_counts(admin, settings)
    for topic in user_topics(plan):
        if topic not in existing:
            raise PreflightFailed(
                f"topic {topic} of {plan.application_id} does not exist at {settings.bootstrap_servers}; create it, or let "
                "`tidemark topics create` do it"
            )
    _check_folder(settings)
    ensure_internal_topics(plan, settings, admin, existing)
    return partition_counts(admin, settings)


def _check_folder(settings: Settings) -> None:
    folder = settings.state_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason: str | None = error.strerror
    else:
        reason = None if os.access(folder, os.W_OK | os.X_OK) else "permission denied"
    if reason:
        raise PreflightFailed(
            f"state folder {folder} cannot be written ({reason}): give this user the right to, or set "
            "TIDEMARK_STATE_DIR to another folder"
        )
