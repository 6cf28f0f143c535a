"""Runs a job of `spark_jobs/` in its own process and yields its output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import IO

from tidemark.errors import OutcomeUnknown
from tidemark.processes import without_airflow
from tidemark.settings import Settings, project_root
from tidemark.supervision.instance_log import last_message
from tidemark.temporary_folder import remove_abandoned

_LAST_WORDS = 5
# How Python ends a traceback: the class of the error, and its text.
_RAISED = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))(?::|$)")


def job_lines(
    script: Path,
    arguments: Sequence[str],
    settings: Settings,
    what: str,
    *,
    own_session: bool = False,
    request: bytes | None = None,
    temporary: Path | None = None,
) -> Generator[str, None, None]:
    """Run `script`, a path below the project's root, and yield the lines of its standard output as they come.

    The job ends when this generator is closed, and when the caller ends for any reason (it calls `end_with_caller`). If
    `own_session`, it leads a session. A `request` is in a file without a name, whose descriptor is the job's last argument: no
    other process can replace it. A job that has ended by itself leaves no folder in `temporary`, where it creates its temporary
    folder. Raises `OutcomeUnknown` if it fails, with `what` ended and how; its `records` are the job's last output, which may
    quote records.
    """
    root = project_root()
    with (
        tempfile.TemporaryFile() as errors,
        tempfile.TemporaryFile() as asked,
        subprocess.Popen(
            [sys.executable, str(root / script), *arguments, *_handed(request, asked)],
            pass_fds=[] if request is None else [asked.fileno()],
            env={
                **without_airflow(os.environ),
                **settings.as_environment(),
                "PYTHONPATH": f"{root / 'include'}{os.pathsep}{root}",
            },
            cwd=root,
            # The job ends when this pipe closes, so it does not outlive a killed caller.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=own_session,
        ) as job,
    ):
        try:
            for line in job.stdout or ():
                yield line.rstrip("\n")
            job.wait()
            if temporary is not None:
                # The output has ended, so no process of the job is left: its JVM writes to the same pipe.
                remove_abandoned(temporary)
        finally:
            if job.poll() is None:
                job.kill()
        if job.returncode:
            errors.seek(0)
            output = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
            raise OutcomeUnknown(
                f"{what} ended with exit code {job.returncode}{_how_it_failed(output)}",
                records=" / ".join(output[-_LAST_WORDS:]),
            )


def _how_it_failed(output: Sequence[str]) -> str:
    """Return what everybody may see of a failed job's output: its message, or else the class of its error."""
    said = last_message(output)
    if said is not None:
        return f": {said}"
    raised = next((found[1] for line in reversed(output) if (found := _RAISED.match(line))), None)
    how = "" if raised is None else f" ({raised})"
    return f"{how}; start it with a command to see its last output, which may quote records"


def _handed(request: bytes | None, file: IO[bytes]) -> list[str]:
    if request is None:
        return []
    file.write(request)
    file.seek(0)
    return [str(file.fileno())]
