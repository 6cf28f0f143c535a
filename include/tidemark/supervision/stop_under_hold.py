"""Stopping every instance of an application under a hold. No instance is launched again until the hold is released."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidemark.clock import wall_clock_ms
from tidemark.errors import OutcomeUnknown, PreflightFailed
from tidemark.folder_lock import locked_file
from tidemark.processes import wait_until
from tidemark.supervision.hold import Hold, take_hold
from tidemark.supervision.instance_files import InstanceFiles, known_instances
from tidemark.supervision.launch import STOP_GRACE_S
from tidemark.supervision.live_instances import live_instances
from tidemark.supervision.liveness import Liveness, observe
from tidemark.supervision.state import InstanceState
from tidemark.supervision.stop import ask_to_stop, kill_rest

_KILLED_WITHIN_S = 10.0


def stop_under_hold(var_dir: Path, application_id: str, by: str, reason: str, report: Callable[[str], None]) -> Hold:
    """Take the hold, stop every instance on this machine, and return when none runs. May be called again.

    Each instance commits its batch and ends. Those that still run after the grace time are killed, which loses nothing.
    Raises `TaskLocked` if another operation holds the application, `PreflightFailed` if an instance runs on another machine,
    and `OutcomeUnknown` if an instance cannot be stopped.
    """
    instances = known_instances(var_dir, application_id)
    hold = take_hold(var_dir, application_id, Hold(by, reason, wall_clock_ms(), _living(instances)), report)
    for files in instances:
        _await_launcher(files)
    # A launch that began before the hold was taken has written its record by now.
    instances = known_instances(var_dir, application_id)
    hold = take_hold(var_dir, application_id, Hold(by, reason, hold.since_ms, _living(instances)), report)
    for files in instances:
        seen = observe(files)
        if seen.liveness.is_alive_here:
            report(f"stopping instance {files.key}: it commits its batch and ends")
            ask_to_stop(seen)
    if not wait_until(lambda: not _living(instances), STOP_GRACE_S):
        for files in instances:
            kill_rest(observe(files))
    if not wait_until(lambda: not _living(instances), _KILLED_WITHIN_S):
        raise OutcomeUnknown(
            f"failed to stop every instance of {application_id}: see `tidemark status`, end them, and try again"
        )
    report(f"{len(hold.instances)} running instances were stopped")
    return hold


def await_running(var_dir: Path, application_id: str, numbers: tuple[int, ...], timeout_s: float) -> None:
    """Wait until the instances with these numbers are RUNNING. Raises `OutcomeUnknown`, which names those that are not."""

    def missing() -> set[int]:
        live = live_instances(var_dir, application_id)
        running = {one.instance for one in live if one.said().get("state") == InstanceState.RUNNING}
        return set(numbers) - running

    if not wait_until(lambda: not missing(), timeout_s, every_s=0.5):
        names = ", ".join(f"{application_id}-{number}" for number in sorted(missing()))
        raise OutcomeUnknown(
            f"{names} did not come back within {timeout_s:.0f} s: see the log of its task in the stream DAG"
        )


def _living(instances: list[InstanceFiles]) -> tuple[int, ...]:
    living: list[int] = []
    for files in instances:
        seen = observe(files)
        if seen.liveness is Liveness.ELSEWHERE:
            raise PreflightFailed(
                f"instance {files.key} runs on {seen.host}: run the restore there, or stop it there first"
            )
        if seen.liveness.is_alive_here:
            living.append(files.key.instance)
    return tuple(living)


def _await_launcher(files: InstanceFiles) -> None:
    """Wait until no launch of this instance is in progress. Any later launch finds the hold."""
    files.make_folders()
    with locked_file(files.lock):
        pass
