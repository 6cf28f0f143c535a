"""An application that has never run has nothing to audit: command and DAG report that at once."""

from __future__ import annotations

import pytest
from tests.support.counting import CountingApp
from typer.testing import CliRunner

from tidemark.audit import job
from tidemark.cli.main import build
from tidemark.errors import ExitCode
from tidemark.verdict import Verdict

pytestmark = pytest.mark.broker


def test_should_say_that_there_is_nothing_to_audit_without_starting_a_job(
    settings, admin, unique, tmp_path, monkeypatch
):
    app = CountingApp(settings, admin, unique("unborn"))
    name = app.for_commands(tmp_path, monkeypatch)
    monkeypatch.setattr(job, "_SCRIPT", tmp_path / "no-such-job.py")
    (found,) = job.run_audit(name, app.settings).findings
    assert (found.subject, found.verdict) == (app.name, Verdict.NOT_ENOUGH_EVIDENCE)
    assert "has never run" in found.message
    said = CliRunner().invoke(build(), ["audit", "run", name])
    assert said.exit_code == ExitCode.RETRY, said.output
    assert "verdict: not enough evidence" in said.stdout
