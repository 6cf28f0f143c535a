"""Repairs of changelogs on a real broker: records of a foreign producer are undone, and lost changelogs are written again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import Producer
from tests.integration.instance.test_topic_identity import delete, lose_the_disk, make_again, seen
from tests.integration.operations.change.test_reset import reset_of
from tests.integration.operations.change.test_upgrade import description
from tests.integration.restore.test_restore_run import counts_of
from tests.integration.standby.test_standby_description import standing_by
from tests.support.changes import ChangingApp, advised
from tests.support.counting import NO_PROBE, PARTITIONS, CountingApp, Crash, committed, crash_at
from tests.support.purging import purge
from tests.support.truth.topics import read_all
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.commit.record import CommitKind
from tidemark.errors import PreflightFailed, StartRefused
from tidemark.kafka.cluster import topic_ids
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TopicPartition
from tidemark.operations import copy_sources
from tidemark.operations.change.current_state import read_application_state
from tidemark.operations.change.repair import Repair
from tidemark.operations.change.repaired_stores import repaired_ms
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.operations.clients import Clients
from tidemark.operations.drill_history.history import drill_history
from tidemark.processes import wait_until
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.registry.reader import resolved_plan
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import project_root
from tidemark.standby.copies import StandbyCopies
from tidemark.topology.builder import Topology
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.usefixtures("known_at_once")]
YES = lambda _plan: True  # noqa: E731


@pytest.fixture
def app(settings, admin, unique, said):
    """Create an application that has counted 1000 records of 200 keys and is stopped."""
    made = ChangingApp(settings, admin, unique("repair"))
    made.said = said
    made.feed(1000)
    made.run()
    assert made.counts() == made.expected
    return made


def changelog_of(app):
    return f"{app.name}-n-changelog"


def repair_of(app, stores=(), source=None, probe=NO_PROBE):
    app.leave_group()
    return Repair(
        app.plan, app.settings, wall_clock_ms, stores, source, LoggingRestoreListener(), probe, app.said.append
    )


@pytest.fixture
def said():
    """The lines that a repair reported."""
    return []


def records(app):
    """The changelog's, by key: partition and last value."""
    rows = read_all(app.settings.bootstrap_servers, [changelog_of(app)])
    return {row.key: (number, row.value) for (_, number), found in rows.items() for row in found}


def strange(app, *written):
    """Write records as a foreign producer does: partition, key, value."""
    producer = Producer({"bootstrap.servers": app.settings.bootstrap_servers})
    for partition, key, value in written:
        producer.produce(changelog_of(app), value, key, partition=partition)
    assert producer.flush(60) == 0


def poison(app, chance):
    """Keys altered, deleted, added and moved, as drawn; how many differ by that."""
    known = records(app)
    keys = sorted(known)
    altered, deleted = chance.sample(keys, chance.randint(1, 20)), chance.sample(keys, chance.randint(1, 20))
    added = [f"x{number}".encode() for number in range(chance.randint(1, 20))]
    value = known[keys[0]][1]
    wrong = [(known[key][0], key, bytes(len(value))) for key in altered]
    wrong += [(known[key][0], key, None) for key in deleted]
    wrong += [(chance.randrange(PARTITIONS), key, value) for key in added]
    chance.shuffle(wrong)
    strange(app, *wrong)
    return len({(partition, key) for partition, key, _ in wrong})


def keeps_counting_after_a_lost_disk(app):
    app.feed(100)
    app.run()
    assert app.counts() == app.expected
    lose_the_disk(app)
    app.run()
    assert app.counts() == app.expected


def not_asked(plan):
    raise AssertionError(f"asked to approve {plan}")


@pytest.mark.parametrize("seed", range(3))
def test_should_undo_what_a_foreign_producer_wrote(app, seed):
    differing, before = poison(app, random.Random(seed)), committed(app)
    work, asked = repair_of(app, ["n"]), []
    shown = work.show().stores[0]
    assert (shown.is_new, {task.source for task in shown.tasks}) == (None, {SourceOfState.LOCAL})
    assert work.run(lambda plan: asked.append(plan) or True)
    (store,) = asked[0].stores
    assert (store.differing, store.is_new) == (differing, False)
    assert committed(app) == before
    assert {record.kind for record in app.last_records().values()} == {CommitKind.REPAIR}
    assert {record.appended for record in app.last_records().values()} == {(changelog_of(app),)}
    assert resolved_plan(app.plan, app.settings, app.admin).stores[0].generation == 0
    noted = repaired_ms(app.settings.state_dir, app.name)
    assert set(noted) == {(task, "n") for task in app.last_records()}
    assert work.run(not_asked), "a second run finds that nothing differs"
    assert all(at_ms > noted[name] for name, at_ms in repaired_ms(app.settings.state_dir, app.name).items())
    lose_the_disk(app)
    app.run()
    assert app.counts() == app.expected
    keeps_counting_after_a_lost_disk(app)


