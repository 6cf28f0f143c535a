"""Launches an instance or a standby, or adopts the live one. Two operators on one machine at the same time end with one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.folder_lock import locked_file
from tidemark.supervision.hold import describe_hold, read_hold
from tidemark.supervision.instance_files import InstanceFiles, LaunchRecord, known_instances, write_json
from tidemark.supervision.liveness import Liveness, Observation, observe
from tidemark.supervision.log_rotation import bound_log, start_part

# The driver commits its current batch within 15 s; the rest is the time that the JVM needs to end.
STOP_GRACE_S = 25.0
# The supervisor cuts the log when it has grown to this.
LOG_MOST_BYTES = 64 << 20


class LaunchFailed(Exception):
    """The instance's supervisor did not start. The message names the log."""


class Held(Exception):
    """The application is held, so no instance may be launched until the hold is released."""


class LivesElsewhere(Exception):
    """The instance runs on another machine, so its processes cannot be watched from this one."""


@dataclass(frozen=True)
class Command:
    """The command that starts an instance. Secrets are only in `environment`, never in `argv`.

    Each launch creates its own temporary folder inside `temporary`. `leave_s` is how many seconds longer than `STOP_GRACE_S`
    the instance may take to stop, for its last savepoint.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    script: str
    temporary: Path
    leave_s: float = 0.0


@dataclass(frozen=True)
class Launched:
    """A live instance that was either found (`adopted`) or just started."""

    seen: Observation
    adopted: bool


def launch_or_adopt(
    files: InstanceFiles,
    command: Command,
    remembered: LaunchRecord | None = None,
    claim: Callable[[], None] = lambda: None,
) -> Launched:
    """Return the live instance, and start it only if there is none. Blocks while another process does the same.

    `remembered` is a launch that Airflow's task state has recorded; it is used if its process lives but its file is gone.
    `claim` records who watches the instance. It is called under the lock before anything is started, so that no instance
    runs unwatched; if it raises, nothing is started.
    Raises `LaunchFailed`, `Held`, and `LivesElsewhere` if another machine runs the instance.
    """
    files.make_folders()
    with locked_file(files.lock) as lock:
        seen = find_live(files, remembered)
        if seen:
            claim()
            return Launched(seen, adopted=True)
        hold = read_hold(files.var_dir, files.key.application_id)
        if hold is not None:
            raise Held(describe_hold(files.var_dir, files.key.application_id, hold))
        claim()
        _start(files, command, lock)
        return Launched(observe(files), adopted=False)


def find_live(files: InstanceFiles, remembered: LaunchRecord | None = None) -> Observation | None:
    """Return the live instance, or None if there is none. Raises `LivesElsewhere`."""
    seen = observe(files)
    if seen.liveness is Liveness.ELSEWHERE:
        raise LivesElsewhere(
            f"{files.key.kind} {files.key} runs on {seen.host}, and its processes cannot be watched from here; run the workers "
            f"and the triggerer where it runs, or stop it there first"
        )
    if seen.liveness.is_alive_here:
        return seen
    if remembered and remembered.process.is_alive():
        write_json(files.launch, remembered.as_json())
        return observe(files)
    return None


def forget_surplus(var_dir: Path, application_id: str, instances: int) -> list[InstanceFiles]:
    """Remove what is recorded of the launches and ends of instances with a number of `instances` or higher.

    A run with fewer instances never launches them again, so nothing else would end the outage of one, or remove its failure.
    Returns those that were forgotten; leaves out those that run. Blocks while another process launches one.
    """
    forgotten = []
    for files in known_instances(var_dir, application_id):
        if files.key.instance < instances:
            continue
        with locked_file(files.lock):
            if observe(files).liveness is Liveness.GONE:
                for path in (files.outage, files.exit, files.run, files.launch):
                    path.unlink(missing_ok=True)
                forgotten.append(files)
    return forgotten


def _start(files: InstanceFiles, command: Command, lock: int) -> None:
    """Start the supervisor and return when its launch record is written. It inherits the lock until then."""
    # The reason why the previous launch ended is no longer valid.
    files.outage.unlink(missing_ok=True)
    log_start_bytes = _room_in(files.log)
    ready_read, ready_write = os.pipe()
    launch_id = uuid.uuid4().hex
    argv = [
        sys.executable,
        "-m",
        "tidemark.supervision.supervisor",
        f"--launch-file={files.launch}",
        f"--exit-file={files.exit}",
        f"--launch-id={launch_id}",
        f"--log={files.log}",
        f"--log-start-bytes={log_start_bytes}",
        f"--log-most-bytes={LOG_MOST_BYTES}",
        f"--script={command.script}",
        f"--grace-s={STOP_GRACE_S + command.leave_s}",
        f"--temporary={command.temporary}",
        f"--lock-fd={lock}",
        f"--ready-fd={ready_write}",
        "--",
        *command.argv,
    ]
    with files.log.open("ab") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(command.environment),
            cwd=command.folder,
            pass_fds=(lock, ready_write),
            start_new_session=True,
        )
    os.close(ready_write)
    with os.fdopen(ready_read, "rb") as ready:
        written = ready.read().decode()
    if written != launch_id:
        raise LaunchFailed(
            f"the supervisor of {files.key.kind} {files.key} (pid {process.pid}) ended before it started the "
            f"{files.key.kind}; see {files.log}"
        )


def _room_in(log: Path) -> int:
    """Make room for the start of the next launch in its log. Returns the position at which the launch begins, in bytes."""
    start_part(log).unlink(missing_ok=True)
    size = log.stat().st_size if log.exists() else 0
    with contextlib.suppress(OSError):  # a full disk; the supervisor tries again
        return bound_log(log, size, LOG_MOST_BYTES // 2)
    return size
