"""A job in a separate process: its lines as they arrive, its last output, and that it never outlives its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from tidemark.errors import OutcomeUnknown
from tidemark.processes import Identity, wait_until
from tidemark.settings import Settings, project_root
from tidemark.spark_submit import job_lines
from tidemark.temporary_folder import temporary_folders

_WAITING = """
import os, threading
from tidemark.parent_death import end_with_caller
end_with_caller()
print(os.getpid(), flush=True)
threading.Event().wait()
"""
_CALLER = """
import sys
from pathlib import Path
from tidemark.spark_submit import job_lines
from tidemark.settings import Settings
for line in job_lines(Path(sys.argv[1]), [], Settings.load(), "a job", own_session=True):
    print(line, flush=True)
"""


@pytest.fixture
def waiting(tmp_path):
    """A job that says who it is and waits."""
    script = tmp_path / "waiting.py"
    script.write_text(_WAITING)
    return script


@pytest.mark.parametrize(
    ("ends", "said", "last"),
    [
        (
            "for n in range(9): print(n, file=sys.stderr)\nsys.exit(3)",
            "3; start it with a command to see its last output, which may quote records",
            "4 / 5 / 6 / 7 / 8",
        ),
        (
            "raise ValueError('Jane Doe')",
            "1 (ValueError); start it with a command to see its last output, which may quote records",
            "ValueError: Jane Doe",
        ),
        (
            "sys.exit('tidemark records: Jane Doe\\ntidemark: in[0] has a wrong record')",
            "1: in[0] has a wrong record",
            "tidemark records: Jane Doe / tidemark: in[0] has a wrong record",
        ),
    ],
)
def test_should_yield_lines_and_then_say_how_it_failed_without_records(tmp_path, ends, said, last):
    script = tmp_path / "job.py"
    script.write_text(f"import sys\nprint(sys.argv[1:])\n{ends}\n")
    lines = job_lines(script, ["--a", "b"], Settings.load(), "a job")
    assert next(lines) == "['--a', 'b']"
    with pytest.raises(OutcomeUnknown) as raised:
        next(lines)
    assert str(raised.value) == f"a job ended with exit code {said}"
    assert raised.value.records.endswith(last)


def test_should_end_the_job_when_nobody_reads_its_output(waiting):
    with closing(job_lines(waiting, [], Settings.load(), "a job")) as lines:
        job = Identity.of(int(next(lines)))
        assert job is not None
    assert not job.is_alive()


def test_should_end_when_its_caller_is_killed(waiting):
    environment = {**os.environ, "PYTHONPATH": str(project_root() / "include")}
    command = [sys.executable, "-c", _CALLER, str(waiting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as caller:
        assert caller.stdout is not None
        job = Identity.of(int(caller.stdout.readline()))
        assert job is not None
        caller.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not job.is_alive(), 60)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_should_leave_no_temporary_folder_of_a_job_that_has_ended(tmp_path, exit_code):
    script, folders = tmp_path / "job.py", temporary_folders(tmp_path, "app-audit")
    script.write_text(
        "import os, sys\nfrom pathlib import Path\nfrom tidemark.temporary_folder import use_temporary_folder\n"
        "lock = use_temporary_folder(Path(sys.argv[1]))\n(lock.folder / 'left').write_text('by a JVM')\n"
        "print(lock.folder, flush=True)\nos._exit(int(sys.argv[2]))\n"
    )
    lines = job_lines(script, [str(folders), str(exit_code)], Settings.load(), "a job", temporary=folders)
    folder = Path(next(lines))
    assert folder.parent == folders
    with pytest.raises(OutcomeUnknown) if exit_code else nullcontext():
        list(lines)
    assert not folder.exists()


def test_should_hide_airflows_keys_from_a_job_and_pass_its_request_without_a_file_name(tmp_path, monkeypatch):
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys\nprint([n for n in os.environ if 'AIRFLOW' in n])\n"
        "print(os.fdopen(int(sys.argv[-1]), 'rb').read())\n"
    )
    for name in ("AIRFLOW__API_AUTH__JWT_SECRET", "_AIRFLOW__SECRET", "AIRFLOW_CONN_SPARK"):
        monkeypatch.setenv(name, "s3cret")
    lines = list(job_lines(script, [], Settings.load(), "a job", request=b"asked"))
    assert lines[0] == "[]"
    assert lines[1] == "b'asked'"
