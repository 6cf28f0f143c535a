"""Regular queries to Kafka about an application's tasks, every few seconds, in a thread beside the following."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.errors import OutcomeUnknown, TidemarkError
from tidemark.names import TaskId
from tidemark.recovery.facts import TaskFacts, Witnesses
from tidemark.registry.description_watch import DescriptionWatch
from tidemark.registry.topic_identities import LostTopic

log = logging.getLogger(__name__)

_LOOK_S = 1.0
# On a busy machine, these queries must not take most of the time.
_LOOK_SHARE = 4.0
# The checkpoints are written afterwards, before the process is killed (`tidemark.supervision.launch.STOP_GRACE_S`).
_CLOSE_S = 5.0


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
        """The newest facts; asks if none are known yet, and then may raise `OutcomeUnknown`.

        Also raises `OutcomeUnknown` if the thread has ended although it was not closed: the facts would stay as they are.
        """
        if self._thread is not None and not self._thread.is_alive() and not self._stop.is_set():
            raise OutcomeUnknown("the thread that reads the current tasks has ended: start the standby again")
        return self._sight or self.look()

    def look(self) -> StandbyFacts:
        """Ask now. Blocks, also while a transaction is open on the commits topic; raises `OutcomeUnknown`."""
        if self._description is not None:
            self._description.look()
        witnesses = self._witnesses
        asked_ms, asked_s = witnesses.clock(), time.monotonic()
        facts = witnesses.current_offsets(self._tasks)
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
            # Without this thread, the standby would report old facts for ever.
            except Exception as error:
                if not is_lost:
                    log.warning(
                        "failed to read the current tasks; following continues with those read last: %s",
                        error,
                        exc_info=not isinstance(error, TidemarkError),
                    )
                is_lost = True
            pause_s = max(_LOOK_S, _LOOK_SHARE * (time.monotonic() - started))

    def close(self) -> None:
        """Stop asking. Blocks for a query that runs, but for seconds at most: without a broker, it ends with the process."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