def test_should_continue_from_the_local_store_and_the_repaired_tail(app):
    """The start after a repair reads what the foreign producer wrote and what the repair wrote after it."""
    poison(app, random.Random(7))
    assert repair_of(app, ["n"]).run(YES)
    keeps_counting_after_a_lost_disk(app)


def test_should_write_to_a_new_changelog_when_the_old_one_cannot_be_read(app):
    key, (partition, _) = next(iter(records(app).items()))
    strange(app, (partition, key, b"no aggregate"))
    asked = []
    assert repair_of(app, ["n"]).run(lambda plan: asked.append(plan) or True)
    (store,) = asked[0].stores
    assert store.is_new
    assert {record.appended for record in app.last_records().values()} == {()}
    assert "holds values of 12 bytes" in store.damaged
    assert any("earlier savepoints cannot be used" in warning for warning in asked[0].warnings)
    keeps_counting_after_a_lost_disk(app)


@pytest.mark.parametrize("fault", ["deleted", "made again", "truncated", "lost its beginning"])
def test_should_write_an_up_to_date_store_to_a_new_changelog_when_the_old_one_is_lost(app, fault):
    app.feed(500)
    app.run()
    topic, before = changelog_of(app), committed(app)
    if fault == "deleted":
        delete(app, topic)
    elif fault == "made again":
        make_again(app, topic, **{"cleanup.policy": "compact"})
    else:
        low = {"truncated": -1, "lost its beginning": 5}[fault]
        purge(app.admin, app.settings, {TopicPartition(topic, 0): low})
    work = repair_of(app)
    assert work.show().stores[0].is_new
    assert work.run(YES)
    assert committed(app) == before
    assert resolved_plan(app.plan, app.settings, app.admin).stores[0].generation == 1
    assert work.run(not_asked), "a second run finds that it is done"
    keeps_counting_after_a_lost_disk(app)
    found = seen(app)
    assert found["topic identities"].verdict is Verdict.OK
    with pytest.raises(StartRefused, match=r"name the stores to compare with --store: n"):
        repair_of(app).run(not_asked)


def test_should_repair_from_a_standby_when_everything_else_is_lost(app, monkeypatch):
    # A busy machine may need more than five seconds until the standby hands its copy over.
    monkeypatch.setattr(copy_sources, "StandbyCopies", partial(StandbyCopies, answer_s=60.0))
    places = [TopicPartition(changelog_of(app), number) for number in range(PARTITIONS)]
    tasks = list(app.last_records())

    def has_read():
        ends = EndOffsets(app.admin, 60).of(places)
        copies = StandbyCopies(app.settings.state_dir, app.name).find(tasks)
        return all(
            copies[task].get("n") and copies[task]["n"][0].checkpoint.changelog_offset >= ends[places[task.partition]]
            for task in tasks
        )

    with standing_by(app):
        assert wait_until(has_read, 60)
        delete(app, changelog_of(app))
        lose_the_disk(app)
        asked = []
        assert repair_of(app).run(lambda plan: asked.append(plan) or True)
    assert {task.source for task in asked[0].stores[0].tasks} == {SourceOfState.STANDBY}
    app.run()
    assert app.counts() == app.expected
    keeps_counting_after_a_lost_disk(app)


def test_should_name_the_repair_when_a_start_is_refused(app):
    delete(app, changelog_of(app))
    with pytest.raises(StartRefused, match="tidemark repair run NAME"):
        app.run()
    lose_the_disk(app)
    with pytest.raises(StartRefused, match="--from source` computes it again"):
        repair_of(app).run(not_asked)


