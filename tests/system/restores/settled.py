"""Whether a group is stable, asked of the broker, because the reports of its members are from different times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

Assignments = Mapping[str, frozenset[str]]
"""Partitions as run files write them (`pulse-events[0]`), by `group.instance.id`."""


@dataclass(frozen=True)
class Group:
    """What the coordinator has."""

    is_stable: bool
    assigned: Assignments

    @classmethod
    def asked(cls, admin: AdminClient, name: str) -> Group:
        """Ask now."""
        summary = admin.describe_consumer_groups([name], request_timeout=60)[name].result()
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
