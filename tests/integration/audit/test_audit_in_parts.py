"""An audit in parts compares the results of each part, which continues from those of the part before."""

from __future__ import annotations

import uuid

import pytest
from spark_jobs.audit.run import Audit
from tests.support.audit.application import PaymentsApp
from tests.support.audit.matrix import STALLED_MS, Matrix, complaints_of
from tests.support.counting import PARTITIONS

from tidemark.audit.table import audited_until, past_audits
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(560)]

BATCHES = 3


def test_should_compare_the_results_of_every_part(matrix: Matrix) -> None:
    name = f"parts-{uuid.uuid4().hex[:8]}"
    app = PaymentsApp(matrix.settings, matrix.admin, name)
    app.feed(900)
    app.run()
    audit = Audit(matrix.spark, matrix.settings, matrix.facts, BATCHES)
    reports = [audit.run(app.plan, whole=whole, stalled_ms=STALLED_MS) for whole in (False, True)]
    for report in reports:
        assert (complaints_of(report), report.verdict) == ([], Verdict.OK)
        assert len(report.ranges) == PARTITIONS
        assert min(last - first for first, last in report.ranges.values()) >= BATCHES
        (last_values,) = [found for found in report.findings if found.subject == "the_last_value_is_the_truth"]
        assert (last_values.verdict, last_values.evidence["rows"] > 0) == (Verdict.OK, True)
    assert reports[0].ranges == reports[1].ranges
    assert {str(task): one.end.batch for task, one in audited_until(matrix.facts, name).items()} == {
        task: last for task, (_, last) in reports[0].ranges.items()
    }
    # The audit of the whole topic has remembered its last parts only, which came as far as the first audit.
    whole = [one for one in past_audits(matrix.facts, name, 100) if one.audit_id.startswith(reports[1].audit_id)]
    assert sorted(str(one.end.task) for one in whole) == sorted(reports[0].ranges)
