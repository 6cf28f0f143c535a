"""What an instance makes of the description that the last commits stand on, before it joins the group."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tidemark.broker.topics import partition_counts
from tidemark.change.description import Description
from tidemark.change.recorded import describe_settled, recorded, settled
from tidemark.names import group_instance_id
from tidemark.restore.fence import members
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.2


@dataclass(frozen=True)
class Settled:
    """`module` is the plan as its topology module has it, `plan` what is run; `found` None before the first commit."""

    module: TopologyPlan
    plan: TopologyPlan
    found: Description | None

    @classmethod
    def of(cls, module: TopologyPlan, settings: Settings, admin: AdminClient) -> Settled:
        """Blocks. Raises `StartRefused` where the state is another topology's, or a source has got more partitions."""
        partitions = partition_counts(admin, settings)
        found = recorded(settings, admin, module.application_id, partitions)
        return cls(module, settled(module, found, partitions), found)

    def description(self, partitions: Mapping[str, int]) -> bytes | None:
        """What the first commit has to write down; None where that stands there."""
        own = describe_settled(self.module, self.found, partitions)
        return None if own == self.found else own.to_bytes()

    def has_grown(self, partitions: Mapping[str, int]) -> bool:
        """Whether a routed source has partitions that no commit knows."""
        return self.found is not None and any(partitions[t] > n for t, n in self.found.partitions.items())


def await_session_end(
    admin: AdminClient, application_id: str, instance: int, settings: Settings, stop: threading.Event
) -> None:
    """Until this instance's earlier session has ended, or `stop` is set. Blocks for `session_timeout_ms` at the most.

    A static member that comes back within its session is given what it had, without partitions that came meanwhile.
    """
    name, timeout_s = group_instance_id(application_id, instance), settings.broker_timeout_ms / 1000
    deadline = time.monotonic() + settings.session_timeout_ms / 1000 + timeout_s
    while not stop.is_set() and time.monotonic() < deadline:
        if not any(member.startswith(f"{name} at ") for member in members(admin, application_id, timeout_s)):
            return
        log.info("a source has more partitions: waiting for the earlier session of %s to end", name)
        stop.wait(_ASK_AGAIN_S)
