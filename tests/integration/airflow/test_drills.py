"""The verdicts of `restore_drill` and `drill_age_check` on an application that cannot have passed a drill."""

from __future__ import annotations

import threading

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from tests.support.counting import PARTITIONS, CountingApp
from tests.support.purging import purge
from tests.system.drill.running import context_of, running

from tidemark.checks.verdict_table import past_verdicts
from tidemark.database import FactsDatabase
from tidemark.errors import PreflightFailed
from tidemark.names import TopicPartition
from tidemark.verdict import Verdict
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


def no_figures(_figures):
    raise AssertionError("nothing was drilled")


@pytest.fixture
def app(settings, admin, unique):
    return CountingApp(settings, admin, unique("undrilled"))


def test_should_skip_an_application_that_has_never_run_and_judge_one_that_has_by_its_drills(app, tmp_path, monkeypatch):
    module = app.for_commands(tmp_path, monkeypatch)
    with pytest.raises(AirflowSkipException, match="not enough evidence"):
        drill_and_conclude(module, 0, 1.0, no_figures)
    (kept,) = past_verdicts(FactsDatabase(app.settings), app.name, "restore_drill")
    (young,) = judge_age(module, 8)
    for finding in (kept.finding, young):
        assert (finding.subject, finding.verdict) == (app.name, Verdict.NOT_ENOUGH_EVIDENCE)
        assert "has never run" in finding.message
    app.feed(10)
    app.run()
    with pytest.raises(PreflightFailed, match="no instance of"):
        drill_and_conclude(module, 0, 1.0, no_figures)
    (old,) = judge_age(module, 8)
    assert (old.verdict, "no drill has ever passed" in old.message) == (Verdict.FAILED, True)


def test_should_skip_an_application_when_no_savepoint_could_hold_its_stores(app, tmp_path, monkeypatch):
    module = app.for_commands(tmp_path, monkeypatch)
    (tmp_path / f"{module}.py").write_text(IN_MEMORY.format(name=app.name))
    with pytest.raises(AirflowSkipException, match="not enough evidence"):
        drill_and_conclude(module, 0, 1.0, no_figures)
    (found,) = judge_age(module, 8)
    assert found.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert "(n: in memory): there is nothing to rebuild" in found.message


def test_should_push_how_many_keys_were_compared_of_each_store_even_when_none_were(app, tmp_path, monkeypatch):
    module = app.for_commands(tmp_path, monkeypatch)
    app.feed(50, keys=20)
    app.run()
    pushed = []
    with running(app, threading.Event()):
        assert drill_and_conclude(module, 0, 1.0, pushed.append) == "ok"
        assert [finding.verdict for finding in judge_age(module, 8)] == [Verdict.OK]
        places = [TopicPartition(f"{app.name}-n-changelog", number) for number in range(PARTITIONS)]
        purge(app.admin, app.settings, context_of(app).clients.ends.of(places))
        with pytest.raises(AirflowSkipException, match="not enough evidence"):
            drill_and_conclude(module, 0, 1.0, pushed.append)
    healthy, purged = ([one for one in figures if one["by"] == "whole changelog"] for figures in pushed)
    assert (sum(one["compared"] for one in healthy), {one["verdict"] for one in healthy}) == (20, {"ok"})
    assert [one["compared"] for one in purged] == [0, 0]
    assert sum(one["left_out"] for one in purged) == 20
    assert {(one["store"], one["differing"], one["verdict"]) for one in purged} == {("n", 0, "not enough evidence")}
