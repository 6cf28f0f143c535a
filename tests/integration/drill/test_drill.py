"""Drills of a running application on a real broker: a healthy one passes, and a tampered changelog is found."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from functools import partial

import pytest
from tests.support.counting import PARTITIONS, CountingApp
from tests.support.purging import purge
from tests.system.drill.running import BUSY_KEYS, batches, context_of, running, tamper
from typer.testing import CliRunner

from tidemark.checks.verdict_table import past_verdicts
from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.drill.drill import Drill, DrillOptions
from tidemark.errors import PreflightFailed, TaskLocked
from tidemark.folder_lock import FolderLock
from tidemark.names import DRILLS_FOLDER, TopicPartition
from tidemark.operations.context import OperationContext
from tidemark.operations.drill_history.report import RebuildMethod
from tidemark.operations.drill_history.table import last_passed, past_drills
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.processes import wait_until
from tidemark.restore.bounds import Figures
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]

KEYS = 200


@pytest.fixture
def app(settings, admin, unique):
    """Create a stopped application with two partitions and 200 keys, in which everything is committed."""
    made = CountingApp(settings, admin, unique("counting"))
    made.settings = made.settings.model_copy(update={"commit_interval_ms": 100})
    made.feed(2000, keys=KEYS)
    made.run()
    return made


def drill(app, *, batches=3, timeout_s=150.0, said=None, listener=None):
    options = DrillOptions(batches, timeout_s)
    report = said if callable(said) else (said if said is not None else []).append
    return Drill(context_of(app), options, listener or LoggingRestoreListener(), report).run()


def in_memory(name: str) -> Topology:
    topology = Topology(name)
    source = topology.stream(f"{name}-in", schema="id STRING")
    source.group_by_key().count(name="n", store=Materialized("n", in_memory=True)).to(f"{name}-out")
    return topology


def left_behind(app):
    folder = app.settings.state_dir / DRILLS_FOLDER / app.name
    return [path for path in folder.iterdir() if path.is_dir()]


def test_should_pass_a_healthy_application_by_every_rebuild_method_and_leave_nothing(app):
    (app.settings.state_dir / DRILLS_FOLDER / app.name / "left-by-a-killed-drill").mkdir(parents=True)
    said: list[str] = []
    with running(app):
        report = drill(app, said=said)
        assert report.verdict is Verdict.OK, report.findings
        assert any("no older savepoint" in line for line in said)
        # The second drill finds those that the first one took.
        again = drill(app, said=said[:0])
    assert again.verdict is Verdict.OK, again.findings
    for found in (report, again):
        assert {store.way for store in found.stores} == set(RebuildMethod)
        for way in RebuildMethod:
            stores = [store for store in found.stores if store.way is way]
            assert sorted((store.task, store.store) for store in stores) == [("0_0", "n"), ("0_1", "n")]
            assert sum(store.keys for store in stores) == KEYS
            assert found.way(way).rto_s > 0
        assert found.followed_batches >= 3
        assert len(found.savepoints) == 2
    whole, tail = (
        sum(s.records for s in again.stores if s.way is way and s.seconds > 0)
        for way in (RebuildMethod.CHANGELOG, RebuildMethod.SAVEPOINT)
    )
    assert 0 < tail < whole
    assert sum(s.records for s in again.stores if s.way is RebuildMethod.FOLLOWED) > 0
    assert left_behind(app) == []


def test_should_name_every_key_that_a_foreign_producer_altered_deleted_or_added(app):
    with running(app):
        tamper(app, {"k00150": 999, "k00160": None, "stranger": 7}, partial(batches, app))
        report = drill(app)
    assert report.verdict is Verdict.FAILED
    by_changelog = [store for store in report.stores if store.way is RebuildMethod.CHANGELOG]
    assert [sum(getattr(s, kind) for s in by_changelog) for kind in ("altered", "missing", "extra")] == [1, 1, 1]
    summary = "; ".join(store.message for store in by_changelog if store.verdict is Verdict.FAILED)
    expected = app.expected["k00150"], app.expected["k00160"]
    assert f"altered k00150: savepoint {{'n': {expected[0]}}}, rebuilt {{'n': 999}}" in summary
    assert f"missing k00160: savepoint {{'n': {expected[1]}}}, rebuilt nothing" in summary
    assert "extra stranger: savepoint nothing, rebuilt {'n': 7}" in summary
    # Both savepoints are right, and the tail between them holds nothing of the stranger.
    assert {s.verdict for s in report.stores if s.way is RebuildMethod.SAVEPOINT} == {Verdict.OK}
    assert left_behind(app) == []


def test_should_notice_what_a_foreign_producer_writes_while_the_rebuilt_tasks_follow(app):
    def while_following(line):
        if line.startswith("following"):
            tamper(app, {"k00150": 999}, partial(batches, app))

    with running(app):
        report = drill(app, said=while_following)
    verdicts = {way: {s.verdict for s in report.stores if s.way is way} for way in RebuildMethod}
    assert verdicts[RebuildMethod.CHANGELOG] == {Verdict.OK}
    assert Verdict.FAILED in verdicts[RebuildMethod.FOLLOWED]
    assert any(
        "altered k00150" in summary for s in report.stores if s.way is RebuildMethod.FOLLOWED for summary in s.first
    )


def test_should_not_pass_when_there_is_no_input_to_follow_or_the_compaction_lag_is_too_short(app):
    fed = threading.Event()
    with running(app, fed):
        report = drill(app, batches=1, timeout_s=0.5)
        assert report.verdict is Verdict.NOT_ENOUGH_EVIDENCE
        assert {store.verdict for store in report.stores} == {Verdict.OK}
        assert report.followed_batches == 0
        context = context_of(app)
        topic = f"{app.name}-n-changelog"
        change = TopicChange(topic, "min.compaction.lag.ms", "", "1")
        apply_changes([change], app.settings, context.clients.admin)
        report = drill(app, batches=0)
    assert report.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert {store.verdict for store in report.stores} == {Verdict.NOT_ENOUGH_EVIDENCE}
    assert all(f"min.compaction.lag.ms of {topic} is 1ms" in store.message for store in report.stores)


def test_should_not_pass_when_the_changelogs_were_purged_and_report_how_much_was_compared(app):
    fed = threading.Event()
    with running(app, fed):
        context = context_of(app)
        places = [TopicPartition(f"{app.name}-n-changelog", number) for number in range(PARTITIONS)]
        purge(app.admin, app.settings, context.clients.ends.of(places))
        nothing = drill(app, batches=0)
        # A few keys are written since, so they are compared.
        fed.set()
        before = batches(app)
        assert wait_until(lambda: all(now > then for now, then in zip(batches(app), before, strict=True)), 60)
        some = drill(app, batches=0)
    assert nothing.verdict is Verdict.NOT_ENOUGH_EVIDENCE, nothing.findings
    assert nothing.figures(RebuildMethod.CHANGELOG) == Figures(0, KEYS, 0, KEYS, is_whole=False)
    assert some.verdict is Verdict.NOT_ENOUGH_EVIDENCE, some.findings
    figures = some.figures(RebuildMethod.CHANGELOG)
    assert 0 < figures.compared <= BUSY_KEYS
    assert (figures.compared + figures.left_out, figures.differing) == (KEYS, 0)
    assert any(f"{app.name}-n-changelog has lost its beginning" in store.message for store in some.stores)
    # A savepoint holds what the changelog has lost.
    assert some.figures(RebuildMethod.SAVEPOINT).compared == KEYS
    assert {store.verdict for store in some.stores if store.way is RebuildMethod.SAVEPOINT} == {Verdict.OK}


def test_should_not_pass_when_the_application_holds_no_key(settings, admin, unique):
    app = CountingApp(settings, admin, unique("empty"))
    app.run()
    with running(app, threading.Event()):
        report = drill(app, batches=0)
    assert report.verdict is Verdict.NOT_ENOUGH_EVIDENCE, report.findings
    assert left_behind(app) == []


class _Broken(LoggingRestoreListener):
    def on_restore_start(self, progress):
        raise OSError("no more")


def test_should_leave_nothing_when_it_fails_and_refuse_what_cannot_be_drilled(app, monkeypatch):
    with pytest.raises(PreflightFailed, match=r"no instance of .* is running on this machine"):
        drill(app)
    with running(app):
        with pytest.raises(OSError, match="no more"):
            drill(app, listener=_Broken())
        assert left_behind(app) == []
        with (
            FolderLock(app.settings.state_dir / DRILLS_FOLDER / app.name),
            pytest.raises(TaskLocked, match="another drill"),
        ):
            drill(app)
        other = Drill(context_of(app), DrillOptions(), LoggingRestoreListener(), [].append)
        another = replace(app.plan, version="another")
        context = OperationContext.exactly(another, app.settings, [], wall_clock_ms, None)
        with pytest.raises(PreflightFailed, match="runs version 1 of the topology, but this is version another"):
            replace(other, context=context).run()
        full = shutil.disk_usage(app.settings.state_dir)._replace(free=1)
        monkeypatch.setattr("tidemark.drill.drill.shutil.disk_usage", lambda _folder: full)
        with pytest.raises(PreflightFailed, match="1 are free"):
            drill(app)
    assert left_behind(app) == []


def test_should_drill_from_the_command_line_and_keep_a_history(app, tmp_path, monkeypatch):
    name = app.for_commands(tmp_path, monkeypatch)
    commands, runner = build(), CliRunner()
    with running(app):
        done = runner.invoke(commands, ["drill", "run", name, "--json", "--follow-batches", "1"])
        assert done.exit_code == 0, done.output
        tamper(app, {"k00150": 999}, partial(batches, app))
        failed = runner.invoke(commands, ["drill", "run", name, "--follow-batches", "1"])
    assert failed.exit_code == 1, failed.output
    assert "altered k00150" in " ".join(failed.output.split())
    report = json.loads(done.stdout)
    assert report["verdict"] == "ok"
    facts = FactsDatabase(app.settings)
    newest, first = past_drills(facts, app.name)
    assert (newest.verdict, first.verdict) == (Verdict.FAILED, Verdict.OK)
    assert first.report == report
    assert (first.keys, last_passed(facts, app.name)) == (KEYS, first)
    assert {past.check for past in past_verdicts(facts, app.name)} == {"restore_drill"}
    facts.close()
    shown = runner.invoke(commands, ["drill", "history", name])
    assert newest.drill_id[:8] in shown.output


def test_should_find_nothing_to_rebuild_when_no_savepoint_holds_a_store(settings, admin, unique):
    app = CountingApp(settings, admin, unique("fleeting"), topology=in_memory)
    app.feed(20)
    with running(app, threading.Event()):
        report = drill(app)
    assert report.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert [finding.subject for finding in report.findings] == [app.name]
    assert (report.savepoints, report.not_compared) == ((), ("n: in memory",))
    assert left_behind(app) == []
