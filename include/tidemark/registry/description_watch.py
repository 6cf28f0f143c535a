"""Watches `<app>-topology` for the description of another state, beside a process that has begun with the present one.

An upgrade, a rescale, a repair or a reset writes another description and other changelogs, possibly on another machine. The old
changelogs stay as they are: copies of them would seem up to date for ever, and what is written to them would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from tidemark.errors import StartRefused
from tidemark.kafka.cluster import topic_ids
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import partition_counts
from tidemark.names import TopicPartition, topology_topic
from tidemark.registry.reader import named, recorded, require_topics, resolved
from tidemark.registry.topic_identities import Identities, topics_in_use
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


class DescriptionWatch:
    """The description that a process works by, and whether `<app>-topology` still describes that state.

    `found` is the description as it was read first, None before the first commit; `plan` the module's plan by it. One thread at
    a time may call `look`. `outdated` may be read by any thread.
    """

    def __init__(self, module: TopologyPlan, settings: Settings, admin: AdminClient) -> None:
        """Read the description. Blocks.

        Raises `StartRefused` if the state belongs to another topology, if a source has got more partitions, or if a topic
        that holds state was deleted or created again; `OutcomeUnknown` if Kafka does not answer.
        """
        self._module = module
        self._settings = settings
        self._admin = admin
        self._ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
        self._place = TopicPartition(topology_topic(module.application_id), 0)
        self.outdated: str | None = None
        partitions = partition_counts(admin, settings)
        # The end is read before the contents, so that what is written in between is looked at again.
        self._seen = self._end(partitions)
        self.found = found = recorded(settings, admin, module, partitions)
        if found is not None:
            # This check comes first: a topic that was created again may also have another number of partitions.
            require_topics(named(module, found), found, settings, admin)
        self.plan = resolved(module, found, partitions)
        self.partitions: Mapping[str, int] = partitions
        # If no commit has recorded a topic yet, it is identified by its present id.
        now = topic_ids(admin, [topic for topic in topics_in_use(self.plan) if topic in partitions], settings)
        known = {**now, **({} if found is None else found.topic_ids)}
        self.identities = Identities(known, lambda topics: topic_ids(admin, topics, settings))

    def _end(self, partitions: Mapping[str, int]) -> int:
        return self._ends.of([self._place])[self._place] if self._place.topic in partitions else 0

    def look(self) -> None:
        """Set `outdated` to the reason if the description is now that of another state. Blocks; raises `OutcomeUnknown`.

        Waits for an open transaction that writes another description.
        """
        if self.outdated is not None:
            return
        # Reading only the end is cheap, and nearly always enough.
        end = self._end({self._place.topic: 1} if self._seen else partition_counts(self._admin, self._settings))
        if end == self._seen:
            return
        partitions = partition_counts(self._admin, self._settings)
        try:
            found = recorded(self._settings, self._admin, self._module, partitions)
            if resolved(self._module, found, partitions) != self.plan:
                self.outdated = "its stores have been written to other changelogs, or its tasks have changed"
            elif other := self._others(found.topic_ids if found is not None else {}):
                self.outdated = f"the application now uses a topic {other[0]} that was created again"
        except StartRefused as error:
            self.outdated = str(error)
        self._seen = end

    def _others(self, committed: Mapping[str, str]) -> list[str]:
        """Return topics of the state that a commit has accepted in place of those that were known."""
        known = self.identities.known
        return [
            topic
            for topic, use in topics_in_use(self.plan).items()
            if use.is_state and topic in known and committed.get(topic, known[topic]) != known[topic]
        ]
