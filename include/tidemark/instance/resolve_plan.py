"""The application's description at the last commit, compared with the topology module before an instance joins the group."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.cluster import topic_configs, topic_ids
from tidemark.kafka.group import has_member, members
from tidemark.names import group_instance_id
from tidemark.registry.description import Description
from tidemark.registry.description_watch import DescriptionWatch
from tidemark.registry.kept_history import KeptHistory, observed_histories
from tidemark.registry.reader import describe_resolved
from tidemark.registry.routing import unroutable
from tidemark.registry.topic_identities import changed_topics, topics_in_use
from tidemark.settings import Settings
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.2


@dataclass(frozen=True)
class ResolvedPlan:
    """The plan of the topology module (`module`), and the committed description with the plan that runs (`watch`)."""

    module: TopologyPlan
    watch: DescriptionWatch

    @classmethod
    def of(cls, module: TopologyPlan, settings: Settings, admin: AdminClient) -> ResolvedPlan:
        """Read the committed description and settle the plan to run. Blocks.

        Raises `StartRefused` if the state belongs to another topology, if a source has got more partitions, or if a topic
        that holds state was deleted or created again. Warns of expressions that have other values because the sources are
        routed: an application that runs with one is not stopped.
        """
        watch = DescriptionWatch(module, settings, admin)
        if watch.found is not None and watch.found.routing:
            for reason in unroutable(module):
                log.warning("%s was rescaled: %s", module.application_id, reason)
        return cls(module, watch)

    @property
    def plan(self) -> TopologyPlan:
        """The plan that runs."""
        return self.watch.plan

    @property
    def found(self) -> Description | None:
        """The description at the last commit; None before the first one."""
        return self.watch.found

    @property
    def committed(self) -> dict[str, str]:
        """Return the topics that hold state and that the last commits knew, with their ids."""
        known = {} if self.found is None else self.found.topic_ids
        return {t: known[t] for t, use in topics_in_use(self.plan).items() if use.is_state and t in known}

    def topic_ids(self, settings: Settings, admin: AdminClient) -> dict[str, str]:
        """Return the ids of all topics of the plan, which exist by now, for the next commit. Blocks.

        Topics that hold state keep the committed id, so that one that is created again after this check is noticed.
        Raises `OutcomeUnknown` if a topic has been deleted meanwhile.
        """
        uses = topics_in_use(self.plan)
        ids = topic_ids(admin, list(uses), settings)
        if missing := [topic for topic in uses if topic not in ids]:
            raise OutcomeUnknown(
                f"topics {', '.join(missing)} were deleted while the instance was starting: it starts again"
            )
        known = {} if self.found is None else self.found.topic_ids
        for changed in changed_topics(uses, known, ids):
            if not changed.use.is_state:
                log.warning("%s; its new id is committed, and the application continues", changed.reason)
        return {**ids, **self.committed}

    def kept_history(self, settings: Settings, admin: AdminClient, clock: Callable[[], int]) -> dict[str, KeptHistory]:
        """Return how far back the history of each changelog goes, for the next commit. The changelogs exist by now. Blocks."""
        app = self.plan.application_id
        topics = [changelog_of(app, spec) for spec in self.plan.stores if spec.has_changelog]
        configs = topic_configs(admin, topics, settings)
        return observed_histories({} if self.found is None else self.found.kept_history, configs, clock())

    def description(
        self, partitions: Mapping[str, int], ids: Mapping[str, str], kept_history: Mapping[str, KeptHistory]
    ) -> bytes | None:
        """Return the description that the first commit must write, or None if it is already committed."""
        own = describe_resolved(self.module, self.found, partitions, ids, kept_history)
        return None if own == self.found else own.to_bytes()

    def has_grown(self, partitions: Mapping[str, int]) -> bool:
        """Return whether a routed source has partitions that no commit knows."""
        return self.found is not None and any(partitions[t] > n for t, n in self.found.partitions.items())


def await_session_end(
    admin: AdminClient, application_id: str, instance: int, settings: Settings, stop: threading.Event
) -> None:
    """Wait until this instance's earlier session has ended, or `stop` is set.

    Blocks for at most `session_timeout_ms` plus `broker_timeout_ms`. A static member that comes back within its session
    gets the partitions that it had, without those that were added meanwhile.
    """
    name = group_instance_id(application_id, instance)
    deadline = time.monotonic() + (settings.session_timeout_ms + settings.broker_timeout_ms) / 1000
    while not stop.is_set() and time.monotonic() < deadline:
        if not has_member(members(settings, admin, application_id), name):
            return
        log.info("a source has more partitions: waiting for the earlier session of %s to end", name)
        stop.wait(_ASK_AGAIN_S)
