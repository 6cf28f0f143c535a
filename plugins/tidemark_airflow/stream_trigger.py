"""Watches one instance without a worker slot, and stops it when a user ends its task."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark.hold import read_hold
from tidemark.instance.outage_file import read_outage, write_outage
from tidemark.settings import Settings
from tidemark_airflow import watcher
from tidemark_airflow.identity import InstanceFiles, InstanceKey
from tidemark_airflow.instance_log import Warnings
from tidemark_airflow.observation import Liveness, Observation, observe
from tidemark_airflow.progress import Progress
from tidemark_airflow.rto_watch import forget_standstill, rto_watched
from tidemark_airflow.stopping import ask_to_leave, is_gone, kill_rest
from tidemark_airflow.threads import own_thread

if TYPE_CHECKING:
    from tidemark.broker.availability import Outage

PROGRESS = "progress"
"""The XCom of a stream's task that says how far its instance is, as often as the log does."""

_POLL_S = 1.0
_STOP_POLL_S = 0.25
_TAKE_AGAIN_S = 30.0
# No event earlier than this after the deferral. The worker that deferred may take 5 s to notice that its task's process
# ended; a task that runs again by then is taken for one that died, and its outcome is lost to a retry.
_SETTLE_S = 9.0
# Below the 30 s that the triggerer gives to on_kill. A supervisor kills by itself, later where a last savepoint is taken.
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
    """Fires `InstanceExited` once. Meanwhile the task's log gets the instance's states, progress and warnings, and its XCom
    `progress` what the log says last.

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
        self._found_watcher: str | None = None
        self._has_taken = False
        self._take_again_at = 0.0

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
        self._found_watcher = await asyncio.to_thread(watcher.recorded, self._files)
        self._has_taken = await asyncio.to_thread(watcher.take, self._files, self._watcher)
        self.log.info("watching instance %s, launch %s", self._files.key, self.launch_id or "by hand")
        async with rto_watched(self._files, lambda: watcher.is_held_by(self._files, self._watcher)):
            exited = await self._exit()
            await asyncio.sleep(max(0.0, settled_at - time.monotonic()))
        yield TriggerEvent(exited.as_payload())

    async def _exit(self) -> InstanceExited:
        progress, warnings = Progress(self.log_every_s), None
        supervised = True
        while True:
            seen = await asyncio.to_thread(observe, self._files)
            if self._has_ended(seen):
                code = seen.exit_code if self._is_ours(seen) else None
                self.log.info("instance %s ended, exit code %s", self._files.key, "unknown" if code is None else code)
                return InstanceExited(code)
            if supervised and seen.liveness is Liveness.UNSUPERVISED:
                supervised = False
                self.log.warning(
                    "instance %s runs without a supervisor: its exit code will be unknown", self._files.key
                )
            await self._take_again()
            said = progress.said(seen.run, time.time())
            for line in said.lines:
                self.log.info("instance %s: %s", self._files.key, line)
            if said.figures is not None:
                await self._show(said.figures)
            if warnings is None and seen.launch is not None:
                warnings = Warnings(self._files.log, seen.launch.log_start_bytes)
            for line in await asyncio.to_thread(warnings.new) if warnings else ():
                self.log.warning("%s | %s", self._files.key, line)
            await asyncio.sleep(_POLL_S)

    async def _take_again(self) -> None:
        """Once there is room on the disk, unless another has taken it meanwhile."""
        if self._has_taken or time.monotonic() < self._take_again_at:
            return
        self._take_again_at = time.monotonic() + _TAKE_AGAIN_S
        if await asyncio.to_thread(watcher.recorded, self._files) == self._found_watcher:
            self._has_taken = await asyncio.to_thread(watcher.take, self._files, self._watcher)

    async def _show(self, figures: Mapping[str, Any]) -> None:
        ti = self.task_instance
        if ti is None:
            return
        try:
            await XCom.aset(
                PROGRESS, figures, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index
            )
        except AirflowRuntimeError as error:
            # The log has it, and watching goes on.
            self.log.warning("instance %s: its progress could not be written to Airflow: %s", self._files.key, error)

    async def on_kill(self) -> None:
        """A user ended the task (failed, success, clear): stop the instance, unless somebody else watches it by now."""
        if not await asyncio.to_thread(watcher.is_held_by, self._files, self._watcher):
            self.log.info("instance %s is watched by another trigger by now: left alone", self._files.key)
            return
        await asyncio.to_thread(forget_standstill, self._files)
        seen = await asyncio.to_thread(observe, self._files)
        if not seen.liveness.is_alive_here or not self._is_ours(seen):
            self.log.info("instance %s does not run", self._files.key)
            return
        settings = await asyncio.to_thread(Settings.load)
        last = await asyncio.to_thread(ask_to_leave, self._files, seen, settings)
        self.log.info("stopping instance %s: it commits its batch and ends", self._files.key)
        if last is not None:
            self.log.info("it leaves with savepoint %s, or says in its log why not", last.savepoint_id)
        await self._await_end()

    async def _await_end(self) -> None:
        started = time.monotonic()
        while not await asyncio.to_thread(is_gone, self._files, self.launch_id):
            waited_s = time.monotonic() - started
            seen = await asyncio.to_thread(observe, self._files)
            supervised = seen.liveness is Liveness.SUPERVISED
            if waited_s >= _STOP_WAIT_S:
                left = "its supervisor ends it" if supervised else "end it by hand"
                self.log.error("instance %s is still there after %.0f s: %s", self._files.key, waited_s, left)
                return
            if waited_s >= _KILL_AFTER_S and not supervised:
                await asyncio.to_thread(kill_rest, seen)
            await asyncio.sleep(_STOP_POLL_S)
        end = await asyncio.to_thread(observe, self._files)
        self.log.info("instance %s stopped, exit code %s", self._files.key, end.exit_code)

    def _is_ours(self, seen: Observation) -> bool:
        return seen.launch_id == self.launch_id

    def _has_ended(self, seen: Observation) -> bool:
        """Gone, or replaced by a later launch."""
        return not seen.liveness.is_alive_here or not self._is_ours(seen)


class _WaitingTrigger(BaseTrigger):
    """Waits before an instance is launched again. Nothing runs meanwhile, so there is nothing to stop."""

    def __init__(self, var_dir: str, application_id: str, instance: int) -> None:
        super().__init__()
        self.var_dir = var_dir
        self.application_id = application_id
        self.instance = instance
        self._files = InstanceFiles(Path(var_dir), InstanceKey(application_id, instance))

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What a triggerer needs to build this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"var_dir": self.var_dir, "application_id": self.application_id, "instance": self.instance},
        )


class _TimedTrigger(_WaitingTrigger):
    """One that knows a time, `until` (epoch seconds)."""

    def __init__(self, var_dir: str, application_id: str, instance: int, until: float) -> None:
        super().__init__(var_dir, application_id, instance)
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What a triggerer needs to build this trigger again."""
        path, arguments = super().serialize()
        return path, {**arguments, "until": self.until}


