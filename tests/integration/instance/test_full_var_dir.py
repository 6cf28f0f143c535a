"""A full disk under `var_dir`: the instance cannot write its run file, and the stream continues."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.counting import CountingApp, outputs
from tests.system.crash.disk import fill, free, may_mount, mounted

from tidemark.errors import ExitCode
from tidemark.settings import project_root
from tidemark.supervision.run_file import RunFile, read_run_file, run_file_path

pytestmark = pytest.mark.skipif(not may_mount(), reason="takes root: it mounts a disk")

_MANY = "x" * 20_000
_BATCH_RECORDS = 500


@pytest.fixture
def disk(tmp_path):
    with mounted(tmp_path / "var"):
        yield tmp_path / "var"


def of_run_file(caplog):
    return [record.getMessage() for record in caplog.records if "run file" in record.getMessage()]


def test_should_warn_once_when_a_run_file_cannot_be_written_and_write_it_when_there_is_room(disk, caplog):
    caplog.set_level(logging.INFO)
    path = run_file_path(disk, "app", 0)
    file = RunFile(path, {"many": _MANY})
    file.update({"batch": 1}, now=True)
    fill(disk)
    for batch in (2, 3):
        file.update({"batch": batch}, now=True)
    assert read_run_file(path)["batch"] == 1
    assert [path.name for path in path.parent.iterdir()] == [path.name], "nothing half-written is left"
    (said,) = of_run_file(caplog)
    assert "No space left on device" in said
    free(disk)
    file.update({"state": "RUNNING"}, now=True)
    assert read_run_file(path)["batch"] == 3
    assert len(of_run_file(caplog)) == 2, "and that it is written again"


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_continue_while_the_disk_is_full_and_show_its_progress_afterwards(disk, settings, admin, unique, caplog):
    app = CountingApp(settings, admin, unique("app"))
    assert app.settings.var_dir == disk
    path = run_file_path(disk, app.name, 0)
    committed = []

    def probe(point):
        if point == "6-commit":
            committed.append(point)
            if len(committed) == 1:
                fill(disk)

    app.feed(6 * _BATCH_RECORDS)
    app.run(probe)
    assert len(committed) > 2, "batches were committed on the full disk"
    assert outputs(app)
    assert any("No space left on device" in said for said in of_run_file(caplog))
    assert read_run_file(path)["state"] != "NOT_RUNNING"
    free(disk)
    app.feed(10)
    app.run()
    assert read_run_file(path)["state"] == "NOT_RUNNING"


def test_should_end_with_its_exit_code_when_the_log_cannot_be_written(tmp_path):
    program = project_root() / "spark_jobs" / "stream_instance.py"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, str(program), "--topology", "no_such_topology"],
            stdout=full,
            stderr=full,
            env={**os.environ, "TIDEMARK_VAR_DIR": str(tmp_path)},
            check=False,
        )
    assert ended.returncode == ExitCode.USAGE
