"""The audit's process has a lower priority than the stream, in whichever sessions they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.audit import job
from tidemark.settings import Settings

AUTOGROUP = Path("/proc/self/autogroup")
STANDING_BACK = """
import os
from tidemark.audit.job import stand_back
stand_back()
print(os.nice(0), open("/proc/self/autogroup").read().split()[-1])
"""


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not group processes by session")
@pytest.mark.parametrize(("leads", "of_session"), [(True, "5"), (False, "0")])
def test_should_lower_the_priority_of_its_own_session_and_no_other(leads: bool, of_session: str) -> None:
    # The shell leads a session in any case, so that a test never lowers the one that it runs in.
    command = [sys.executable, "-c", STANDING_BACK]
    inner = command if leads else ["/bin/sh", "-c", '"$0" "$@"; exit $?', *command]
    said = subprocess.run(inner, capture_output=True, text=True, check=True, start_new_session=True).stdout
    assert said.split() == [str(min(os.nice(0) + 5, 19)), of_session]


def test_should_run_the_job_as_the_leader_of_its_own_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "audit.py"
    script.write_text(
        "import json, os, sys\n"
        "body = {'findings': [], 'leads': os.getsid(0) == os.getpid()}\n"
        "open(sys.argv[sys.argv.index('--report') + 1], 'w').write(json.dumps(body))\n"
    )
    monkeypatch.setattr(job, "_SCRIPT", script)
    monkeypatch.setattr(job, "never_ran", lambda *_: [])
    ran = job.run_audit("patient_monitoring", Settings.load(bootstrap_servers="127.0.0.1:1"))
    assert ran.body["leads"] is True
