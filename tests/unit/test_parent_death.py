"""A process that ends with its caller also ends by itself, without an abort."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys
from tidemark.parent_death import end_with_caller
from tidemark.processes import wait_until
end_with_caller()
names = lambda: {frame.f_code.co_name for frame in sys._current_frames().values()}
assert wait_until(lambda: "_end_with_standard_input" in names(), 20)
"""


def run(program: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


def test_should_end_by_itself_while_its_caller_holds_its_standard_input() -> None:
    with run(PROGRAM) as process:
        # Popen.communicate would close the standard input first.
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_should_end_when_its_caller_closes_its_standard_input() -> None:
    with run(PROGRAM + "wait_until(lambda: False, 60)\n") as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 10
