"""Regular queries to Kafka about an application's tasks, every few seconds, in a thread beside the following."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tidemark.errors import StartRefused, TidemarkError
from tidemark.kafka.cluster import topic_ids
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import partition_counts
from tidemark.names import TaskId, TopicPartition, topology_topic
from tidemark.recovery.facts import TaskFacts, Witnesses
from tidemark.registry.reader import recorded, require_topics, resolved
from tidemark.registry.topic_identities import Identities, LostTopic, topics_in_use
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_LOOK_S = 1.0
# On a busy machine, these queries must not take most of the time.
_LOOK_SHARE = 4.0


@dataclass(frozen=True)
class StandbyFacts:
    """The facts about all tasks at one time.

    `asked_ms` is the wall clock before the first query, so no fact is older; `asked_s` is the monotonic clock at that
    time. `lost` are topics that had another id, or did not exist, after the last query; all other facts are those of
    the known topics.
    """

    asked_ms: int
    asked_s: float
    tasks: Mapping[TaskId, TaskFacts]
    lost: Mapping[str, LostTopic]


class DescriptionWatch:
    """Checks whether the standby follows what `<app>-topology` describes. One thread at a time may call `look`.

    `outdated` may be read by any thread. A rescale, a reset or an upgrade writes another description and other
    changelogs. The old changelogs stay as they are, so their copies would seem up to date for ever.
    """

    def __init__(self, module: TopologyPlan, settings: Settings, admin: AdminClient) -> None:
        """Read the description that is followed from now on. Blocks. Raises `StartRefused`, `OutcomeUnknown`."""
        self._module = module
        self._settings = settings
        self._admin = admin
        self._ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
        self._place = TopicPartition(topology_topic(module.application_id), 0)
        self.outdated: str | None = None
        partitions = partition_counts(admin, settings)
        # The end is read before the contents, so that what is written in between is looked at again.
        self._seen = self._end(partitions)
        found = recorded(settings, admin, module, partitions)
        self.plan = resolved(module, found, partitions)
        if found is not None:
            require_topics(self.plan, found, settings, admin)
        self.partitions: Mapping[str, int] = partitions
        # If no commit has recorded a topic yet, it is identified by its present id.
        now = topic_ids(admin, [topic for topic in topics_in_use(self.plan) if topic in partitions], settings)
        known = {**now, **({} if found is None else found.topic_ids)}
        self.identities = Identities(known, lambda topics: topic_ids(admin, topics, settings))

    def _end(self, partitions: Mapping[str, int]) -> int:
        return self._ends.of([self._place])[self._place] if self._place.topic in partitions else 0

    def look(self) -> None:
        """Set `outdated` to the reason if the copies must be followed again. Blocks; raises `OutcomeUnknown`."""
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
        """Return topics of the state that a commit has accepted in place of those that are followed."""
        known = self.identities.known
        return [
            topic
            for topic, use in topics_in_use(self.plan).items()
            if use.is_state and topic in known and committed.get(topic, known[topic]) != known[topic]
        ]


class FactsPoller:
    """Keeps the newest facts, and checks the description. `look` asks once; `start` asks repeatedly in a thread."""

    def __init__(
        self, witnesses: Witnesses, tasks: Sequence[TaskId], description: DescriptionWatch | None = None
    ) -> None:
        self._witnesses = witnesses
        self._description = description
        self._tasks = list(tasks)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._sight: StandbyFacts | None = None

    @property
    def newest_facts(self) -> StandbyFacts:
        """The newest facts; asks if none are known yet, and then may raise `OutcomeUnknown`."""
        return self._sight or self.look()

    def look(self) -> StandbyFacts:
        """Ask now. Blocks, also while a transaction is open on the commits topic; raises `OutcomeUnknown`."""
        if self._description is not None:
            self._description.look()
        witnesses = self._witnesses
        asked_ms, asked_s = witnesses.clock(), time.monotonic()
        facts = witnesses.facts(self._tasks)
        # Asked last: a topic that has the known id now had it when the facts were read.
        self._sight = StandbyFacts(asked_ms, asked_s, facts, witnesses.identities.lost(witnesses.plan))
        return self._sight

    def start(self) -> None:
        """Ask repeatedly in a thread until `close`."""
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        is_lost = False
        pause_s = _LOOK_S
        while not self._stop.wait(pause_s):
            started = time.monotonic()
            try:
                self.look()
                is_lost = False
            except TidemarkError as error:
                if not is_lost:
                    log.warning(
                        "failed to read the current tasks; following continues with those read last: %s",
                        error,
                    )
                is_lost = True
            pause_s = max(_LOOK_S, _LOOK_SHARE * (time.monotonic() - started))

    def close(self) -> None:
        """Stop asking. Blocks until a running query ends."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
