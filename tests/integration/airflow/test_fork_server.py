"""When the process that runs DAGs in forks of itself must not fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tidemark.settings import project_root

# The process of the tests has threads of other tests, and may have connections to Airflow's database.
_EACH_TIME = """
import json, threading
from airflow import settings
from tests.support.airflow.fork_server import require_nothing_is_open

def refusal():
    try:
        require_nothing_is_open()
    except RuntimeError as error:
        return str(error).partition(": ")[2]

said, ended = [refusal()], threading.Event()
thread = threading.Thread(target=ended.wait)
thread.start()
said.append(refusal())
ended.set()
thread.join()
settings.engine.connect().close()
said.append(refusal())
settings.engine.dispose()
said.append(refusal())
print(json.dumps(said))
"""


def test_should_not_fork_beside_a_thread_or_with_a_connection() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EACH_TIME], cwd=project_root(), capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [
        None,
        "2 threads, 0 connections to the database",
        "1 threads, 1 connections to the database",
        None,
    ]