class BackoffTrigger(_TimedTrigger):
    """Waits until `until`, then fires."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Sleep in short steps: the clock may be set."""
        async with rto_watched(self._files):
            await asyncio.sleep(_SETTLE_S)
            while (left_s := self.until - time.time()) > 0:
                await asyncio.sleep(min(left_s, 5.0))
        yield TriggerEvent({})


class HoldTrigger(_WaitingTrigger):
    """Waits until nobody holds the application any more, then fires."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once a second."""
        async with rto_watched(self._files):
            await asyncio.sleep(_SETTLE_S)
            while await asyncio.to_thread(read_hold, Path(self.var_dir), self.application_id) is not None:
                await asyncio.sleep(_POLL_S)
        yield TriggerEvent({})


class BrokerTrigger(_TimedTrigger):
    """Waits until the brokers of an instance that ended in an outage can serve it, then fires.

    Where some brokers answer it fires at `until` at the latest.
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask the brokers once a second."""
        with own_thread(f"brokers of {self._files.key}") as in_thread:
            async with rto_watched(self._files):
                await asyncio.sleep(_SETTLE_S)
                while True:
                    outage = await in_thread(self._look)
                    if outage is None or (outage.is_partial and time.time() >= self.until):
                        break
                    await asyncio.sleep(_POLL_S)
        self.log.info("instance %s is launched: %s", self._files.key, outage.why if outage else "its brokers are back")
        yield TriggerEvent({})

    def _look(self) -> Outage | None:
        """What is away now; the instance's record says it to `tidemark status` and to the deadline's alert."""
        from tidemark.broker.availability import find_outage

        known = read_outage(self._files.outage)
        outage = find_outage(Settings.load(), self.application_id, known.topics if known else ())
        if known is not None and outage is not None and outage.why != known.why:
            self.log.warning("instance %s waits: %s", self._files.key, outage.why)
            with contextlib.suppress(OSError):  # The log has it.
                write_outage(self._files.outage, replace(known, why=outage.why))
        return outage
