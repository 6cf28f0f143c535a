"""The supervisor of an instance: the parent of its processes, which records their launch and exit code and stops them.

Run it as `python -m tidemark.supervision.supervisor … -- COMMAND`, as the leader of a new session. It exists because the
operator that launches an instance ends, and only a parent process learns an exit code. It also bounds the log to which they
write. It sends SIGTERM only to the Python driver: the JVM of spark-submit must live until the driver has committed its batch.
It kills what has not ended after `--grace-s`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidemark.atomic_file import keep_files_private
from tidemark.errors import ExitCode, TidemarkError
from tidemark.processes import Identity, Place
from tidemark.stores.directory import locks_around
from tidemark.supervision.bounded_log import BoundedLog
from tidemark.supervision.instance_files import LaunchRecord, write_json
from tidemark.temporary_folder import remove_abandoned, use_temporary_folder

_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_WAITED_FOR = _STOP_SIGNALS | {signal.SIGCHLD}
_TICK_S = 0.25
# Processes that are left after the command ended (a driver whose JVM was killed) may end by themselves within this time.
_LEFTOVER_GRACE_S = 5.0


@dataclass(frozen=True)
class Order:
    """The command to run, and where to record its launch and its end."""

    launch_file: Path
    exit_file: Path
    launch_id: str
    log: str
    log_start_bytes: int
    log_most_bytes: int
    script: str
    grace_s: float
    temporary: Path
    command: list[str]


def record_launch(order: Order) -> LaunchRecord:
    """Write the launch record and return it. From now on, every process that looks for the instance finds this one."""
    me = Identity.own()
    record = LaunchRecord(
        launch_id=order.launch_id,
        pid=me.pid,
        started_after_boot_s=me.started_after_boot_s,
        pgid=os.getpgrp(),
        log=order.log,
        log_start_bytes=order.log_start_bytes,
        launched_at=time.time(),
        place=Place.here(),
    )
    write_json(order.launch_file, record.as_json())
    return record


def find_driver(script: str) -> psutil.Process | None:
    """Return the Python process that runs `script` among all descendants of this process, or None if there is none."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            # The command line of the JVM has the script, too, but further back.
            if script in process.cmdline()[1:3] and process.status() != psutil.STATUS_ZOMBIE:
                return process
    return None


def run(order: Order, launch: LaunchRecord) -> int:
    """Run the command until it ends and return its exit code (128 + signal if it was killed)."""
    _adopt_orphans()
    try:
        temporary = use_temporary_folder(order.temporary)
    except (TidemarkError, OSError) as error:
        print(f"tidemark: failed to create a temporary folder for the instance: {error}", file=sys.stderr)
        return ExitCode.RETRY
    child = subprocess.Popen(
        order.command,
        stdin=subprocess.DEVNULL,
        # The folder's lock is held for as long as the command runs, also if this process is killed.
        pass_fds=locks_around(temporary.folder) if temporary else [],
        # The child must not inherit the signals that this process blocks to wait for them.
        preexec_fn=_unblock_signals,
    )
    stop_by: float | None = None
    summary: int | None = None
    log = BoundedLog(order.launch_file, launch, order.log_most_bytes)
    while child.poll() is None:
        if stop_by is None:
            log.look()
        received = signal.sigtimedwait(_WAITED_FOR, _TICK_S)
        if received and received.si_signo in _STOP_SIGNALS and stop_by is None:
            stop_by = time.monotonic() + order.grace_s
        if stop_by is None:
            continue
        if summary is None:
            # Sent once: after the driver has ended, its JVM must live to pass the exit code on.
            driver = find_driver(order.script)
            summary = driver.pid if driver else child.pid
            _signal(summary, signal.SIGTERM)
        if time.monotonic() >= stop_by:
            _kill_session()
    _wait_for_leftovers()
    log.finish()
    if temporary:
        temporary.release()
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def _wait_for_leftovers() -> None:
    give_up_at = time.monotonic() + _LEFTOVER_GRACE_S
    while _session() and time.monotonic() < give_up_at:
        signal.sigtimedwait(_WAITED_FOR, _TICK_S)
        _reap()
    while _session():
        _kill_session()
        signal.sigtimedwait(_WAITED_FOR, _TICK_S)
        _reap()


def _session() -> list[psutil.Process]:
    """Return the live descendants of this process."""
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def _kill_session() -> None:
    for process in _session():
        _signal(process.pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _adopt_orphans() -> None:
    """Become the parent of a driver whose JVM dies (Linux only; elsewhere the driver is found by its session)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)


def _parse(arguments: list[str]) -> tuple[Order, int, int]:
    parser = argparse.ArgumentParser(prog="tidemark.supervision.supervisor")
    parser.add_argument("--launch-file", type=Path, required=True)
    parser.add_argument("--exit-file", type=Path, required=True)
    parser.add_argument("--launch-id", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--log-start-bytes", type=int, required=True)
    parser.add_argument("--log-most-bytes", type=int, required=True)
    parser.add_argument("--script", required=True)
    parser.add_argument("--grace-s", type=float, required=True)
    parser.add_argument("--temporary", type=Path, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = vars(parser.parse_args(arguments))
    lock_fd, ready_fd = given.pop("lock_fd"), given.pop("ready_fd")
    command = given.pop("command")
    return Order(command=command[1:] if command[:1] == ["--"] else command, **given), lock_fd, ready_fd


def main(arguments: list[str]) -> int:
    """Record the launch, run the command, record the exit code, and remove the command's temporary folder."""
    # Blocked first, so that a SIGTERM that arrives now waits until there is a process to stop.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keep_files_private()
    order, lock_fd, ready_fd = _parse(arguments)
    launch = record_launch(order)
    # The launcher's lock was inherited, so that a second launcher never finds neither a lock nor a record, even if the first
    # one is killed right after its fork. The record is written now.
    os.close(lock_fd)
    with contextlib.suppress(BrokenPipeError):  # the launcher was killed; another one will adopt this instance
        os.write(ready_fd, order.launch_id.encode())
    os.close(ready_fd)
    exit_code = run(order, launch)
    # If the disk is full, the exit code stays unknown, and the operator relaunches the instance.
    with contextlib.suppress(OSError):
        write_json(order.exit_file, {"launch_id": order.launch_id, "exit_code": exit_code, "ended_at": time.time()})
    remove_abandoned(order.temporary)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
