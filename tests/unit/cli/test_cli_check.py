"""The exit codes of `tidemark check`."""

from __future__ import annotations

import json

import pytest

from tidemark.cli import check
from tidemark.cli.output import Output
from tidemark.errors import ExitCode
from tidemark.verdict import Finding, Verdict


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.OK], ExitCode.OK),
        ([Verdict.OK, Verdict.WARNING], ExitCode.OK),
        ([Verdict.NOT_ENOUGH_EVIDENCE, Verdict.WARNING], ExitCode.OK),
        ([], ExitCode.RETRY),
        ([Verdict.OK, Verdict.NOT_ENOUGH_EVIDENCE], ExitCode.RETRY),
        ([Verdict.NOT_ENOUGH_EVIDENCE, Verdict.FAILED], ExitCode.FAILED),
    ],
)
def test_should_end_with_the_exit_code_of_the_worst_verdict(monkeypatch, tmp_path, capsys, verdicts, code):
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    findings = [Finding("in", verdict, "as it is") for verdict in verdicts]
    monkeypatch.setattr(check, "check_durability", lambda plan, settings: findings)
    with pytest.raises(SystemExit) as ended:
        check.durability("clicks", Output(as_json=True), history=False)
    assert ended.value.code == code
    assert len(json.loads(capsys.readouterr().out)["findings"]) == len(verdicts)
