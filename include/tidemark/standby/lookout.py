"""What Kafka says of an application's tasks, asked again every few seconds beside the following."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tidemark.broker.offsets import EndOffsets
from tidemark.broker.topics import partition_counts
from tidemark.change.recorded import recorded, settled
from tidemark.errors import StartRefused, TidemarkError
from tidemark.names import TaskId, TopicPartition, topology_topic
from tidemark.settings import Settings
from tidemark.start.witnesses import TaskFacts, Witnesses
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_LOOK_S = 2.0
# On a machine that works, looking must not become the work.
_LOOK_SHARE = 4.0


@dataclass(frozen=True)
class Sight:
    """Facts of all tasks. `asked_ms`: wall clock before the first question, so nothing in it is older."""

    asked_ms: int
    tasks: Mapping[TaskId, TaskFacts]


class DescriptionWatch:
    """Whether what is followed is still what `<app>-topology` describes. One thread at a time looks; any may ask.

    A rescale, a reset or an upgrade writes another description and other changelogs: the old ones stay as they are, and a
    copy of them looks level for ever.
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
        # The end before the contents: what is written in between is looked at once more.
        self._seen = self._end(partitions)
        found = recorded(settings, admin, module.application_id, partitions)
        self.plan = settled(module, found, partitions)
        self.partitions: Mapping[str, int] = partitions

    def _end(self, partitions: Mapping[str, int]) -> int:
        return self._ends.of([self._place])[self._place] if self._place.topic in partitions else 0

    def look(self) -> None:
        """Set `outdated`, why the copies must be followed anew, where that is so. Blocks; raises `OutcomeUnknown`."""
        if self.outdated is not None:
            return
        # Asking for the end alone is cheap, and all there is to do nearly always.
        end = self._end({self._place.topic: 1} if self._seen else partition_counts(self._admin, self._settings))
        if end == self._seen:
            return
        partitions = partition_counts(self._admin, self._settings)
        try:
            found = recorded(self._settings, self._admin, self._module.application_id, partitions)
            if settled(self._module, found, partitions) != self.plan:
                self.outdated = "its stores have been written to other changelogs, or its tasks are others"
        except StartRefused as error:
            self.outdated = str(error)
        self._seen = end


class Lookout:
    """Keeps the newest sight, and looks at the description. `look` asks once; `start` lets a thread ask on."""

    def __init__(
        self, witnesses: Witnesses, tasks: Sequence[TaskId], description: DescriptionWatch | None = None
    ) -> None:
        self._witnesses = witnesses
        self._description = description
        self._tasks = list(tasks)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._sight: Sight | None = None

    @property
    def sight(self) -> Sight:
        """The newest; asks where nobody has asked yet. Raises `OutcomeUnknown` then."""
        return self._sight or self.look()

    def look(self) -> Sight:
        """Ask now. Blocks, also for a transaction that is open on the commits topic; raises `OutcomeUnknown`."""
        if self._description is not None:
            self._description.look()
        asked_ms = self._witnesses.clock()
        self._sight = Sight(asked_ms, self._witnesses.facts(self._tasks))
        return self._sight

    def start(self) -> None:
        """Ask on in a thread until `close`."""
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
                    log.warning("following goes on with what was known before: %s", error)
                is_lost = True
            pause_s = max(_LOOK_S, _LOOK_SHARE * (time.monotonic() - started))

    def close(self) -> None:
        """Ask no more. Blocks for a question that is being asked."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
