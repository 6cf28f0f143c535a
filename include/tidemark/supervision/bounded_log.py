"""Keeps the log of a running launch bounded, without holding up its supervisor."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

from tidemark.supervision.instance_files import LaunchRecord, write_json
from tidemark.supervision.log_rotation import bound_log

_EVERY_S = 2.0
# A copy that fails, fails near its end, so it is not repeated at once.
_AFTER_ERROR_S = 60.0


class BoundedLog:
    """Cuts the log of a launch when it has `most_bytes`, and records in `launch_file` where in the log the launch begins."""

    def __init__(self, launch_file: Path, launch: LaunchRecord, most_bytes: int) -> None:
        self._launch_file = launch_file
        self._recorded = launch
        self._most_bytes = most_bytes
        self._start_bytes = launch.log_start_bytes
        self._next_s = time.monotonic() + _EVERY_S
        self._look: threading.Thread | None = None

    def look(self) -> None:
        """Look every two seconds whether the log is too long, and cut it; after an error only once a minute.

        Does not block: a thread does it, one at a time.
        """
        if time.monotonic() < self._next_s or (self._look is not None and self._look.is_alive()):
            return
        self._next_s = time.monotonic() + _EVERY_S
        self._look = threading.Thread(target=self.bound, name="log")
        self._look.start()

    def bound(self) -> None:
        """Cut the log if it is too long. Blocks for the time of a copy. A full disk changes nothing, and is not reported."""
        try:
            self._start_bytes = bound_log(Path(self._recorded.log), self._start_bytes, self._most_bytes)
            if self._start_bytes != self._recorded.log_start_bytes:
                launch = replace(self._recorded, log_start_bytes=self._start_bytes)
                write_json(self._launch_file, launch.as_json())
                self._recorded = launch
        except OSError:
            self._next_s = time.monotonic() + _AFTER_ERROR_S

    def finish(self) -> None:
        """Wait for a cut that has begun."""
        if self._look is not None:
            self._look.join()