def test_should_ask_once_which_topics_are_lost_when_it_reads_the_state(app, monkeypatch):
    delete(app, changelog_of(app))
    asked = []
    monkeypatch.setattr(
        "tidemark.operations.context.topic_ids", lambda *given: asked.append(given) or topic_ids(*given)
    )
    state = read_application_state(Clients.of(app.settings, wall_clock_ms), app.plan, may_be_gone=True)
    assert {topic for found in state.found.values() for topic in found.facts.lost} == {changelog_of(app)}
    assert len(asked) == 1, "each time takes two seconds where a topic is gone"


def test_should_repair_only_the_changelog_and_leave_a_lost_source_to_a_reset(app):
    source = f"{app.name}-in"
    known = description(app).topic_ids
    make_again(app, source)
    delete(app, changelog_of(app))
    before, app.expected = app.expected, Counter()
    app.feed(2000)
    with pytest.raises(StartRefused, match="tidemark repair run NAME"):
        reset_of(app, ResetTo.EARLIEST, StateAfter.KEEP).run(not_asked)
    assert repair_of(app).run(YES)
    assert description(app).topic_ids[source] == known[source]
    with pytest.raises(StartRefused, match=f"source topic {source} was deleted and created again"):
        app.run()
    assert reset_of(app, ResetTo.EARLIEST, StateAfter.KEEP).run(YES)
    app.run()
    assert app.counts() == before + app.expected


@pytest.mark.parametrize(
    ("stores", "source", "why"),
    [
        (["m"], None, "there is no store m; the topology has n"),
        ([], None, "no changelog of .* is damaged, and no drill has found one that differs"),
        (["n"], SourceOfState.STANDBY, "no standby copy of it here is up to date with the last commit"),
    ],
)
def test_should_refuse_what_cannot_be_repaired(app, stores, source, why):
    before = description(app)
    for attempt in (repair_of(app, stores, source).show, lambda: repair_of(app, stores, source).run(not_asked)):
        with pytest.raises(StartRefused, match=why):
            attempt()
    assert description(app) == before


def filtered(app):
    """The application's topology, but with a filter."""
    topology = Topology(app.name, version="1")
    source = topology.stream(f"{app.name}-in", schema="id STRING, v BIGINT", key="id")
    source.filter("v > 3").group_by_key().aggregate(store="n", n="count(*)").to(f"{app.name}-out")
    return topology


def test_should_not_compute_again_what_another_topology_has_computed(app):
    app.become(filtered(app))
    with pytest.raises(StartRefused, match="the topology has changed how it reads, selects or computes"):
        repair_of(app, ["n"], SourceOfState.SOURCE).show()


@pytest.mark.parametrize("is_recomputable", [True, False])
def test_should_advise_to_compute_a_store_again_only_if_that_is_possible(app, is_recomputable):
    if not is_recomputable:
        app.become(filtered(app))
    delete(app, changelog_of(app))
    lose_the_disk(app)
    with pytest.raises(StartRefused, match="tidemark reset run NAME --to earliest --state empty") as refused:
        repair_of(app).show()
    assert ("--from source" in str(refused.value)) is is_recomputable


def test_should_not_compute_again_what_a_reset_has_left_out(app):
    assert repair_of(app, ["n"], SourceOfState.SOURCE).show().stores
    app.feed(100)
    assert reset_of(app, ResetTo.LATEST, StateAfter.KEEP).run(YES)
    app.run()
    with pytest.raises(StartRefused, match="a reset that kept the state has skipped records"):
        repair_of(app, ["n"], SourceOfState.SOURCE).show()


def test_should_not_repair_from_a_store_that_the_last_drill_suspects(app, monkeypatch):
    differing = poison(app, random.Random(11))

    class Suspect:
        is_suspect = True
        summary = "is suspected: the drill of today found 9 keys that differ between it and its changelog"

    def suspected(settings, plan):
        found = drill_history(settings, plan)
        assert found.verdicts == {}
        return replace(found, verdicts={(task, "n"): Suspect() for task in app.last_records()})

    monkeypatch.setattr("tidemark.operations.change.repair.drill_history", suspected)
    with pytest.raises(
        StartRefused, match=r"the drill of today found 9 keys .*--store n --from source` computes it again"
    ):
        repair_of(app).run(not_asked)
    asked = []
    assert repair_of(app, source=SourceOfState.LOCAL).run(lambda plan: asked.append(plan) or True)
    assert asked[0].stores[0].differing == differing
    lose_the_disk(app)
    app.run()
    assert app.counts() == app.expected


