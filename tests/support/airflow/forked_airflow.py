"""An Airflow without its processes: a database, and one process that has imported Airflow and forks for each call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemark.settings import project_root


class ForkedAirflow:
    """Calls the functions of `tests/support/airflow/calls.py`, each in a fork of the server. Every call blocks."""

    def __init__(self, server: subprocess.Popen[str], log: Path) -> None:
        self._server, self._log = server, log

    def run(self, dag_id: str, conf: dict[str, Any], marked: str = "") -> tuple[dict[str, Any], str]:
        """How the run and its tasks ended, and the log. The task `marked` is not run, but marked successful."""
        return self._call("run_dag", dag_id, conf=conf, marked=marked)

    def clear_failed_run(self, dag_id: str, conf: dict[str, Any]) -> dict[str, Any]:
        """A failed run after its tasks were cleared: its state, and bounds of the seconds after which it had deadlines."""
        cleared, _ = self._call("clear_failed_run", dag_id, conf=conf)
        return cleared

    def _call(self, name: str, dag_id: str, **arguments: Any) -> tuple[dict[str, Any], str]:
        file = project_root() / "dags" / f"{dag_id}.py"
        request = {"call": name, "arguments": {"file": str(file), "dag_id": dag_id, **arguments}}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        try:
            print(json.dumps(request), file=self._server.stdin, flush=True)
            line = self._server.stdout.readline()
        except BaseException:
            # A test's time is over: the answer would be taken for that to the next call.
            os.killpg(self._server.pid, signal.SIGKILL)
            raise
        assert line, self._log.read_text()[-3000:]
        answer = json.loads(line)
        assert answer["code"] == 0, answer["log"][-3000:]
        return answer["returned"], answer["log"]


@contextmanager
def forked_airflow(environment: Mapping[str, str], folder: Path) -> Iterator[ForkedAirflow]:
    """Start a server with this environment, whose database is migrated. It ends with the block; `folder` is for its log."""
    log = folder / "fork-server.log"
    with log.open("w") as written:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.airflow.fork_server"],
            env=dict(environment), cwd=project_root(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written,
            text=True, start_new_session=True,
        )  # fmt: skip
    # At the end its stdin is closed, and its own end waited for.
    with server:
        yield ForkedAirflow(server, log)
