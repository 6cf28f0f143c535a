"""A request to end reaches a process whatever its main thread does."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The main thread holds the event's lock, which is not reentrant, while the signal arrives.
_HELD = """
import signal, threading
from tidemark.processes import stop_on_signals
stop = threading.Event()
stop_on_signals(stop)
with stop._cond:
    signal.raise_signal({number})
assert stop.wait(30)
signal.raise_signal({number})
print("stopped")
"""


@pytest.mark.parametrize("number", [15, 2])
def test_should_stop_although_the_main_thread_is_interrupted_while_it_looks_for_a_stop(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HELD.format(number=number)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("stopped\n", "")
