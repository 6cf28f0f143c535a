"""Stopping every instance of an application under a hold, so that nobody relaunches one until it is released."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path

from tidemark.clock import wall_clock_ms
from tidemark.errors import OutcomeUnknown, PreflightFailed
from tidemark.hold import Hold, take_hold
from tidemark.instance.state import InstanceState
from tidemark.local.processes import wait_until
from tidemark.savepoints.asking import live_instances
from tidemark_airflow.identity import InstanceFiles, InstanceKey
from tidemark_airflow.launcher import STOP_GRACE_S
from tidemark_airflow.observation import Liveness, observe
from tidemark_airflow.stopping import ask_to_stop, kill_rest

_KILLED_WITHIN_S = 10.0


def stop_under_hold(var_dir: Path, application_id: str, by: str, reason: str, say: Callable[[str], None]) -> Hold:
    """Take the hold, stop every instance on this machine, and return when none lives. May be repeated.

    Each commits its batch and ends; what is left after the grace time is killed, which loses nothing. Raises
    `TaskLocked` where another holds the application, `PreflightFailed` where an instance runs elsewhere, and
    `OutcomeUnknown` where one cannot be stopped.
    """
    instances = known_instances(var_dir, application_id)
    hold = take_hold(var_dir, application_id, Hold(by, reason, wall_clock_ms(), _living(instances)), say)
    for files in instances:
        _await_launcher(files)
    # Whoever launched before the hold was there has written it down by now.
    instances = known_instances(var_dir, application_id)
    hold = take_hold(var_dir, application_id, Hold(by, reason, hold.since_ms, _living(instances)), say)
    for files in instances:
        seen = observe(files)
        if seen.liveness.is_alive_here:
            say(f"stopping instance {files.key}: it commits its batch and ends")
            ask_to_stop(seen)
    if not wait_until(lambda: not _living(instances), STOP_GRACE_S):
        for files in instances:
            kill_rest(observe(files))
    if not wait_until(lambda: not _living(instances), _KILLED_WITHIN_S):
        raise OutcomeUnknown(f"an instance of {application_id} cannot be stopped: see `tidemark status`, and try again")
    say(f"{len(hold.instances)} instances were running, none runs now")
    return hold


def await_running(var_dir: Path, application_id: str, numbers: tuple[int, ...], timeout_s: float) -> None:
    """Wait until instances of these numbers are RUNNING. Raises `OutcomeUnknown` naming those that are not."""

    def missing() -> set[int]:
        live = live_instances(var_dir, application_id)
        running = {one.instance for one in live if (one.said() or {}).get("state") == InstanceState.RUNNING}
        return set(numbers) - running

    if not wait_until(lambda: not missing(), timeout_s, every_s=0.5):
        names = ", ".join(f"{application_id}-{number}" for number in sorted(missing()))
        raise OutcomeUnknown(
            f"{names} did not come back within {timeout_s:.0f} s: see the log of its task in the stream DAG"
        )


def known_instances(var_dir: Path, application_id: str) -> list[InstanceFiles]:
    """Every instance that ever ran or was launched here, by number."""
    named = re.compile(rf"{re.escape(application_id)}-(\d+)(\.launch)?\.(json|lock)")
    names = (named.fullmatch(path.name) for path in (var_dir / "instances").glob(f"{application_id}-*"))
    numbers = {int(name[1]) for name in names if name}
    return [InstanceFiles(var_dir, InstanceKey(application_id, number)) for number in sorted(numbers)]


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
    """Until nobody is in the middle of a launch; who comes later finds the hold."""
    files.make_folders()
    lock = os.open(files.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    finally:
        os.close(lock)
