"""Stopping an instance: ask it once, check whether it has ended, and kill what is left."""

from __future__ import annotations

import contextlib
import logging
import os
import signal

import psutil

from tidemark.clock import wall_clock_ms
from tidemark.settings import Settings
from tidemark.supervision.final_savepoint_request import ask_for_last
from tidemark.supervision.instance_files import InstanceFiles, read_json, write_json
from tidemark.supervision.live_instances import Request
from tidemark.supervision.liveness import Liveness, Observation, observe, session_members

log = logging.getLogger(__name__)

PAUSE_FRESH_S = 180.0
"""While a DAG stays paused, its pause is recorded once a minute, so an older record is of a pause that is over."""

_WAS_RUNNING = "was_running"
"""In the record of a pause: whether the launch ran when its DAG was found paused."""


def ask_to_leave(files: InstanceFiles, seen: Observation, settings: Settings) -> Request | None:
    """Ask an instance or a standby to stop, as `ask_to_stop` does; an instance also to take a last savepoint before it ends.

    Returns the request for the savepoint, or None if the setting `last_savepoint_timeout_ms` is 0 or no process runs that
    could take one. A standby takes none. Does not wait and does not access the savepoint location, so a stop never depends on
    it.
    """
    asked = None
    if settings.last_savepoint_timeout_ms > 0 and seen.run is not None and not files.key.is_standby:
        try:
            asked = ask_for_last(
                files.var_dir,
                files.key.application_id,
                files.key.instance,
                settings.savepoint_location,
                wall_clock_ms(),
            )
        except OSError as error:
            log.warning("instance %s stops without a last savepoint: %s", files.key, error)
    ask_to_stop(seen)
    return asked


def record_pause(files: InstanceFiles, launch_id: str | None, *, is_running: bool) -> None:
    """Record that the launch is stopped, or not followed by another one, because its DAG is paused.

    `launch_id` is None if there was no launch yet. `is_running`: it runs and is stopped; otherwise it had ended before. A full
    disk is only logged.
    """
    try:
        write_json(files.pause, {"launch_id": launch_id, _WAS_RUNNING: is_running})
    except OSError as error:
        log.warning("%s %s: failed to record that it is stopped on purpose: %s", files.key.kind, files.key, error)


def renew_pause(files: InstanceFiles) -> None:
    """Record that the DAG whose pause is recorded is still paused. An error is ignored: the stop that follows must not fail."""
    with contextlib.suppress(OSError):
        os.utime(files.pause)


def is_paused(files: InstanceFiles, launch_id: str | None, now_ms: int) -> bool:
    """Return whether the DAG is paused now, by the last record of its pause since this launch."""
    try:
        age_s = now_ms / 1000 - files.pause.stat().st_mtime
    except FileNotFoundError:
        return False
    # If the clock was set back, the age is negative, and says as little as that of an old record.
    return abs(age_s) < PAUSE_FRESH_S and was_paused(files, launch_id)


def was_paused(files: InstanceFiles, launch_id: str | None) -> bool:
    """Return whether the DAG was paused since this launch, and its pause is not yet forgotten."""
    return _pause_of(files, launch_id) is not None


def was_stopped_by_pause(files: InstanceFiles, launch_id: str | None) -> bool:
    """Return whether the launch was still running when the pause stopped it: however it ended, that was no fault of its own."""
    recorded = _pause_of(files, launch_id)
    return recorded is not None and recorded.get(_WAS_RUNNING) is True


def _pause_of(files: InstanceFiles, launch_id: str | None) -> dict[str, object] | None:
    recorded = read_json(files.pause)
    return recorded if isinstance(recorded, dict) and recorded.get("launch_id") == launch_id else None


def ask_to_stop(seen: Observation) -> None:
    """Send SIGTERM to the supervisor, which passes it on and kills the processes after its grace time. Does not wait.

    Without a supervisor, the driver gets the signal, and the caller must call `kill_rest` later.
    """
    if seen.liveness is Liveness.SUPERVISED and seen.launch:
        _signal(seen.launch.pid, signal.SIGTERM)
    elif seen.run:
        _signal(seen.run.process.pid, signal.SIGTERM)
    elif seen.launch:
        # No driver has written its run file yet, so a kill interrupts no batch.
        kill_rest(seen)


def kill_rest(seen: Observation) -> None:
    """Send SIGKILL to every process of the instance."""
    if seen.launch and seen.liveness.is_alive_here:
        for process in session_members(seen.launch):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if seen.launch.process.is_alive():
            _signal(seen.launch.pid, signal.SIGKILL)
    if seen.run and seen.run.process.is_alive():
        _signal(seen.run.process.pid, signal.SIGKILL)


def is_gone(files: InstanceFiles, launch_id: str | None) -> bool:
    """Return whether the launch `launch_id` has ended. A later launch of the instance does not matter."""
    seen = observe(files)
    return not seen.liveness.is_alive_here or seen.launch_id != launch_id


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
