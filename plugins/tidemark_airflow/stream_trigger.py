"""Watches one instance without a worker slot, and stops it when a user ends its task."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark_airflow import watcher
from tidemark_airflow.identity import InstanceFiles, InstanceKey
from tidemark_airflow.observation import Liveness, Observation, observe
from tidemark_airflow.progress import ProgressLog
from tidemark_airflow.stopping import ask_to_stop, is_gone, kill_rest

_POLL_S = 1.0
_STOP_POLL_S = 0.25
# No event earlier than this after the deferral. The worker that deferred may take 5 s to notice that its task's process
# ended; a task that runs again by then is taken for one that died, and its outcome is lost to a retry.
_SETTLE_S = 9.0
# Below the 30 s that the triggerer gives to on_kill; the supervisor's own grace ends earlier still.
_STOP_WAIT_S = 28.0
_KILL_AFTER_S = 26.0


@dataclass(frozen=True)
class InstanceExited:
    """The watched instance is no more. `exit_code` is None when nobody recorded it."""

    exit_code: int | None

    def as_payload(self) -> dict[str, Any]:
        """Plain values, for a trigger event."""
        return asdict(self)

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> InstanceExited:
        """The event that a trigger sent."""
        return cls(payload["exit_code"])


class StreamTrigger(BaseTrigger):
    """Fires `InstanceExited` once. Logs the instance's states and progress into the task's log meanwhile.

    `launch_id` is the launch to watch, or None for an instance that was started by hand.
    """

    def __init__(
        self, var_dir: str, application_id: str, instance: int, launch_id: str | None, log_every_s: float = 30.0
    ) -> None:
        super().__init__()
        self.var_dir = var_dir
        self.application_id = application_id
        self.instance = instance
        self.launch_id = launch_id
        self.log_every_s = log_every_s
        self._files = InstanceFiles(Path(var_dir), InstanceKey(application_id, instance))
        self._watcher = uuid.uuid4().hex

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What a triggerer needs to build this trigger again; the watcher's name is new each time on purpose."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "var_dir": self.var_dir,
                "application_id": self.application_id,
                "instance": self.instance,
                "launch_id": self.launch_id,
                "log_every_s": self.log_every_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once a second until the instance is gone."""
        settled_at = time.monotonic() + _SETTLE_S
        await asyncio.to_thread(watcher.take, self._files, self._watcher)
        self.log.info("watching instance %s, launch %s", self._files.key, self.launch_id or "by hand")
        progress = ProgressLog(self.log_every_s)
        supervised = True
        while True:
            seen = await asyncio.to_thread(observe, self._files)
            if self._has_ended(seen):
                code = seen.exit_code if self._is_ours(seen) else None
                self.log.info("instance %s ended, exit code %s", self._files.key, "unknown" if code is None else code)
                await asyncio.sleep(max(0.0, settled_at - time.monotonic()))
                yield TriggerEvent(InstanceExited(code).as_payload())
                return
            if supervised and seen.liveness is Liveness.UNSUPERVISED:
                supervised = False
                self.log.warning(
                    "instance %s runs without a supervisor: its exit code will be unknown", self._files.key
                )
            for line in progress.lines(seen.run, time.time()):
                self.log.info("instance %s: %s", self._files.key, line)
            await asyncio.sleep(_POLL_S)

    async def on_kill(self) -> None:
        """A user ended the task (failed, success, clear): stop the instance, unless somebody else watches it by now."""
        if not await asyncio.to_thread(watcher.is_held_by, self._files, self._watcher):
            self.log.info("instance %s is watched by another trigger by now: left alone", self._files.key)
            return
        seen = await asyncio.to_thread(observe, self._files)
        if not seen.liveness.is_alive_here or not self._is_ours(seen):
            self.log.info("instance %s does not run", self._files.key)
            return
        self.log.info("stopping instance %s: it commits its batch and ends", self._files.key)
        await asyncio.to_thread(ask_to_stop, seen)
        started = time.monotonic()
        while not await asyncio.to_thread(is_gone, self._files, self.launch_id):
            waited_s = time.monotonic() - started
            if waited_s >= _STOP_WAIT_S:
                self.log.error("instance %s is still there after %.0f s", self._files.key, waited_s)
                return
            if waited_s >= _KILL_AFTER_S:
                await asyncio.to_thread(kill_rest, await asyncio.to_thread(observe, self._files))
            await asyncio.sleep(_STOP_POLL_S)
        end = await asyncio.to_thread(observe, self._files)
        self.log.info("instance %s stopped, exit code %s", self._files.key, end.exit_code)

    def _is_ours(self, seen: Observation) -> bool:
        return seen.launch_id == self.launch_id

    def _has_ended(self, seen: Observation) -> bool:
        """Gone, or replaced by a later launch."""
        return not seen.liveness.is_alive_here or not self._is_ours(seen)


class BackoffTrigger(BaseTrigger):
    """Waits until `until` (epoch seconds), then fires. Nothing runs meanwhile, so there is nothing to stop."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What a triggerer needs to build this trigger again."""
        return (f"{type(self).__module__}.{type(self).__qualname__}", {"until": self.until})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Sleep in short steps: the clock may be set."""
        await asyncio.sleep(_SETTLE_S)
        while (left_s := self.until - time.time()) > 0:
            await asyncio.sleep(min(left_s, 5.0))
        yield TriggerEvent({})
