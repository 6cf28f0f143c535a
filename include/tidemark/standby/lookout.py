"""What Kafka says of an application's tasks, asked again every few seconds beside the following."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.errors import TidemarkError
from tidemark.names import TaskId
from tidemark.start.witnesses import TaskFacts, Witnesses

log = logging.getLogger(__name__)

_LOOK_S = 2.0
# On a machine that works, looking must not become the work.
_LOOK_SHARE = 4.0


@dataclass(frozen=True)
class Sight:
    """Facts of all tasks. `asked_ms`: wall clock before the first question, so nothing in it is older."""

    asked_ms: int
    tasks: Mapping[TaskId, TaskFacts]


class Lookout:
    """Keeps the newest sight. `look` asks once; `start` lets a thread ask on."""

    def __init__(self, witnesses: Witnesses, tasks: Sequence[TaskId]) -> None:
        self._witnesses = witnesses
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
