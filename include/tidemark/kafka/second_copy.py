"""Decides whether the member that has replaced a fenced instance is a live second copy.

The group gives a `group.instance.id` to the member that joined last. That member may belong to another process or to none:
a request to join may be processed after its process has ended, and a new coordinator may read an old member from its log,
because coordinators write members to the log only when a rebalance ends. A process sends heartbeats, so its member stays in a
stable group for longer than a session. A member without a process does not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription  # type: ignore[attr-defined]

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.offsets import describe_group, retry_until_stable
from tidemark.names import group_instance_id
from tidemark.settings import Settings

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.5
_SESSIONS = 3
"""Sessions within which a group must show whether the other member has a process."""
_LOOK_HOLDS_S = 1.0
"""The age in seconds up to which a description of the group counts as that before the join."""


@dataclass(frozen=True)
class Sighting:
    """The report of a coordinator, between two monotonic times.

    `member_id` is that of the member with the instance's id, or None. With `is_empty`, the group has no member.
    """

    asked_s: float
    answered_s: float
    coordinator: int
    is_stable: bool
    is_empty: bool
    member_id: str | None


class Holder(Enum):
    """The verdict on the member that has replaced a fenced instance. The values are clauses of messages."""

    NOBODY = "no process is behind that member"
    COPY = "a process is behind that member"
    UNDECIDED = "it is not known whether a process is behind that member"


def judge(sightings: Sequence[Sighting], earlier: Collection[str], session_s: float) -> Holder:
    """Return what these sightings, the newest last, say of the member.

    `earlier` are ids of members that were there before this instance joined. If such a member has a process, the next launch
    of this instance fences that process.
    """
    last = sightings[-1]
    if last.member_id is None or last.member_id in earlier:
        return Holder.NOBODY
    since_s = last.answered_s
    for sighting in reversed(sightings):
        # In a rebalance, and with another coordinator, sessions begin again.
        if (sighting.coordinator, sighting.is_stable, sighting.member_id) != (last.coordinator, True, last.member_id):
            break
        since_s = sighting.answered_s
    # The member was there after the last question. An answer may wait for the processor for longer than a session.
    return Holder.COPY if last.asked_s - since_s > session_s else Holder.UNDECIDED


class SecondCopyCheck:
    """Asks the group's coordinator which member has the id of an instance."""

    def __init__(self, settings: Settings, admin: AdminClient, application_id: str, instance: int) -> None:
        self._settings = settings
        self._admin = admin
        self._group = application_id
        self._name = group_instance_id(application_id, instance)
        self._earlier: set[str] = set()
        self._before: Sighting | None = None
        # A fifth more than a session, for the time that the coordinator takes to notice its end and to answer.
        self._session_s = 1.2 * settings.session_timeout_ms / 1000

    def look_before_join(self) -> Sighting | None:
        """Describe the group before the instance joins it, and remember the member that has its id.

        Returns None if no coordinator answers. Call it just before the join: it asks again only if the last answer is older
        than a second. Blocks for `broker_timeout_ms` at most; never raises.
        """
        if self._before is not None and time.monotonic() - self._before.answered_s <= _LOOK_HOLDS_S:
            return self._before
        try:
            self._before = self._look()
        except OutcomeUnknown as error:
            # Without the id, `holder` needs a session to judge that member.
            log.warning("failed to look for the group's members, or an earlier one of %s: %s", self._name, error)
            return None
        if self._before.member_id is not None:
            self._earlier.add(self._before.member_id)
        return self._before

    def holder(self, stop: threading.Event) -> Holder:
        """Find out whether the member that has replaced the fenced instance has a process. Never raises.

        Blocks until that is known, at most for three sessions and `broker_timeout_ms`, or until `stop` is set.
        """
        deadline = time.monotonic() + _SESSIONS * self._session_s + self._settings.broker_timeout_ms / 1000
        seen: list[Sighting] = []
        while not stop.is_set() and time.monotonic() < deadline:
            try:
                seen.append(self._look())
            except OutcomeUnknown as error:
                log.warning("failed to look for the other member %s: %s", self._name, error)
                seen.clear()
            else:
                found = judge(seen, self._earlier, self._session_s)
                if found is not Holder.UNDECIDED:
                    return found
            stop.wait(_ASK_AGAIN_S)
        return Holder.UNDECIDED

    def _look(self) -> Sighting:
        asked_s = 0.0

        def describe() -> ConsumerGroupDescription:
            nonlocal asked_s
            asked_s = time.monotonic()
            return describe_group(self._settings, self._admin, self._group)

        found = retry_until_stable(describe, self._group, self._settings.broker_timeout_ms / 1000)
        holders = [member.member_id for member in found.members if member.group_instance_id == self._name]
        return Sighting(
            asked_s,
            time.monotonic(),
            found.coordinator.id,
            found.state is ConsumerGroupState.STABLE,
            not found.members,
            holders[0] if holders else None,
        )
