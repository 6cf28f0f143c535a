"""States of an instance, named as in Kafka Streams, and the one place that allows transitions between them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import StrEnum

log = logging.getLogger(__name__)


class InstanceState(StrEnum):
    """State of an instance. CREATED is the state before it joins the group; ERROR is final."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    ERROR = "ERROR"


_S = InstanceState
_ALLOWED: dict[InstanceState, set[InstanceState]] = {
    _S.CREATED: {_S.REBALANCING, _S.PENDING_SHUTDOWN, _S.ERROR},
    _S.REBALANCING: {_S.RESTORING, _S.RUNNING, _S.PENDING_SHUTDOWN, _S.ERROR},
    _S.RESTORING: {_S.REBALANCING, _S.RUNNING, _S.PENDING_SHUTDOWN, _S.ERROR},
    _S.RUNNING: {_S.REBALANCING, _S.PENDING_SHUTDOWN, _S.ERROR},
    _S.PENDING_SHUTDOWN: {_S.NOT_RUNNING, _S.ERROR},
    _S.NOT_RUNNING: set(),
    _S.ERROR: set(),
}


ENDED_STATES = frozenset(state for state, following in _ALLOWED.items() if not following)
"""The states of an instance that recorded its own end."""


class StateMachine:
    """Holds the state of one instance and checks its transitions."""

    def __init__(
        self, application_id: str, instance: int, on_change: Callable[[InstanceState, InstanceState], None]
    ) -> None:
        """Call `on_change` with (new, old) after each transition; it must not block."""
        self._name = f"{application_id}-{instance}"
        self._on_change = on_change
        self._lock = threading.Lock()
        self.state = InstanceState.CREATED

    def to(self, new: InstanceState) -> None:
        """Change the state to `new`; does nothing if it is already so. Raises `ValueError` if that is not allowed."""
        with self._lock:
            old = self.state
            if new is old:
                return
            if new not in _ALLOWED[old]:
                raise ValueError(f"instance {self._name} cannot go from {old} to {new}")
            self.state = new
        log.info("state: instance=%s from=%s to=%s", self._name, old, new)
        self._on_change(new, old)
