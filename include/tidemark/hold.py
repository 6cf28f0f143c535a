"""A hold: while it lies there, nobody launches an instance of the application on this machine.

A change of a stopped application keeps the file `<var_dir>/instances/<application_id>.hold.json` for as long as it works. It
tells whoever would launch an instance to wait until it is gone. It belongs to a case of an on-call DAG, whose tasks are many
processes, or to one process: a command of the terminal.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tidemark.clock import wall_clock_ms
from tidemark.errors import ApplicationHeld, TaskLocked
from tidemark.files import replace_file
from tidemark.local.processes import Identity

log = logging.getLogger(__name__)

HOLD_SUFFIX = ".hold.json"
_CASE: ContextVar[str | None] = ContextVar("case", default=None)


@dataclass(frozen=True)
class HoldingProcess:
    """The process that a hold ends with. Its pid means something in one boot of one machine and one process namespace."""

    user: str
    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_time: float
    command: str

    @classmethod
    def own(cls) -> HoldingProcess:
        """The process that asks."""
        identity = Identity.of(os.getpid())
        return cls(
            getpass.getuser(), *_place(), os.getpid(), identity.start_time if identity else 0.0, _command(sys.argv)
        )

    @property
    def name(self) -> str:
        """Who holds, told apart from every other holder."""
        return f"{self.user}@{self.host}:{self.pid}"

    def has_ended(self) -> bool:
        """Whether it certainly runs no more. A process that cannot be looked up from here may still run."""
        host, boot_id, pid_namespace = _place()
        if host == self.host and boot_id != self.boot_id:
            return True
        if (boot_id, pid_namespace) != (self.boot_id, self.pid_namespace):
            return False
        return not Identity(self.pid, self.start_time).is_alive()


@dataclass(frozen=True)
class Hold:
    """Who holds the application and why. `instances` ran when it was taken, and are wanted back afterwards.

    `process` is None for a case, which `by` is the id of.
    """

    by: str
    reason: str
    since_ms: int
    instances: tuple[int, ...] = ()
    process: HoldingProcess | None = None


def hold_path(var_dir: Path, application_id: str) -> Path:
    """Where the hold of an application lies."""
    return var_dir / "instances" / f"{application_id}{HOLD_SUFFIX}"


def case_path(var_dir: Path, application_id: str, case_id: str) -> Path:
    """The folder of a case of an on-call DAG."""
    return var_dir / "oncall" / application_id / case_id


def read_hold(var_dir: Path, application_id: str) -> Hold | None:
    """The hold that is there; None where there is none. Raises `OSError`."""
    try:
        body = json.loads(hold_path(var_dir, application_id).read_text())
        process = None if body["process"] is None else HoldingProcess(**body["process"])
        instances = tuple(map(int, body["instances"]))
        return Hold(str(body["by"]), str(body["reason"]), int(body["since_ms"]), instances, process)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        # Somebody meant to hold; a person has to look.
        return Hold("unknown", "the hold cannot be read", 0)


def stale_because(var_dir: Path, application_id: str, hold: Hold) -> str | None:
    """Why nothing works under a hold any more; None while something may.

    A command's is stale when its process has ended without releasing it. A case's is stale when the case is over: its report
    was written after the hold was taken.
    """
    if hold.process is not None:
        process = hold.process
        if not process.has_ended():
            return None
        return f"process {process.pid} of {process.user} on {process.host} (`{process.command}`) was killed"
    report = case_path(var_dir, application_id, hold.by) / "report.json"
    try:
        is_over = report.stat().st_mtime * 1000 >= hold.since_ms > 0
    except OSError:
        return None
    return f"case {hold.by} is over" if is_over else None


def describe_hold(var_dir: Path, application_id: str, hold: Hold) -> str:
    """Who holds the application and why, in words that a waiting log line shows; a stale hold with its remedy."""
    told = f"{application_id} is held by {hold.by}: {hold.reason}"
    stale = stale_because(var_dir, application_id, hold)
    if stale is None:
        return told
    return f"{told}; the hold is stale ({stale}): run that command again, or remove the hold with `tidemark clean`"


def take_hold(var_dir: Path, application_id: str, hold: Hold, say: Callable[[str], object] = log.warning) -> Hold:
    """Hold the application; gives the hold that lies there afterwards.

    Taken again by the same one, it keeps the instances that it knew. A stale hold of another is taken over, which `say` is
    told. Raises `TaskLocked` naming another holder.
    """
    path = hold_path(var_dir, application_id)
    with _locked(path):
        there = read_hold(var_dir, application_id)
        if there is not None and there.by != hold.by:
            stale = stale_because(var_dir, application_id, there)
            if stale is None:
                raise TaskLocked(
                    f"{application_id} is held by {there.by} ({there.reason}): wait until that has ended; where nothing works "
                    f"on it any more, remove {path}"
                )
            say(f"the stale hold of {there.by} ({there.reason}) is taken over: {stale}")
            there = None
        if there is not None:
            instances = tuple(sorted({*there.instances, *hold.instances}))
            hold = replace(there, instances=instances)
        replace_file(path, json.dumps(asdict(hold), indent=1), synced=True)
    return hold


def release_hold(var_dir: Path, application_id: str, by: str) -> bool:
    """Take one's own hold away; False where there was none, or where it is another's."""
    path = hold_path(var_dir, application_id)
    with _locked(path):
        there = read_hold(var_dir, application_id)
        if there is None or there.by != by:
            return False
        path.unlink(missing_ok=True)
    return True


@contextmanager
def acting_for(case_id: str) -> Iterator[None]:
    """Take the hold that lies there for one's own while the block runs, where it is that of this case."""
    before = _CASE.set(case_id)
    try:
        yield
    finally:
        _CASE.reset(before)


