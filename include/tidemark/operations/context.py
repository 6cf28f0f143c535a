"""The clients, the evidence reader and the store rebuilder of one application, for operations that need all three."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemark.checks.never_ran import never_ran
from tidemark.errors import StartRefused
from tidemark.kafka.cluster import topic_ids
from tidemark.kafka.operator_acls import Command
from tidemark.kafka.topic_config import changelog_policies
from tidemark.kafka.topics import partition_counts
from tidemark.operations.clients import Clients
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.operations.store_rebuilder import StoreRebuilder
from tidemark.recovery.copy_source import CopySource
from tidemark.recovery.facts import Witnesses
from tidemark.registry.computations import computations, source_sql
from tidemark.registry.description import Description
from tidemark.registry.operator_rights import verified_description
from tidemark.registry.reader import recorded, resolved
from tidemark.registry.topic_identities import Identities
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


@dataclass(frozen=True)
class OperationContext:
    """What an operation on one application works with. All three parts use the same clients and the same plan."""

    clients: Clients
    evidence: EvidenceReader
    rebuilder: StoreRebuilder

    @property
    def plan(self) -> TopologyPlan:
        """The plan, with the generations of its stores."""
        return self.evidence.plan

    def require_has_run(self) -> None:
        """Raise `StartRefused` if the application has never run at these brokers. Blocks; raises `OutcomeUnknown`."""
        for finding in never_ran(self.plan, self.clients.settings, self.clients.admin):
            raise StartRefused(f"{finding.subject} {finding.message}")

    @classmethod
    def of(
        cls,
        plan: TopologyPlan,
        settings: Settings,
        copies: Sequence[CopySource],
        clock: Callable[[], int],
        command: Command | None = None,
    ) -> OperationContext:
        """Create the context of the plan as the last upgrade or rescale left it.

        Blocks. Raises `InvalidSettings`, `OutcomeUnknown`, `StartRefused` if the state belongs to another topology, and
        `PreflightFailed` if the user may not do what `command` needs.
        """
        clients = Clients.of(settings, clock)
        admin = clients.admin
        if command is None:
            partitions = partition_counts(admin, settings)
            found = recorded(settings, admin, plan, partitions)
        else:
            # Counted afterwards: a topic that the user may not see is not among them.
            found = verified_description(command, plan, settings, admin)
            partitions = partition_counts(admin, settings)
        return cls._with(resolved(plan, found, partitions), clients, copies, found)

    @classmethod
    def exactly(
        cls,
        plan: TopologyPlan,
        settings: Settings,
        copies: Sequence[CopySource],
        clock: Callable[[], int],
        found: Description | None,
    ) -> OperationContext:
        """Create the context of a plan whose stores have their generations already.

        `found` is the description at the last commit, whose topic ids must be those of now; None if they may be others.
        Raises `InvalidSettings`.
        """
        return cls._with(plan, Clients.of(settings, clock), copies, found)

    @classmethod
    def _with(
        cls, plan: TopologyPlan, clients: Clients, copies: Sequence[CopySource], found: Description | None
    ) -> OperationContext:
        settings = clients.settings
        known_ids = {} if found is None else found.topic_ids
        identities = Identities(known_ids, lambda topics: topic_ids(clients.admin, topics, settings))
        policies = changelog_policies(plan)
        witnesses = Witnesses(
            plan,
            settings,
            clients.client_config,
            clients.ends,
            policies,
            clients.clock,
            identities,
            {} if found is None else found.not_recomputable_by(computations(plan), source_sql(plan)),
            {} if found is None else found.kept_history,
        )
        evidence = EvidenceReader(clients, witnesses, copies)
        return cls(clients, evidence, StoreRebuilder(clients, evidence))
