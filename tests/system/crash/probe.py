"""The failpoint of crash tests in a commit: the process dies or stops at the point that an arm file names.

The file is `{"point": …, "skip": n, "signal": "SIGKILL"}`; `skip` passes that many times first. It is taken away just
before the signal, so that the process which comes next is not hit too. With `full`, a folder, instead of a signal the file
system that is mounted there has no room from then on. With the signal `HOLD` the thread that commits waits at the point, while
the process's other threads go on, until somebody takes the file of `held_file` away.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.system.crash import disk

HOLD = "HOLD"
_ARM_FILE = Path(os.environ.get("TEST_CRASH_ARM", "/nonexistent"))
_HELD_EVERY_S = 0.02
_passed: dict[str, int] = {}


def held_file(arm_file: Path) -> Path:
    """The file that is there while a process is held; it names the process's id."""
    return arm_file.with_suffix(".held")


def arm(
    file: Path,
    point: str,
    skip: int = 0,
    how: str = "SIGKILL",
    full: Path | None = None,
    clock: tuple[float, float] | None = None,
) -> None:
    """Write the arm file in one piece."""
    body = {"point": point, "skip": skip, "signal": how, "full": None if full is None else str(full), "clock": clock}
    _write(file, json.dumps(body))


def _write(file: Path, text: str) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(file)


def kill(point: str) -> None:
    """The `Probe`: called at every point of every commit."""
    try:
        armed = json.loads(_ARM_FILE.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return
    if armed["point"] != point:
        return
    seen = _passed.get(point, 0)
    _passed[point] = seen + 1
    if seen < armed["skip"]:
        return
    try:
        _ARM_FILE.unlink()
    except FileNotFoundError:  # Another thread or process that passed the point at the same time is hit.
        return
    if folder := armed.get("full"):
        disk.fill(Path(folder))
        print(f"crash probe: {folder} is full at {point}", file=sys.stderr, flush=True)
        return
    if clock := armed.get("clock"):
        print(f"crash probe: the clock is {clock[0]} s ahead at {point}, for {clock[1]} s", file=sys.stderr, flush=True)
        _set_clock(*clock)
        return
    print(f"crash probe: {armed['signal']} at {point}", file=sys.stderr, flush=True)
    if armed["signal"] == HOLD:
        _hold()
        return
    os.kill(os.getpid(), getattr(signal, armed["signal"]))


def _hold() -> None:
    """Wait until the file that says so is gone."""
    file = held_file(_ARM_FILE)
    _write(file, str(os.getpid()))
    while file.exists():
        time.sleep(_HELD_EVERY_S)
    print("crash probe: goes on", file=sys.stderr, flush=True)


def _set_clock(ahead_s: float, for_s: float) -> None:
    """Be wrong about the time for a while."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + ahead_s
    time.time_ns = lambda: nanoseconds() + round(ahead_s * 1e9)

    def be_right() -> None:
        time.time, time.time_ns = seconds, nanoseconds

    timer = threading.Timer(for_s, be_right)
    timer.daemon = True
    timer.start()
