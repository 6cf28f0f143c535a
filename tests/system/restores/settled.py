"""Whether a group is stable, asked of the broker, because the reports of its members are from different times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tidemark.kafka.offsets import describe_group, retry_until_stable
from tidemark.settings import Settings

_LOADED_S = 60
Assignments = Mapping[str, frozenset[str]]
"""Partitions as run files write them (`pulse-events[0]`), by `group.instance.id`."""


@dataclass(frozen=True)
class Group:
    """What the coordinator has."""

    is_stable: bool
    assigned: Assignments

    @classmethod
    def asked(cls, admin: AdminClient, settings: Settings, name: str) -> Group:
        """Ask, also while the coordinator still loads the group: the client's own call ends the process then."""
        summary = retry_until_stable(lambda: describe_group(settings, admin, name), name, _LOADED_S)
        return cls(
            summary.state == ConsumerGroupState.STABLE,
            {
                str(member.group_instance_id): frozenset(
                    f"{place.topic}[{place.partition}]"
                    for place in (member.assignment.topic_partitions if member.assignment else [])
                )
                for member in summary.members
            },
        )

    def is_settled(self, held: Assignments, tasks: int) -> bool:
        """Whether those that run hold what was assigned to them, and all of it.

        A cooperative rebalance has two rounds. Between them a partition is assigned to nobody, while the member that
        had it may still say that it holds it.
        """
        if not self.is_stable or any(self.assigned.get(member) != places for member, places in held.items()):
            return False
        return sum(map(len, held.values())) == tasks
