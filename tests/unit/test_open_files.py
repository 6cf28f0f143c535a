"""The limit of open files of a process that opens many stores."""

from __future__ import annotations

import resource
import subprocess
import sys

_PROGRAM = """
import resource
from tidemark.processes import raise_limit_of_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
raise_limit_of_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_should_allow_as_many_open_files_as_the_hard_limit_permits():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    program = _PROGRAM.format(hard=hard)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [str(hard), str(hard)]
