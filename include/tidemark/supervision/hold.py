"""Holds: while an application has a hold file, none of its instances is launched on this machine.

A command that changes a stopped application keeps the file `<var_dir>/instances/<application_id>.hold.json` while it works.
Launchers of instances wait until the file is gone. A hold belongs either to a case of an on-call DAG, whose tasks are many
processes, or to one process: a command in a terminal.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tidemark.atomic_file import replace_file
from tidemark.clock import wall_clock_ms
from tidemark.errors import ApplicationHeld, TaskLocked
from tidemark.processes import Identity, Place

log = logging.getLogger(__name__)

HOLD_SUFFIX = ".hold.json"
_CASE: ContextVar[str | None] = ContextVar("case", default=None)


def _user_name() -> str:
    """Return the name of the user, or `uid-` and the number of one without a name, as some containers have."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


@dataclass(frozen=True)
class HoldingProcess:
    """The process that owns a hold. Its pid is valid only within one boot of one machine and one process namespace."""

    user: str
    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started_after_boot_s: float
    command: str

    @classmethod
    def own(cls) -> HoldingProcess:
        """Return the current process."""
        here, own = Place.here(), Identity.own()
        return cls(
            _user_name(),
            here.host,
            here.boot_id,
            here.pid_namespace,
            own.pid,
            own.started_after_boot_s,
            _command(sys.argv),
        )

    @property
    def name(self) -> str:
        """A name of the holder that is unique among all holders."""
        return f"{self.user}@{self.host}:{self.pid}"

    def has_ended(self) -> bool:
        """Return whether the process has certainly ended. False if it cannot be looked up from here, as it may still run."""
        here, there = Place.here(), Place(self.host, self.boot_id, self.pid_namespace)
        if here.host == there.host and here.boot_id != there.boot_id:
            return True
        if not there.shares_processes_with(here):
            return False
        return not Identity(self.pid, self.started_after_boot_s, self.boot_id).is_alive()


@dataclass(frozen=True)
class Hold:
    """Holder and reason of a hold. `instances` ran when it was taken, and are to be started again afterwards.

    `by` is the name of the holding process or the id of a case; `process` is None for a case. With `changes_nothing` the
    holder only reads the state, so the hold ends with its process: nothing can be left half done. `continued_by` is the
    command, with `NAME` for the topology, that continues the work of a holder that was killed; empty for the holder's own
    command.
    """

    by: str
    reason: str
    since_ms: int
    instances: tuple[int, ...] = ()
    process: HoldingProcess | None = None
    changes_nothing: bool = False
    continued_by: str = ""

    def has_same_holder(self, other: Hold) -> bool:
        """Return whether both belong to one case or one process; processes of two containers may have the same name."""
        return (self.by, self.process) == (other.by, other.process)


def hold_path(var_dir: Path, application_id: str) -> Path:
    """Return the path of an application's hold file."""
    return var_dir / "instances" / f"{application_id}{HOLD_SUFFIX}"


def case_path(var_dir: Path, application_id: str, case_id: str) -> Path:
    """Return the folder of a case of an on-call DAG."""
    return var_dir / "oncall" / application_id / case_id


def read_hold(var_dir: Path, application_id: str) -> Hold | None:
    """Read the application's hold. Raises `OSError`.

    Returns None if there is none, or if its process changed nothing and has ended.
    """
    try:
        body = json.loads(hold_path(var_dir, application_id).read_text())
        process = None if body["process"] is None else HoldingProcess(**body["process"])
        instances = tuple(map(int, body["instances"]))
        changes_nothing, continued_by = bool(body.get("changes_nothing", False)), str(body.get("continued_by", ""))
        if changes_nothing and process is not None and process.has_ended():
            return None
        by, reason, since_ms = str(body["by"]), str(body["reason"]), int(body["since_ms"])
        return Hold(by, reason, since_ms, instances, process, changes_nothing, continued_by)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        # The file was meant to hold the application, so treat it as a hold until an operator has looked at it.
        return Hold("unknown", "the hold cannot be read", 0)


