"""A job of `spark_jobs/` in a process of its own, followed by what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

from tidemark.errors import OutcomeUnknown
from tidemark.settings import Settings, project_root

_LAST_WORDS = 5


def job_lines(
    script: Path, arguments: Sequence[str], settings: Settings, what: str, *, own_session: bool = False
) -> Generator[str, None, None]:
    """Run `script`, a path below the project's root, and give the lines of its standard output as they come.

    The job ends when this generator is closed, and with the caller however that ends (it calls `end_with_caller`).
    `own_session` makes it lead one. Raises `OutcomeUnknown` that says `what` ended, with the job's last words, when it fails.
    """
    root = project_root()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, str(root / script), *arguments],
            env={**os.environ, **settings.as_environment(), "PYTHONPATH": f"{root / 'include'}{os.pathsep}{root}"},
            cwd=root,
            # The job ends when this pipe does: nothing is left behind a killed caller.
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
        finally:
            if job.poll() is None:
                job.kill()
        if job.returncode:
            errors.seek(0)
            words = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
            said = " / ".join(words[-_LAST_WORDS:]) or "nothing"
            raise OutcomeUnknown(f"{what} ended with {job.returncode}; its last words: {said}")
