"""The triggers of a stream's task: watch one instance or standby without a worker slot, or wait before it is launched again."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark.settings import Settings
from tidemark.supervision import watch_claim
from tidemark.supervision.hold import read_hold
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey
from tidemark.supervision.instance_log import Warnings
from tidemark.supervision.liveness import Liveness, Observation, observe
from tidemark.supervision.outage_file import read_outage, write_outage
from tidemark.supervision.stop import ask_to_leave, is_gone, kill_rest
from tidemark_airflow.progress import Progress
from tidemark_airflow.rto_watch import forget_standstill, rto_watched
from tidemark_airflow.threads import own_thread

if TYPE_CHECKING:
    from tidemark.kafka.availability import Outage

PROGRESS = "progress"
"""The name of the XCom that holds the progress of a task's instance. It is written as often as the log line."""

_POLL_S = 1.0
_STOP_POLL_S = 0.25
_TAKE_AGAIN_S = 30.0
_RENEW_S = 10.0
# No event is sent earlier than this after the deferral. The worker that deferred may take 5 s to notice that its task's
# process ended; a task that runs again by then is taken for one that died, and its outcome is replaced by a retry.
_SETTLE_S = 9.0
# Below the 30 s that the triggerer allows for on_kill. A supervisor kills by itself, later if a last savepoint is taken.
_STOP_WAIT_S = 28.0
_KILL_AFTER_S = 26.0


@dataclass(frozen=True)
class InstanceExited:
    """The event that the watched instance has ended. `exit_code` is None if it was not recorded."""

    exit_code: int | None

    def as_payload(self) -> dict[str, Any]:
        """Return plain values, for a trigger event."""
        return asdict(self)

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> InstanceExited:
        """Return the event that a trigger sent."""
        return cls(payload["exit_code"])


class _ProcessTrigger(BaseTrigger):
    """A trigger of the task of one instance or standby."""

    def __init__(self, var_dir: str, application_id: str, instance: int, is_standby: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.var_dir = var_dir
        self.application_id = application_id
        self.instance = instance
        self.is_standby = is_standby
        self._files = InstanceFiles(Path(var_dir), InstanceKey(application_id, instance, is_standby))
        self._name = f"{self._files.key.kind} {self._files.key}"

    @classmethod
    def of(cls, files: InstanceFiles, **arguments: Any) -> Self:
        """Return the trigger for the process with these files; `arguments` are its own."""
        key = files.key
        return cls(str(files.var_dir), key.application_id, key.instance, is_standby=key.is_standby, **arguments)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what a triggerer needs to create this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "var_dir": self.var_dir,
                "application_id": self.application_id,
                "instance": self.instance,
                "is_standby": self.is_standby,
            },
        )