def test_should_notice_a_program_that_still_writes_to_the_changelog(app):
    poison(app, random.Random(5))

    def write_again(point):
        if point == "switch-committed":
            strange(app, (0, b"x-later", next(iter(records(app).values()))[1]))

    message = r"differs from its changelog in 1 keys.*another program writes to"
    with pytest.raises(PreflightFailed, match=message) as failed:
        repair_of(app, ["n"], probe=write_again).run(YES)
    assert failed.value.records.startswith(f"{b'x-later'.hex()}: changelog ")
    assert b"x-later".hex() not in str(failed.value)
    assert repair_of(app, ["n"]).run(YES)
    lose_the_disk(app)
    app.run()
    assert app.counts() == app.expected


def test_should_change_nothing_before_its_commit(app):
    poison(app, random.Random(3))
    before, offsets = description(app), committed(app)
    for point in ("repair-built", "switch-before-commit"):
        with pytest.raises(Crash):
            repair_of(app, ["n"], probe=crash_at(point)).run(YES)
        assert (description(app), committed(app)) == (before, offsets)
        assert CommitKind.REPAIR not in {record.kind for record in app.last_records().values()}
    assert not repair_of(app, ["n"]).run(lambda _: False)
    with pytest.raises(Crash):
        repair_of(app, ["n"], probe=crash_at("switch-committed")).run(YES)
    assert repair_of(app, ["n"]).run(not_asked)
    keeps_counting_after_a_lost_disk(app)


@pytest.mark.spark
def test_should_recompute_a_store_when_no_copy_is_left(settings, admin, unique, spark_jars, said):
    app = CountingApp(settings, admin, unique("again"))
    app.said = said
    app.feed(500)
    app.run()
    delete(app, changelog_of(app))
    lose_the_disk(app)
    asked = []
    assert repair_of(app, source=SourceOfState.SOURCE).run(lambda plan: asked.append(plan) or True)
    assert {task.source for task in asked[0].stores[0].tasks} == {SourceOfState.SOURCE}
    app.run()
    assert counts_of(app) == app.expected
    lose_the_disk(app)
    app.feed(100)
    app.run()
    assert counts_of(app) == app.expected


def test_should_take_effect_as_a_whole_or_not_at_all_wherever_the_command_is_killed(app, tmp_path, monkeypatch):
    """Kills the real command with SIGKILL at every failpoint."""
    name = app.for_commands(tmp_path, monkeypatch)
    (tmp_path / f"{name}.py").write_text(
        f"from tests.support.changes import version_one\ndef topology():\n    return version_one({app.name!r})\n"
    )
    arm = tmp_path / "arm.json"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(project_root() / "include"), str(project_root())]),
        "TIDEMARK_TOPOLOGY_PATH": str(tmp_path),
        "TIDEMARK_PROBE": "tests.system.crash.probe:kill",
        "TEST_CRASH_ARM": str(arm),
    }
    delete(app, changelog_of(app))
    command = [sys.executable, "-m", "tidemark.cli.main", "repair", "run", name, "--yes"]
    for point in ("topics-made", "copied", "switch-before-commit", "switch-committed"):
        arm.write_text(json.dumps({"point": point, "skip": 0, "signal": "SIGKILL"}))
        killed = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "are repaired" in done.stdout
    keeps_counting_after_a_lost_disk(app)


def test_should_show_the_plan_and_then_repair_by_command(app, tmp_path, monkeypatch):
    name = app.for_commands(tmp_path, monkeypatch)
    (tmp_path / f"{name}.py").write_text(
        f"from tests.support.changes import version_one\ndef topology():\n    return version_one({app.name!r})\n"
    )

    def command(verb, *options):
        return CliRunner().invoke(build(), ["repair", verb, name, *options])

    delete(app, changelog_of(app))
    before = description(app)
    shown = command("plan", "--store", "n")
    assert shown.exit_code == 0, shown.output
    assert "nothing was compared or changed" in shown.stdout
    assert "was deleted" in shown.stdout.replace("\n", " ")
    assert description(app) == before
    assert command("plan", "--yes").exit_code != 0
    assert command("plan", "--from", "changelog").exit_code != 0
    done = CliRunner().invoke(build(), [*advised(shown.stdout), "--yes"])
    assert done.exit_code == 0, done.output
    assert description(app) != before
    shutil.rmtree(app.settings.var_dir, ignore_errors=True)
    keeps_counting_after_a_lost_disk(app)
