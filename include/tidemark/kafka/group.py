"""The members of a consumer group."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka.admin import AdminClient

from tidemark.kafka.offsets import describe_group, retry_until_stable
from tidemark.settings import Settings


def members(settings: Settings, admin: AdminClient, application_id: str) -> list[str]:
    """Return the members of the application's group with their hosts; empty if the group does not exist. Blocks.

    A broker that has just started is asked again until `broker_timeout_ms` is over; then raises `OutcomeUnknown`.
    """

    def ask() -> list[str]:
        found = describe_group(settings, admin, application_id)
        return [f"{m.group_instance_id or m.member_id} at {m.host}" for m in found.members]

    return retry_until_stable(ask, application_id, settings.broker_timeout_ms / 1000)


def has_member(found: Iterable[str], name: str) -> bool:
    """Return whether one of the members that `members` found has this `group.instance.id`."""
    return any(member.startswith(f"{name} at ") for member in found)
