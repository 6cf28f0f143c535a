"""Takeover of the transactional ids of stopped instances, by commands that change an application."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.commit.producer import TransactionalProducer
from tidemark.commit.takeover import Takeover
from tidemark.operations.clients import Clients
from tidemark.restore.fencing import holders
from tidemark.topology.plan import TopologyPlan


def fencing_producer(clients: Clients, plan: TopologyPlan) -> TransactionalProducer:
    """Take over the transactional id of every instance with a folder here, and return instance 0's producer. Blocks.

    This settles the transactions that they left open, so that no reader waits for them; copies of them elsewhere can no
    longer commit.
    """
    known = {int(folder.parent.name) for folder in holders(clients.settings.state_dir, plan.application_id)}
    fence(clients, plan, known - {0})
    return takeover(clients, plan).of(0, clients.settings.transaction_timeout_ms)


def fence(clients: Clients, plan: TopologyPlan, instances: Iterable[int]) -> None:
    """Take over the instances' transactional ids, and release them. Blocks."""
    for instance in instances:
        takeover(clients, plan).of(instance, clients.settings.transaction_timeout_ms)


def takeover(clients: Clients, plan: TopologyPlan) -> Takeover:
    """Return what takes over transactional ids of the instances of a plan."""
    return Takeover(plan, clients.settings, clients.client_config, clients.admin, clients.ends)
