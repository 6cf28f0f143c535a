"""The audit's DAG, run by Airflow with the real Spark job: its task ends as the verdicts say, and writes its reports."""

from __future__ import annotations

import json

import pytest
from tests.support.airflow.operations import Operations
from tests.support.audit.application import PaymentsApp
from tests.support.audit.faults import FAULTS

from tidemark.audit.table import audited_until
from tidemark.checks.verdict_table import past_verdicts
from tidemark.database import FactsDatabase
from tidemark.names import TaskId
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.airflow, pytest.mark.timeout(580)]


def test_an_audit_should_fail_its_task_and_keep_what_it_found(operations: Operations, admin, unique) -> None:
    app = PaymentsApp(operations.settings, admin, unique("paid"))
    next(fault for fault in FAULTS if fault.name == "a wrong count in an output").plant(app)
    module = app.name.replace("-", "_")
    (operations.folder / f"{module}.py").write_text(
        f"from tests.support.audit.application import payments\n\n\ndef topology():\n    return payments({app.name!r})\n"
    )
    ended, log = operations.airflow.run("exactly_once_audit", {"topologies": [module], "batches": 100})
    assert ended["tasks"] == {"topologies": "success", "audit[0]": "failed"}, log[-3000:]
    facts = FactsDatabase(operations.settings)
    verdicts = {row.finding.subject: row.finding for row in past_verdicts(facts, app.name, "audit")}
    assert verdicts["every_update_has_its_value"].verdict is Verdict.FAILED
    assert verdicts["outputs_are_not_lost"].verdict is Verdict.OK
    assert audited_until(facts, app.name).keys() == {TaskId(0, 0), TaskId(0, 1)}
    facts.close()
    folder = operations.settings.var_dir / "audit" / app.name
    (quarantine,) = (folder / "quarantine").glob("*.jsonl")
    rows = [json.loads(line) for line in quarantine.read_text().splitlines()]
    wrong = [row for row in rows if row["expectation"] == "every_update_has_its_value"]
    assert [(row["topic"], row["found"] != row["expected"]) for row in wrong] == [(f"{app.name}-minutes", True)]
    assert wrong[0]["offset"] >= 0
    assert "every_update_has_its_value" in (folder / "pages" / "index.html").read_text()
    assert (folder / "data_docs" / "index.html").exists()
    assert not [path for path in (folder / "work").glob("*") if path.is_dir()]
