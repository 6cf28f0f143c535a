"""What the tasks of `restore_drill` and `drill_age_check` say of an application that cannot have passed a drill."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from tests.restore.counting import CountingApp

from tidemark.checks.verdict import Verdict
from tidemark.errors import PreflightFailed
from tidemark.facts.database import FactsDatabase
from tidemark.facts.verdicts import past_verdicts
from tidemark_airflow.drills import drill_and_conclude, judge_age

pytestmark = pytest.mark.broker

IN_MEMORY = """
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized


def topology():
    topology = Topology({name!r})
    source = topology.stream("{name}-in", schema="id STRING")
    source.group_by_key().count(name="n", store=Materialized("n", in_memory=True)).to("{name}-out")
    return topology
"""


@pytest.fixture
def app(settings, admin, unique):
    return CountingApp(settings, admin, unique("undrilled"))


def test_should_skip_an_application_that_has_never_run_and_go_by_the_drills_of_one_that_has(app, tmp_path, monkeypatch):
    module = app.for_commands(tmp_path, monkeypatch)
    with pytest.raises(AirflowSkipException, match="not enough evidence"):
        drill_and_conclude(module, 0, 1.0)
    (kept,) = past_verdicts(FactsDatabase(app.settings), app.name, "restore_drill")
    (young,) = judge_age(module, 8)
    for finding in (kept.finding, young):
        assert (finding.subject, finding.verdict) == (app.name, Verdict.NOT_ENOUGH_EVIDENCE)
        assert "has never run" in finding.message
    app.feed(10)
    app.run()
    with pytest.raises(PreflightFailed, match="no instance of"):
        drill_and_conclude(module, 0, 1.0)
    (old,) = judge_age(module, 8)
    assert (old.verdict, "no drill has ever passed" in old.message) == (Verdict.FAILED, True)


def test_should_skip_an_application_that_keeps_nothing_a_savepoint_holds(app, tmp_path, monkeypatch):
    module = app.for_commands(tmp_path, monkeypatch)
    (tmp_path / f"{module}.py").write_text(IN_MEMORY.format(name=app.name))
    with pytest.raises(AirflowSkipException, match="not enough evidence"):
        drill_and_conclude(module, 0, 1.0)
    (found,) = judge_age(module, 8)
    assert found.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert "(n: in memory): there is nothing to rebuild" in found.message
