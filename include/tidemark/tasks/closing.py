"""Closing of a task's processors within a limit, because they are user code, which may never return."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from threading import Thread

from tidemark.tasks.operators.process import ProcessOperator

log = logging.getLogger(__name__)

PROCESSORS_CLOSE_S = 5.0
"""How long the processors of all tasks that are closed together may take.

An instance is killed `STOP_GRACE_S` after it was asked to stop (`tidemark.supervision.launch`); what it does afterwards, such
as leaving the group, must fit in as well.
"""


class ClosingProcessors:
    """The closing of one task's processors, one after the other, in a thread of its own; it begins at once.

    A thread cannot be ended: a processor that does not return stays in its thread until the process ends, and those after it
    are not closed.
    """

    def __init__(self, processors: Sequence[ProcessOperator]) -> None:
        self._left = list(processors)
        self._thread = Thread(target=self._close, name="close-processors", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until they are closed. Names in the log the one that has not returned within `timeout_s`. Does not raise."""
        self._thread.join(max(0.0, timeout_s))
        left = self._left[:1]
        if left and self._thread.is_alive():
            log.warning("%s: close() has not returned, and is no longer waited for", left[0].where)

    def _close(self) -> None:
        while self._left:
            self._left[0].close()
            del self._left[0]


def wait_for_all(closing: Iterable[ClosingProcessors]) -> None:
    """Wait until all processors are closed, for up to `PROCESSORS_CLOSE_S` in total. Does not raise."""
    give_up_at = time.monotonic() + PROCESSORS_CLOSE_S
    for each in closing:
        each.wait(give_up_at - time.monotonic())
