"""A user's own listener: loaded by import path, called from its own thread, unable to stop or delay a stream."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from tidemark.errors import InvalidSettings, InvalidTopology
from tidemark.events.event import Rebalance, Waiting
from tidemark.restore.listener import RestoreProgress
from tidemark.supervision.state import InstanceState
from tidemark.tasks.code import load_code

log = logging.getLogger(__name__)

_QUEUED_CALLS = 1000

METHODS = (
    "on_change",
    "on_failure",
    "on_rebalance",
    "on_waiting",
    "on_restore_start",
    "on_batch_restored",
    "on_restore_end",
    "on_restore_suspended",
)
"""The methods that a listener may have; one of them is enough."""


def load_listeners(paths: Sequence[str], application_id: str, instance: int) -> list[UserListener]:
    """Load the classes that the setting `listeners` names, and start a thread for each, which creates its object.

    Raises `InvalidSettings` with the path if it cannot be imported, is not a class, or has no method of a listener.
    """
    classes = [_load(path) for path in paths]
    return [
        UserListener(path, listener, application_id, instance) for path, listener in zip(paths, classes, strict=True)
    ]


def _load(path: str) -> type:
    try:
        found = load_code(path, "setting listeners")
    except InvalidTopology as error:
        raise InvalidSettings(str(error)) from error
    if not isinstance(found, type):
        raise InvalidSettings(f"setting listeners: {path} is not a class; name a class with {' or '.join(METHODS)}")
    if not any(hasattr(found, method) for method in METHODS):
        raise InvalidSettings(f"setting listeners: {path} has none of {', '.join(METHODS)}; add one")
    return found


class UserListener:
    """An `InstanceListener` that queues each call for the user's object, and drops it if the queue is full."""

    def __init__(
        self, path: str, listener: type, application_id: str, instance: int, *, queued_calls: int = _QUEUED_CALLS
    ) -> None:
        self._path = path
        self._class = listener
        self._of = (application_id, instance)
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]] | None] = queue.Queue(queued_calls)
        self._lock = threading.Lock()
        self.dropped = 0
        self.failed = 0
        self._thread = threading.Thread(target=self._run, name=f"listener {path}", daemon=True)
        self._thread.start()

    def on_change(self, new: InstanceState, old: InstanceState) -> None:
        self._give("on_change", new, old)

    def on_failure(self, failure: BaseException) -> None:
        self._give("on_failure", failure)

    def on_rebalance(self, rebalance: Rebalance) -> None:
        self._give("on_rebalance", rebalance)

    def on_waiting(self, waiting: Waiting) -> None:
        self._give("on_waiting", waiting)

    def on_restore_start(self, progress: RestoreProgress) -> None:
        self._give("on_restore_start", progress)

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        # Half of the queue is kept for calls that happen only once.
        if self._calls.qsize() < self._calls.maxsize // 2:
            self._give("on_batch_restored", progress)
        else:
            self._drop()

    def on_restore_end(self, progress: RestoreProgress) -> None:
        self._give("on_restore_end", progress)

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        self._give("on_restore_suspended", progress)

    def close(self, timeout_s: float) -> None:
        """Let the listener take the queued calls; after `timeout_s` its thread is abandoned, and ends with the process."""
        until = time.monotonic() + timeout_s
        try:
            self._calls.put(None, timeout=timeout_s)
        except queue.Full:
            log.warning("listener %s does not return; it is abandoned", self._path)
        else:
            self._thread.join(max(0.0, until - time.monotonic()))
        if self.dropped or self.failed:
            log.warning("listener %s: %d calls dropped, %d failed", self._path, self.dropped, self.failed)

    def _give(self, method: str, *arguments: Any) -> None:
        if not hasattr(self._class, method):
            return
        try:
            self._calls.put_nowait((method, arguments))
        except queue.Full:
            self._drop()

    def _drop(self) -> None:
        with self._lock:
            self.dropped += 1
            is_first = self.dropped == 1
        if is_first:
            log.warning("listener %s is slower than the stream: calls are dropped and only counted", self._path)

    def _run(self) -> None:
        listener: Any = None
        while (call := self._calls.get()) is not None:
            method, arguments = call
            try:
                if listener is None:
                    listener = self._class(*self._of)
                getattr(listener, method)(*arguments)
            except BaseException as error:  # noqa: BLE001 - whatever a user's code raises, the stream continues.
                self._failed(method, error)

    def _failed(self, method: str, error: BaseException) -> None:
        self.failed += 1
        if self.failed == 1:
            log.warning(
                "listener %s: %s: %s: %s; the stream continues, later failures are only counted",
                self._path, method, type(error).__name__, error,
            )  # fmt: skip
