"""The base of an audit whose predecessor left no results: the changelog, as long as it is not compacted."""

from __future__ import annotations

import shutil
import uuid

import pytest
from spark_jobs.audit.pipeline import OneAudit
from spark_jobs.audit.run import AuditReport
from tests.support.audit.application import PaymentsApp
from tests.support.audit.matrix import STALLED_MS, Matrix, complaints_of

from tidemark.clock import wall_clock_ms

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(560)]


def test_should_continue_from_the_changelog_only_when_compaction_cannot_have_removed_records(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"base-{uuid.uuid4().hex[:8]}"
    app = PaymentsApp(matrix.settings, matrix.admin, name)
    state = matrix.settings.var_dir / "audit" / name / "state"
    compacted: dict[str, int] = {}

    def audited() -> tuple[AuditReport, dict[str, str]]:
        app.feed(300)
        app.run()
        report = matrix.audit.run(app.plan, stalled_ms=STALLED_MS)
        assert complaints_of(report) == []
        return report, {found.subject: found.message for found in report.findings}

    monkeypatch.setattr(OneAudit, "_compacted_before", lambda *_: compacted)
    audited()
    # The results that were carried over are gone.
    shutil.rmtree(state)
    _, said = audited()
    assert said["the_last_value_is_the_truth"]
    # Once more, and the first batches of the cut are old enough to be compacted by the time of the audit; the last are not.
    shutil.rmtree(state)
    app.feed(300)
    app.run()
    compacted |= {f"{name}-{store}-changelog": wall_clock_ms() for store in ("minutes", "totals")}
    _, said = audited()
    assert "may have been compacted since batch" in said[f"{name}-totals"]
    assert "the_last_value_is_the_truth" not in said
    # The next audit goes on from where this one ended.
    compacted.clear()
    _, said = audited()
    assert said["the_last_value_is_the_truth"]
    assert "may have been compacted" not in said.get(f"{name}-totals", "")
