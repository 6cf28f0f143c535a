"""Ends a process with the process that started it."""

from __future__ import annotations

import os
import threading

from tidemark.errors import ExitCode

_STANDARD_INPUT = 0
_MOST_BYTES = 4096


def end_with_caller() -> None:
    """End this process when its standard input closes: a pipe that its caller holds and never writes to."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()


def _end_with_standard_input() -> None:
    # Without Python's own buffer, whose lock this thread would hold while the process ends: Python aborts then.
    while os.read(_STANDARD_INPUT, _MOST_BYTES):
        pass
    os._exit(ExitCode.RETRY)
