"""Finds out whether an instance is alive, from files and the process table. Nothing here waits or changes anything."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import Enum

import psutil

from tidemark.processes import Place, started_after_boot_s
from tidemark.supervision.instance_files import InstanceFiles, LaunchRecord, read_json
from tidemark.supervision.run_file import RunView

RUN_FILE_FRESH_S = 60.0
"""A run file is rewritten every second, so one of this age belongs to a process that has ended or hangs, on any machine."""


class Liveness(Enum):
    """Whether an instance is alive, and where.

    SUPERVISED: it runs here, and so does its supervisor. UNSUPERVISED: it runs here without one. GONE: it does not run.
    ELSEWHERE: it runs on another machine, or in another process namespace of this one.
    """

    SUPERVISED = "supervised"
    UNSUPERVISED = "unsupervised"
    GONE = "gone"
    ELSEWHERE = "elsewhere"

    @property
    def is_alive_here(self) -> bool:
        """Whether a process of the instance runs on this machine."""
        return self in (Liveness.SUPERVISED, Liveness.UNSUPERVISED)


@dataclass(frozen=True)
class Observation:
    """The state of an instance at one time.

    `launch` is None for an instance that was started by hand. `run` is set only if the process that wrote the run file lives.
    `exit_code` is that of the last launch, if that has ended and its end was recorded.
    """

    liveness: Liveness
    launch: LaunchRecord | None
    run: RunView | None
    exit_code: int | None
    host: str

    @property
    def launch_id(self) -> str | None:
        """The id of the live launch, or None if the instance was not launched by Airflow."""
        return self.launch.launch_id if self.launch else None


def observe(files: InstanceFiles) -> Observation:
    """Observe an instance once. Reads three small files and, if the supervisor is gone, the process table."""
    here = Place.here()
    launch = LaunchRecord.from_json(read_json(files.launch))
    run = RunView.read(files.run)
    live_run = run if run and run.process.is_alive() else None
    if launch and not launch.place.shares_processes_with(here):
        if live_run:
            # The instance was started by hand here after that launch.
            return Observation(Liveness.UNSUPERVISED, None, live_run, None, here.host)
        exit_code = _recorded_exit(files, launch)
        # The same host name but another boot: the machine was restarted, so nothing of that launch is left.
        was_restarted = launch.place.host == here.host and launch.place.boot_id != here.boot_id
        if not was_restarted and _is_fresh(files, has_exit=exit_code is not None):
            return Observation(Liveness.ELSEWHERE, launch, None, None, launch.place.host)
        return Observation(Liveness.GONE, launch, None, exit_code, launch.place.host)
    if launch and launch.process.is_alive():
        return Observation(Liveness.SUPERVISED, launch, live_run, None, here.host)
    if launch and session_members(launch):
        return Observation(Liveness.UNSUPERVISED, launch, live_run, None, here.host)
    if live_run:
        return Observation(Liveness.UNSUPERVISED, None, live_run, None, here.host)
    return Observation(Liveness.GONE, launch, None, _recorded_exit(files, launch), here.host)


def session_members(launch: LaunchRecord) -> list[psutil.Process]:
    """Return the live processes of a launch, without its supervisor: all processes of the supervisor's session.

    A process group would miss some, because helper processes of Spark set their own.
    """
    if psutil.pid_exists(launch.pid) and not launch.process.is_alive() and not _is_zombie(launch.pid):
        return []  # another process has this id now, so the session ended before
    members = []
    for process in psutil.process_iter():
        if process.pid == launch.pid:
            continue
        try:
            # A process that started before the launch belongs to an older session with the same id.
            if os.getsid(process.pid) != launch.pid or started_after_boot_s(process) < launch.started_after_boot_s:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return members


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_fresh(files: InstanceFiles, *, has_exit: bool) -> bool:
    """Return whether the run file is recent and, with `has_exit`, was written after the end of the launch was recorded."""
    try:
        written_s = files.run.stat().st_mtime
        if has_exit and written_s <= files.exit.stat().st_mtime:
            return False
    except FileNotFoundError:
        return False
    # If the clock was set back, the age is negative, and says as little as that of an old file.
    return abs(time.time() - written_s) < RUN_FILE_FRESH_S


def _recorded_exit(files: InstanceFiles, launch: LaunchRecord | None) -> int | None:
    recorded = read_json(files.exit)
    if launch and isinstance(recorded, dict) and recorded.get("launch_id") == launch.launch_id:
        return int(recorded["exit_code"])
    return None
