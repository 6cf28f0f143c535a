"""How a benchmark ends: its exit code, its message, and the processes that it has started."""

import os
import subprocess
import sys

import pytest
from bench.errors import BenchFailed

from tidemark.processes import Identity, wait_until
from tidemark.settings import project_root

_PROGRAM = """
import subprocess, sys
from bench.errors import BenchFailed
from bench.program import run_program

def main():
    started = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True)
    print(started.pid, flush=True)
    {end}

run_program("a-bench", main)
"""


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("return None", 0, ""),
        ("return 1", 1, ""),
        ("sys.exit(2)", 2, ""),
        ("raise BenchFailed('no result')", int(BenchFailed.exit_code), "a-bench: no result\n"),
    ],
)
def test_should_end_with_a_code_and_without_its_processes(end, code, error):
    program = [sys.executable, "-c", _PROGRAM.format(end=end)]
    environment = {**os.environ, "PYTHONPATH": f"{project_root() / 'include'}{os.pathsep}{project_root()}"}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (code, error)

    def has_ended() -> bool:
        # One that has ended may remain as a zombie until its new parent asks for it.
        found = Identity.of(int(done.stdout))
        return found is None or not found.is_alive()

    assert wait_until(has_ended, 60)