def stale_because(var_dir: Path, application_id: str, hold: Hold) -> str | None:
    """Return why a hold is stale (nothing works under it any more), or None while something may still work.

    The hold of a command is stale if its process has ended without releasing it. The hold of a case is stale if the case is
    over: its report was written after the hold was taken.
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
    """Describe who holds the application and why, for a log line of a launcher that waits; name the remedy if it is stale."""
    summary = f"{application_id} is held by {hold.by}: {hold.reason}"
    stale = stale_because(var_dir, application_id, hold)
    if stale is None:
        return summary
    return f"{summary}; the hold is stale ({stale}): {stale_remedy(hold)}"


def stale_remedy(hold: Hold, topology: str = "NAME") -> str:
    """Return what to do about a stale hold: what continues the work of its holder, and what removes it. Pure."""
    removal = f"`tidemark clean run {topology}`"
    if hold.continued_by:
        first = f"run `{hold.continued_by.replace('NAME', topology)}`"
    elif hold.process is not None:
        first = "run the command of the hold again"
    else:
        return f"run {removal}, which removes the hold if nothing is left unfinished"
    return f"{first}; if nothing is left unfinished, {removal} removes the hold"


def take_hold(
    var_dir: Path,
    application_id: str,
    hold: Hold,
    notify: Callable[[str], object] = log.warning,
    *,
    takes_over: bool = True,
) -> Hold:
    """Take the hold of an application, and return the hold that then exists.

    If the same holder takes it again, the instances recorded before are kept. A stale hold of another holder is taken over
    after a message through `notify`, unless `takes_over` is False: it may protect a change that was left half done, which
    only a command that changes state completes. Raises `TaskLocked` naming the holder if another one has it.
    """
    path = hold_path(var_dir, application_id)
    with _locked(path):
        there = read_hold(var_dir, application_id)
        if there is not None and not there.has_same_holder(hold):
            stale = stale_because(var_dir, application_id, there)
            if not takes_over:
                raise TaskLocked(describe_hold(var_dir, application_id, there))
            if stale is None:
                raise TaskLocked(
                    f"{application_id} is held by {there.by} ({there.reason}): wait until that has ended; if nothing works "
                    f"on it any more, remove {path}"
                )
            notify(f"taking over the stale hold of {there.by} ({there.reason}): {stale}")
            there = None
        if there is not None:
            instances = tuple(sorted({*there.instances, *hold.instances}))
            changes_nothing = there.changes_nothing and hold.changes_nothing
            continued_by = hold.continued_by or there.continued_by
            hold = replace(there, instances=instances, changes_nothing=changes_nothing, continued_by=continued_by)
        _write(path, hold)
    return hold


def release_hold(var_dir: Path, application_id: str, by: str, process: HoldingProcess | None = None) -> bool:
    """Remove the hold of a case, or of a process. Returns False if there is none, or if it belongs to another holder."""
    path = hold_path(var_dir, application_id)
    with _locked(path):
        there = read_hold(var_dir, application_id)
        if there is None or not there.has_same_holder(Hold(by, "", 0, process=process)):
            return False
        path.unlink(missing_ok=True)
    return True


def _give_back(var_dir: Path, application_id: str, own: Hold, before: Hold) -> None:
    """Put the hold back that was there before `own` was taken. One of the same holder keeps the instances recorded since."""
    path = hold_path(var_dir, application_id)
    with _locked(path):
        there = read_hold(var_dir, application_id)
        if there is not None and there.has_same_holder(own):
            is_same = before.has_same_holder(own)
            _write(path, replace(there, continued_by=before.continued_by) if is_same else before)


def _write(path: Path, hold: Hold) -> None:
    replace_file(path, json.dumps(asdict(hold), indent=1), synced=True)


@contextmanager
def acting_for(case_id: str) -> Iterator[None]:
    """Treat the hold of this case as one's own while the block runs."""
    before = _CASE.set(case_id)
    try:
        yield
    finally:
        _CASE.reset(before)


@contextmanager
def holding(
    var_dir: Path,
    application_id: str,
    notify: Callable[[str], object],
    *,
    takes_over: bool = True,
    gives_back: bool = False,
    continued_by: str = "",
) -> Iterator[None]:
    """Hold the application while the block runs, as this process or as the case that it acts for.

    A hold that this holder already had is kept afterwards. SIGTERM and SIGHUP end the block like an exception, so that the
    hold is released. Raises `TaskLocked` if another live holder has the application; the message names it. `takes_over` is
    that of `take_hold`. A block without it must not change the application, so its hold ends with its process. With
    `gives_back`, a stale hold that was taken over is in place again afterwards, and always if the block fails: what its holder
    has left half done still is. `continued_by` is that of `Hold`.
    """
    case_id, process, changes_nothing = _CASE.get(), HoldingProcess.own(), not takes_over
    if case_id is None:
        hold = Hold(process.name, process.command, wall_clock_ms(), (), process, changes_nothing, continued_by)
    else:
        hold = Hold(case_id, process.command, wall_clock_ms(), (), None, changes_nothing, continued_by)
    there = read_hold(var_dir, application_id)
    with _ended_by_signals():
        take_hold(var_dir, application_id, hold, notify, takes_over=takes_over)
        try:
            yield
            has_failed = False
        except BaseException:
            has_failed = True
            raise
        finally:
            if there is not None and (gives_back or has_failed or there.has_same_holder(hold)):
                _give_back(var_dir, application_id, hold, there)
            else:
                release_hold(var_dir, application_id, hold.by, hold.process)


def require_not_held(var_dir: Path, application_id: str) -> None:
    """Raise `ApplicationHeld` if the application is held. Called by an instance that starts."""
    hold = read_hold(var_dir, application_id)
    if hold is not None:
        raise ApplicationHeld(f"{describe_hold(var_dir, application_id, hold)}; start it when that has ended")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for and keep the lock under which holds are taken and released."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the block with `SystemExit` on SIGTERM or SIGHUP, unless the program has its own signal handlers."""

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
    """Return the command line as the user typed it. A command that runs as a module is called by its name."""
    name = Path(arguments[0]).name if arguments else ""
    return " ".join(["tidemark" if name == "main.py" else name or "python", *arguments[1:]])