@contextmanager
def holding(var_dir: Path, application_id: str, say: Callable[[str], object]) -> Iterator[None]:
    """Hold the application for as long as the block runs, as this process or as the case that it acts for.

    A hold that this one had before stays. SIGTERM and SIGHUP end the block like an exception, so that the hold is released.
    Raises `TaskLocked` naming another holder that lives.
    """
    case_id, process = _CASE.get(), HoldingProcess.own()
    if case_id is None:
        hold = Hold(process.name, process.command, wall_clock_ms(), process=process)
    else:
        hold = Hold(case_id, process.command, wall_clock_ms())
    there = read_hold(var_dir, application_id)
    had_it = there is not None and there.by == hold.by and there.process == hold.process
    with _ended_by_signals():
        take_hold(var_dir, application_id, hold, say)
        try:
            yield
        finally:
            if not had_it:
                release_hold(var_dir, application_id, hold.by)


def require_not_held(var_dir: Path, application_id: str) -> None:
    """For an instance that starts. Raises `ApplicationHeld` while somebody holds the application."""
    hold = read_hold(var_dir, application_id)
    if hold is not None:
        raise ApplicationHeld(f"{describe_hold(var_dir, application_id, hold)}; start it when that has ended")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Whoever takes or releases a hold waits for another that does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A terminal that closes, or a kill, ends the block with `SystemExit`, unless the program has its own way to end."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    changed = []
    if threading.current_thread() is threading.main_thread():
        changed = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    for each in changed:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in changed:
            signal.signal(each, signal.SIG_DFL)


def _command(arguments: list[str]) -> str:
    """What was typed. A command that runs as a module is called by its name."""
    name = Path(arguments[0]).name if arguments else ""
    return " ".join(["tidemark" if name == "main.py" else name or "python", *arguments[1:]])


def _place() -> tuple[str, str, str]:
    """Host, boot and process namespace of this process; parts that the system does not tell are empty."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return socket.gethostname(), boot_id, namespace
