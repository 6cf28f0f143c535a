"""`tidemark audit` shows and stores the findings of the job, ends with 1 when something is wrong, and reports failures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tidemark.audit import job
from tidemark.audit.job import AuditResult, run_audit
from tidemark.audit.progress import AuditProgress
from tidemark.audit.suites import NOT_COMPUTED
from tidemark.checks.verdict_table import past_verdicts
from tidemark.cli import audit as command
from tidemark.cli.main import build
from tidemark.database import FactsDatabase
from tidemark.errors import ExitCode, OutcomeUnknown
from tidemark.settings import Settings
from tidemark.verdict import Finding, Verdict

OK = Finding("ranges_leave_no_gap", Verdict.OK, "each batch begins where the one before it ended", {"rows": 4})
BAD = Finding("outputs_are_not_lost", Verdict.FAILED, "2 times not so", {"rows": 4, "unexpected": 2})
UNKNOWN = Finding("alerts", Verdict.NOT_ENOUGH_EVIDENCE, "behind a join", {NOT_COMPUTED: True})


def audited(monkeypatch, tmp_path, findings, *arguments):
    body = {"ranges": {"0_1": [3, 9]}, "records": 12, "seconds": 1.5, "page": "p.html", "quarantine": "q.jsonl"}
    asked = []
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    monkeypatch.setattr(command, "run_audit", lambda *a, **k: asked.append((a, k)) or AuditResult(findings, body))
    return CliRunner().invoke(build(), ["audit", "run", "shopping", *arguments]), asked


def test_should_show_ranges_and_verdict_and_keep_them(monkeypatch, tmp_path):
    ran, asked = audited(monkeypatch, tmp_path, [OK, UNKNOWN], "--batches", "5")
    assert ran.exit_code == 0, ran.output
    assert "0_1: 3 to 9" in ran.output
    # What can never be computed does not change what all comes to.
    assert "verdict: ok" in ran.output
    assert (asked[0][0][0], asked[0][1]) == ("shopping", {"batches": 5, "whole": False, "tell": job.log_progress})
    facts = FactsDatabase(Settings.load())
    assert {row.finding.subject for row in past_verdicts(facts, "shopping", "audit")} == {OK.subject, "alerts"}
    facts.close()


def test_should_end_with_one_when_something_is_wrong(monkeypatch, tmp_path):
    ran, _ = audited(monkeypatch, tmp_path, [OK, BAD], "--json")
    assert ran.exit_code == 1
    assert json.loads(ran.output)["records"] == 12
    ran, _ = audited(monkeypatch, tmp_path, [OK, BAD])
    assert "q.jsonl" in ran.output


@pytest.mark.parametrize("findings", [[], [OK, replace(UNKNOWN, evidence={})]])
def test_should_end_with_ten_when_there_is_not_enough_evidence(monkeypatch, tmp_path, findings):
    ran, _ = audited(monkeypatch, tmp_path, findings)
    assert ran.exit_code == ExitCode.RETRY, ran.output
    assert "verdict: not enough evidence" in ran.output


@pytest.fixture
def has_run(monkeypatch):
    """An application with commit records. tests/integration/audit/test_audit_never_ran.py asks a cluster for them."""
    monkeypatch.setattr(job, "never_ran", lambda plan, settings, admin: [])


@pytest.mark.usefixtures("has_run")
def test_should_report_the_progress_of_the_job(monkeypatch, tmp_path):
    summary = [
        AuditProgress("reading", 500, 2000, "offsets", 2.0),
        AuditProgress("validating", 3, None, "tables", 70.0),
    ]
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, pathlib\n"
        f"print({summary[0].line()!r}, 'what Spark says', {summary[1].line()!r}, sep='\\n')\n"
        "pathlib.Path(sys.argv[sys.argv.index('--report') + 1]).write_text('{\"findings\": []}')\n"
    )
    monkeypatch.setattr(job, "_SCRIPT", script)
    heard = []
    run_audit("shopping", Settings.load(), tell=heard.append)
    assert heard == summary
    assert [str(progress) for progress in heard] == [
        "reading: 500 of 2,000 offsets, 250/s, 6.0 s left",
        "validating: 3 tables done in 1:10",
    ]


@pytest.mark.usefixtures("has_run")
def test_should_show_the_message_of_a_job_that_ends_without_a_report(monkeypatch, tmp_path):
    script = tmp_path / "job.py"
    script.write_text("import sys\nprint('tidemark: no broker', file=sys.stderr)\nsys.exit(10)\n")
    monkeypatch.setattr(job, "_SCRIPT", script)
    with pytest.raises(OutcomeUnknown, match="ended with exit code 10: no broker"):
        run_audit("shopping", Settings.load())


@pytest.mark.usefixtures("has_run")
def test_should_read_the_report_that_the_job_writes(monkeypatch, tmp_path):
    finding = {"subject": "s", "verdict": "failed", "message": "m", "evidence": {"rows": 1}}
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, json, pathlib\n"
        "at = sys.argv.index('--report')\n"
        f"pathlib.Path(sys.argv[at + 1]).write_text(json.dumps({{'findings': [{finding!r}], 'argv': sys.argv[1:]}}))\n"
    )
    monkeypatch.setattr(job, "_SCRIPT", script)
    result = run_audit("shopping", Settings.load(), batches=7, whole=True)
    assert result.findings == [Finding("s", Verdict.FAILED, "m", {"rows": 1})]
    assert result.body["argv"][:2] == ["--topology", "shopping"]
    assert result.body["argv"][4:] == ["--batches", "7", "--whole"]
