"""Listeners of an instance, named as in Kafka Streams, and the one place that calls them all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from tidemark.events.event import Rebalance, Waiting
from tidemark.names import TopicPartition
from tidemark.restore.listener import LoggingRestoreListener, RestoreListener, RestoreProgress
from tidemark.supervision.state import InstanceState

log = logging.getLogger(__name__)

_GRACE_S = 0.5

WAITING_REMEDY = (
    "Nothing is committed meanwhile, and nothing is lost: start the broker of the partition again, or move the partition to "
    "other brokers with `tidemark kafka reassign-partitions`"
)
"""The advice for a partition that no broker leads, or that has too few replicas in sync."""


class StateListener(Protocol):
    """Called from the thread that changed the state; must not block."""

    def on_change(self, new: InstanceState, old: InstanceState) -> None:
        """Called after each transition, and once with CREATED twice when the instance is created."""


class FailureListener(Protocol):
    """Called from the thread that ends the instance; must not block."""

    def on_failure(self, failure: BaseException) -> None:
        """Called with the error that ends the instance, before the transition to ERROR."""


class RebalanceListener(Protocol):
    """Called from the instance's loop; must not block."""

    def on_rebalance(self, rebalance: Rebalance) -> None:
        """Called when the tasks of the new assignment are open."""


class WaitingListener(Protocol):
    """Called from the instance's loop; must not block."""

    def on_waiting(self, waiting: Waiting) -> None:
        """Called when the instance begins to wait for brokers, and when the wait is over."""


class InstanceListener(StateListener, FailureListener, RebalanceListener, WaitingListener, RestoreListener, Protocol):
    """All callbacks of an instance. Restores call it from several threads at once."""


class Closable(Protocol):
    """A listener that may have something left to write when an instance ends."""

    def close(self, timeout_s: float) -> None:
        """Write what is left. Blocks for at most `timeout_s`; never raises."""


class Listeners:
    """An `InstanceListener` that calls each of `listeners`, in order; `closables` are closed at the end."""

    def __init__(self, listeners: Sequence[InstanceListener], closables: Sequence[Closable]) -> None:
        self._listeners = listeners
        self._closables = closables
        self._held: frozenset[TopicPartition] = frozenset()

    def rebalanced(self, held: Iterable[TopicPartition], generation: int) -> None:
        """Report the partitions that are held now, the group's generation, and what has changed."""
        now = frozenset(held)
        gained, lost = now - self._held, self._held - now
        self._held = now
        self.on_rebalance(Rebalance(tuple(sorted(now)), tuple(sorted(gained)), tuple(sorted(lost)), generation))

    def on_change(self, new: InstanceState, old: InstanceState) -> None:
        for listener in self._listeners:
            listener.on_change(new, old)

    def on_failure(self, failure: BaseException) -> None:
        for listener in self._listeners:
            listener.on_failure(failure)

    def on_rebalance(self, rebalance: Rebalance) -> None:
        for listener in self._listeners:
            listener.on_rebalance(rebalance)

    def on_waiting(self, waiting: Waiting) -> None:
        for listener in self._listeners:
            listener.on_waiting(waiting)

    def on_restore_start(self, progress: RestoreProgress) -> None:
        for listener in self._listeners:
            listener.on_restore_start(progress)

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        for listener in self._listeners:
            listener.on_batch_restored(progress)

    def on_restore_end(self, progress: RestoreProgress) -> None:
        for listener in self._listeners:
            listener.on_restore_end(progress)

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        for listener in self._listeners:
            listener.on_restore_suspended(progress)

    def close(self, timeout_s: float) -> None:
        """Close all in parallel, so that each can write what is left. Blocks for little longer than `timeout_s` at most."""
        threads = [
            threading.Thread(target=closable.close, args=(timeout_s,), daemon=True) for closable in self._closables
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + timeout_s + _GRACE_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


class LoggingListener(LoggingRestoreListener):
    """Writes rebalances and restores to the log; the state machine logs transitions, and the process logs its failure."""

    def on_change(self, new: InstanceState, old: InstanceState) -> None: ...

    def on_failure(self, failure: BaseException) -> None: ...

    def on_rebalance(self, rebalance: Rebalance) -> None:
        log.info(
            "rebalance: held=%d gained=%s lost=%s generation=%d",
            len(rebalance.held), ",".join(map(str, rebalance.gained)), ",".join(map(str, rebalance.lost)),
            rebalance.generation,
        )  # fmt: skip

    def on_waiting(self, waiting: Waiting) -> None:
        if waiting.waited_s is None:
            log.warning("waiting: %s. %s", waiting.why, WAITING_REMEDY)
        else:
            log.warning("waited for %.1f s: %s", waiting.waited_s, waiting.why)
