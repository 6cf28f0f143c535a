"""Processes that outlive the command that started them. They run in a session of their own and are known by pid,
start and boot; a mark in their environment finds them even if nothing recorded them.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "TIDEMARK_STACK_ID"


def raise_limit_of_open_files() -> None:
    """Allow this process, and those that it starts, as many open files as its hard limit permits.

    Shells start programs with a low limit, because of programs that use `select`. Each store has hundreds of files.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def stop_on_signals(stop: threading.Event) -> None:
    """Set the event when the process is asked to end, by SIGTERM or SIGINT. Called in the main thread.

    A thread of its own sets it: a handler runs in the main thread, perhaps while that one holds the lock of this event.
    """
    reading, writing = os.pipe()

    def set_when_asked() -> None:
        os.read(reading, 1)
        stop.set()

    threading.Thread(target=set_when_asked, name="stop-on-signals", daemon=True).start()
    os.set_blocking(writing, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(writing, b"!"))


@dataclass(frozen=True)
class Identity:
    """A process. Its start and the id of the boot distinguish it from a later one with the same pid.

    The start is counted in seconds since the boot, and not since the epoch, because the wall clock may be set meanwhile.
    """

    pid: int
    started_after_boot_s: float
    boot_id: str

    @classmethod
    def own(cls) -> Identity:
        """Return the identity of this process."""
        return cls(os.getpid(), started_after_boot_s(psutil.Process()), boot_id())

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of a running process; None if there is none."""
        try:
            return cls(pid, started_after_boot_s(psutil.Process(pid)), boot_id())
        except psutil.Error:
            return None

    def process(self) -> psutil.Process | None:
        """Return the process while it runs, else None; a zombie has ended."""
        try:
            process = psutil.Process(self.pid)
            if (started_after_boot_s(process), boot_id()) != (self.started_after_boot_s, self.boot_id):
                return None
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except psutil.Error:
            return None

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return self.process() is not None


def started_after_boot_s(process: psutil.Process) -> float:
    """Return when the process started, in seconds since the boot. Raises `psutil.Error` if it does not run."""
    # psutil identifies processes by this; its public start time is one of the wall clock.
    return float(process._proc.create_time(monotonic=True))  # type: ignore[attr-defined]


def boot_id() -> str:
    """Return the id of the present boot of this machine; empty if the system does not provide one."""
    return _read("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Place:
    """The scope in which a process id is valid: one boot of one machine, and one process namespace."""

    host: str
    boot_id: str
    pid_namespace: str

    @classmethod
    def here(cls) -> Place:
        """Return the place of this process. Parts that the system does not provide are empty."""
        return cls(socket.gethostname(), boot_id(), _read_link("/proc/self/ns/pid"))

    def shares_processes_with(self, other: Place) -> bool:
        """Return whether a process id recorded in the other place can be looked up in this one."""
        return (self.boot_id, self.pid_namespace) == (other.boot_id, other.pid_namespace)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _read_link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def without_airflow(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without Airflow's variables, which contain keys that no other program needs."""
    return {name: value for name, value in environment.items() if not name.lstrip("_").startswith("AIRFLOW_")}


def cpu_seconds() -> float:
    """Return the CPU seconds used so far by this process, its descendants, and those it has waited for."""
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def give_way(pid: int) -> None:
    """Give a process, and those that it starts in its session, what others leave of the processors, and little more."""
    with suppress(psutil.Error):
        psutil.Process(pid).nice(19)
    # Linux first divides the processors among sessions. Among those, only the nice value of the session counts.
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("19")


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.05) -> bool:
    """Check until the condition holds; return False if it did not within `timeout_s`. Blocks.

    The condition is checked at least once after that time, also if this thread has stood still.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        is_over = time.monotonic() > deadline
        if condition():
            return True
        if is_over:
            return False
        pause.wait(every_s)


def start(command: Sequence[str | Path], log: Path, environment: Mapping[str, str], folder: Path) -> Identity:
    """Start a process in its own session, appending its output to `log`. Does not wait for it to be ready.

    Raises `OSError` if the command cannot be run.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as opened:
        started = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    _reap_in_background(started)
    identity = Identity.of(started.pid)
    return identity or Identity(started.pid, 0.0, boot_id())


def stop(identity: Identity, timeout_s: float = 15.0) -> bool:
    """End a process with SIGTERM; after `timeout_s`, and for its remaining children, with SIGKILL. Blocks.

    Returns whether the process ended within `timeout_s`, or had ended before.
    """
    process = identity.process()
    has_ended = process is None
    if process is not None:
        with suppress(psutil.Error):
            family = process.children(recursive=True)
            process.terminate()
            has_ended = _await_end([process], timeout_s)
            _kill([process, *family])
    return has_ended


def carrying(mark: str) -> list[psutil.Process]:
    """Return this user's running processes with this mark in their environment, except the caller and its parents."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        # Other users' processes, and those that end meanwhile, cannot be read and are not ours.
        with suppress(psutil.Error, OSError):
            if process.pid in own or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def sweep(mark: str, timeout_s: float = 15.0, *, spare: Collection[int] = (), session: int | None = None) -> int:
    """End every process with the mark, including those started meanwhile; return how many. Blocks.

    `spare` are pids to leave alone; `session` limits the sweep to the session that this pid leads or led.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while found := [process for process in carrying(mark) if _is_meant(process.pid, spare, session)]:
        ended.update(process.pid for process in found)
        if time.monotonic() < deadline:
            for process in found:
                with suppress(psutil.Error):
                    process.terminate()
            _await_end(found, max(0.0, deadline - time.monotonic()))
        else:
            _kill(found)
    return len(ended)


def _is_meant(pid: int, spare: Collection[int], session: int | None) -> bool:
    if pid in spare:
        return False
    try:
        return session is None or os.getsid(pid) == session
    except OSError:
        return False


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    _await_end(processes, 5.0)


def _await_end(processes: Sequence[psutil.Process], timeout_s: float) -> bool:
    """Wait until the processes have ended, and return whether they have within `timeout_s`.

    A process whose parent has not asked for its exit code yet has ended, too.
    """

    def has_ended(process: psutil.Process) -> bool:
        try:
            # The first thread of a process may end before others, which still hold its ports and files.
            is_zombie = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
            return is_zombie or not process.is_running()
        except psutil.Error:
            return True

    return wait_until(lambda: all(map(has_ended, processes)), timeout_s)


def _reap_in_background(started: subprocess.Popen[bytes]) -> None:
    # Otherwise a part that ends while its starter lives would remain as a zombie.
    threading.Thread(target=started.wait, name=f"reap-{started.pid}", daemon=True).start()


@contextmanager
def guarded(mark: str) -> Iterator[None]:
    """Sweep the mark when the block ends, and also if this process dies in the middle of it, for any reason.

    A small process waits for the end of a pipe that only this process holds open.
    """
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    guard = subprocess.Popen(
        [sys.executable, "-m", "tidemark.processes", mark],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.communicate()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sweep(sys.argv[1], timeout_s=5.0)