class StreamTrigger(_ProcessTrigger):
    """Watches an instance, fires `InstanceExited` once, and stops the instance when a user ends the task.

    Meanwhile it writes the instance's states, progress and warnings to the task's log, and the latest progress to the XCom
    `progress`. `launch_id` is the launch to watch, or None for an instance that was started by hand.
    """

    def __init__(
        self,
        var_dir: str,
        application_id: str,
        instance: int,
        launch_id: str | None,
        log_every_s: float = 30.0,
        is_standby: bool = False,
    ) -> None:
        super().__init__(var_dir, application_id, instance, is_standby)
        self.launch_id = launch_id
        self.log_every_s = log_every_s
        self._watcher = uuid.uuid4().hex
        self._found_watcher: str | None = None
        self._has_taken = False
        self._take_again_at = 0.0
        self._renew_at = 0.0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what a triggerer needs to create this trigger again. The watcher's name is new each time on purpose."""
        path, arguments = super().serialize()
        return path, {**arguments, "launch_id": self.launch_id, "log_every_s": self.log_every_s}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Observe the instance once a second until it has ended."""
        settled_at = time.monotonic() + _SETTLE_S
        self._found_watcher = await asyncio.to_thread(watch_claim.recorded, self._files)
        self._has_taken = await asyncio.to_thread(watch_claim.take, self._files, self._watcher)
        self.log.info("watching %s, launch %s", self._name, self.launch_id or "by hand")
        async with rto_watched(self._files, self._is_last):
            exited = await self._exit()
            await asyncio.sleep(max(0.0, settled_at - time.monotonic()))
        yield TriggerEvent(exited.as_payload())

    def _is_last(self) -> bool:
        """Whether no other watcher was recorded since this one began; a full disk may keep this one from being recorded."""
        return watch_claim.recorded(self._files) == (self._watcher if self._has_taken else self._found_watcher)

    async def _exit(self) -> InstanceExited:
        progress, warnings = Progress(self.log_every_s), None
        supervised = True
        while True:
            seen = await asyncio.to_thread(observe, self._files)
            if self._has_ended(seen):
                code = seen.exit_code if self._is_ours(seen) else None
                self.log.info("%s ended, exit code %s", self._name, "unknown" if code is None else code)
                return InstanceExited(code)
            if supervised and seen.liveness is Liveness.UNSUPERVISED:
                supervised = False
                self.log.warning("%s runs without a supervisor: its exit code will be unknown", self._name)
            await self._take_again()
            await self._renew()
            said = progress.said(seen.run, time.time())
            for line in said.lines:
                self.log.info("%s: %s", self._name, line)
            if said.figures is not None:
                await self._show(said.figures)
            if warnings is None and seen.launch is not None:
                warnings = Warnings(self._files.log, seen.launch.log_start_bytes)
            for line in await asyncio.to_thread(warnings.new) if warnings else ():
                self.log.warning("%s | %s", self._files.key, line)
            await asyncio.sleep(_POLL_S)

    async def _take_again(self) -> None:
        """Try again to become the watcher, after a full disk. Does nothing if another trigger became it meanwhile."""
        if self._has_taken or time.monotonic() < self._take_again_at:
            return
        self._take_again_at = time.monotonic() + _TAKE_AGAIN_S
        if await asyncio.to_thread(watch_claim.recorded, self._files) == self._found_watcher:
            self._has_taken = await asyncio.to_thread(watch_claim.take, self._files, self._watcher)

    async def _renew(self) -> None:
        """Record that the instance is still watched, unless another trigger watches it by now."""
        if time.monotonic() < self._renew_at:
            return
        self._renew_at = time.monotonic() + _RENEW_S
        if await asyncio.to_thread(self._is_last):
            await asyncio.to_thread(watch_claim.renew, self._files)

    async def _show(self, figures: Mapping[str, Any]) -> None:
        ti = self.task_instance
        if ti is None:
            return
        try:
            await XCom.aset(
                PROGRESS, figures, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index
            )
        except AirflowRuntimeError as error:
            # Not an error: the log has the progress, too.
            self.log.warning("%s: failed to write its progress to Airflow: %s", self._name, error)

    async def on_kill(self) -> None:
        """Stop the instance because a user ended the task (failed, success, clear), unless another trigger watches it."""
        if not await asyncio.to_thread(watch_claim.is_held_by, self._files, self._watcher):
            self.log.info("%s is watched by another trigger by now, so it is not stopped", self._name)
            return
        # Together: a database that does not answer takes none of the time for the stop.
        await asyncio.gather(asyncio.to_thread(forget_standstill, self._files), self._stop())

    async def _stop(self) -> None:
        seen = await asyncio.to_thread(observe, self._files)
        if not seen.liveness.is_alive_here or not self._is_ours(seen):
            self.log.info("%s does not run", self._name)
            return
        settings = await asyncio.to_thread(Settings.load)
        last = await asyncio.to_thread(ask_to_leave, self._files, seen, settings)
        ends = "" if self.is_standby else ": it commits its batch and ends"
        self.log.info("stopping %s%s", self._name, ends)
        if last is not None:
            self.log.info("it takes savepoint %s before it ends, or logs why it cannot", last.savepoint_id)
        await self._await_end()

    async def _await_end(self) -> None:
        started = time.monotonic()
        while not await asyncio.to_thread(is_gone, self._files, self.launch_id):
            waited_s = time.monotonic() - started
            seen = await asyncio.to_thread(observe, self._files)
            supervised = seen.liveness is Liveness.SUPERVISED
            if waited_s >= _STOP_WAIT_S:
                left = "its supervisor ends it" if supervised else "end it by hand"
                self.log.error("%s is still there after %.0f s: %s", self._name, waited_s, left)
                return
            if waited_s >= _KILL_AFTER_S and not supervised:
                await asyncio.to_thread(kill_rest, seen)
            await asyncio.sleep(_STOP_POLL_S)
        end = await asyncio.to_thread(observe, self._files)
        self.log.info("%s stopped, exit code %s", self._name, end.exit_code)

    def _is_ours(self, seen: Observation) -> bool:
        return seen.launch_id == self.launch_id

    def _has_ended(self, seen: Observation) -> bool:
        """Return whether the watched launch has ended or was replaced by a later one."""
        return not seen.liveness.is_alive_here or not self._is_ours(seen)


class _WaitingTrigger(_ProcessTrigger):
    """Waits before an instance is launched again. No process of it runs meanwhile, so there is nothing to stop."""

    def __init__(self, var_dir: str, application_id: str, instance: int, is_standby: bool = False) -> None:
        super().__init__(var_dir, application_id, instance, is_standby)


class _TimedTrigger(_WaitingTrigger):
    """A waiting trigger with a point in time, `until` (epoch seconds).

    However far the clock is set back, the wait takes no longer than what was left when the trigger was created.
    """

    def __init__(
        self, var_dir: str, application_id: str, instance: int, until: float, is_standby: bool = False
    ) -> None:
        super().__init__(var_dir, application_id, instance, is_standby)
        self.until = until
        self._latest_s = time.monotonic() + until - time.time()

    def _left_s(self) -> float:
        return min(self.until - time.time(), self._latest_s - time.monotonic())

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what a triggerer needs to create this trigger again."""
        path, arguments = super().serialize()
        return path, {**arguments, "until": self.until}


