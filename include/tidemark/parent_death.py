"""Ends a process with the process that started it."""

from __future__ import annotations

import os
import sys
import threading

from tidemark.errors import ExitCode


def end_with_caller() -> None:
    """End this process when its standard input closes: a pipe that its caller holds and never writes to."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()


def _end_with_standard_input() -> None:
    sys.stdin.buffer.read()
    os._exit(ExitCode.RETRY)
