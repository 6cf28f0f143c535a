"""A process that is launched again each time it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.system.crash.bench import ROOT

_RELAUNCH_S = 1.0


@dataclass
class Supervised:
    """A process that is launched again one second after it has ended, unless it is to stay down."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    ends: list[int] = field(default_factory=list)
    is_wanted: bool = True
    _ended_at: float = 0.0
    _looks: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> None:
        """Launch it where it is due."""
        with self._looks:
            if self.process is not None and self.process.poll() is not None:
                self.ends.append(self.process.returncode)
                self.process, self._ended_at = None, time.monotonic()
            if self.process is None and self.is_wanted and time.monotonic() - self._ended_at >= _RELAUNCH_S:
                with self.log.open("ab") as file:
                    self.process = subprocess.Popen(
                        self.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self.environment, cwd=ROOT,
                        start_new_session=True,
                    )  # fmt: skip

    def send(self, number: signal.Signals) -> bool:
        """Signal the process alone; whether there is one."""
        # Whoever looks forgets a process that has ended, at any time.
        process = self.process
        if process is None or process.poll() is not None:
            return False
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
        return True

    def jvms(self) -> list[psutil.Process]:
        """The Java processes below it."""
        process = self.process
        if process is None:
            return []
        with suppress(psutil.Error):
            below = psutil.Process(process.pid).children(recursive=True)
            return [child for child in below if "java" in child.name()]
        return []

    def end(self, timeout_s: float = 60) -> int | None:
        """SIGTERM, and SIGKILL after the time; it stays down."""
        self.is_wanted = False
        # Whoever looks may be about to launch it.
        with self._looks:
            process = self.process
        if process is None or not self.send(signal.SIGTERM):
            return None
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
        # Its end counts from now on, and not when the next look is due.
        self.look()
        return process.returncode