class BackoffTrigger(_TimedTrigger):
    """Waits until `until`, then fires."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Sleep in short steps, because the clock may be changed meanwhile."""
        async with rto_watched(self._files):
            await asyncio.sleep(_SETTLE_S)
            while (left_s := self._left_s()) > 0:
                await asyncio.sleep(min(left_s, 5.0))
        yield TriggerEvent({})


class HoldTrigger(_WaitingTrigger):
    """Waits until the application is no longer held, then fires."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Read the hold once a second."""
        async with rto_watched(self._files):
            await asyncio.sleep(_SETTLE_S)
            while await asyncio.to_thread(read_hold, Path(self.var_dir), self.application_id) is not None:
                await asyncio.sleep(_POLL_S)
        yield TriggerEvent({})


class ElsewhereTrigger(_TimedTrigger):
    """Waits until an instance no longer counts as running on another machine, then fires; at `until` at the latest."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Observe the instance once a second."""
        async with rto_watched(self._files):
            await asyncio.sleep(_SETTLE_S)
            while self._left_s() > 0:
                seen = await asyncio.to_thread(observe, self._files)
                if seen.liveness is not Liveness.ELSEWHERE:
                    break
                await asyncio.sleep(_POLL_S)
        yield TriggerEvent({})


class BrokerTrigger(_TimedTrigger):
    """Waits until the brokers can serve an instance that ended in an outage, then fires.

    If some brokers answer, it fires at `until` at the latest.
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask the brokers once a second."""
        with own_thread(f"brokers of {self._files.key}") as in_thread:
            async with rto_watched(self._files):
                await asyncio.sleep(_SETTLE_S)
                while True:
                    outage = await in_thread(self._look)
                    if outage is None or (outage.is_partial and self._left_s() <= 0):
                        break
                    await asyncio.sleep(_POLL_S)
        self.log.info("%s can be launched: %s", self._name, outage.why if outage else "its brokers are back")
        yield TriggerEvent({})

    def _look(self) -> Outage | None:
        """Return what is unavailable now, and update the instance's record of it.

        `tidemark status` and the alert of the deadline read that record.
        """
        from tidemark.kafka.availability import find_outage

        known = read_outage(self._files.outage)
        outage = find_outage(Settings.load(), self.application_id, self.instance, known.topics if known else ())
        if known is not None and outage is not None and outage.why != known.why:
            self.log.warning("%s waits: %s", self._name, outage.why)
            with contextlib.suppress(OSError):  # The log has it, too.
                write_outage(self._files.outage, replace(known, why=outage.why))
        return outage
