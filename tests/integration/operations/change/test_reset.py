"""Resets of offsets on a real broker: everything is counted again on an empty or the old state, or left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import NewPartitions
from tests.integration.operations.change.test_upgrade import description
from tests.support.changes import BesideATable, ChangingApp, CountingAndSumming, advised
from tests.support.counting import NO_PROBE, PARTITIONS, Crash, come_to, committed, crash_at
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.commit.record import CommitKind
from tidemark.errors import ApplicationHeld, StartRefused
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import TopicSpec, create_topics, partition_counts
from tidemark.names import TopicPartition
from tidemark.operations.change.rescale import Rescale
from tidemark.operations.change.reset import Reset
from tidemark.operations.change.reset_plan import parse_offsets
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.processes import wait_until
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import project_root
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

YES = lambda _plan: True  # noqa: E731


broker = pytest.mark.broker


@pytest.fixture
def app(settings, admin, unique):
    """Create an application that has counted 1000 records of 200 keys and is stopped."""
    made = ChangingApp(settings, admin, unique("reset"))
    made.feed(1000)
    made.run()
    return made


def reset_of(app, to, state, probe=NO_PROBE, given=None, at_ms=None):
    app.leave_group()
    return Reset(
        app.plan, app.settings, wall_clock_ms, to, state, given or {}, at_ms, LoggingRestoreListener(), probe, print
    )


def not_asked(plan):
    raise AssertionError(f"asked to approve {plan}")


@broker
def test_should_skip_nothing_that_came_after_a_reset_to_the_end_when_it_is_tried_again(app):
    app.feed(100)
    began_ms = wall_clock_ms()
    reset = replace(reset_of(app, ResetTo.LATEST, StateAfter.KEEP), since_ms=began_ms)
    assert reset.run(YES)
    ends = committed(app)
    app.feed(100)
    assert reset.run(not_asked)
    assert committed(app) == ends
    # One that is asked for later is another one.
    assert replace(reset, since_ms=wall_clock_ms()).run(YES)
    assert sum(committed(app)) > sum(ends)


@broker
def test_should_count_everything_again_when_reset_to_an_empty_state(app):
    made = reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY)
    plan = made.show()
    assert sum(source.again for source in plan.sources) >= 1000
    assert plan.emptied == ("n",)
    before = description(app)
    with pytest.raises(Crash):
        reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY, crash_at("switch-before-commit")).run(YES)
    with pytest.raises(Crash):
        reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY, crash_at("topics-made")).run(YES)
    assert description(app) == before
    assert made.run(YES)
    assert come_to(app, [0] * PARTITIONS)
    after = description(app)
    assert made.run(not_asked)
    assert (committed(app), description(app)) == ([0] * PARTITIONS, after), "done again"
    records = app.last_records().values()
    assert {record.kind for record in records} == {CommitKind.RESET}
    assert all(
        start > end == 0 for record in records for spans in record.sources.values() for start, end in spans.values()
    )
    app.feed(200)
    app.run()
    assert app.counts() == app.expected


def unlogged(name, *, in_memory=False, optimised=False):
    """Counts by key in a store without a changelog."""
    topology = Topology(name, optimised=optimised)
    source = topology.stream(f"{name}-in", schema="id STRING, v BIGINT", key="id")
    kept = Materialized("n", in_memory=in_memory, logging=False)
    source.group_by_key().aggregate(store=kept, n="count(*)").to(f"{name}-out")
    return topology


def unlogged_and_optimised(name):
    """Counts by key in memory and without a changelog, beside a table that its source topic keeps."""
    topology = unlogged(name, in_memory=True, optimised=True)
    topology.table(f"{name}-names", schema="name STRING", store="names")
    return topology


@broker
def test_should_find_its_commit_beside_stores_without_a_changelog_of_their_own(settings, admin, unique):
    app = ChangingApp(settings, admin, unique("reset"))
    app.source = BesideATable
    app.become(unlogged_and_optimised(app.name))
    create_topics(admin, [TopicSpec(f"{app.name}-names", PARTITIONS, {"cleanup.policy": "compact"})], app.settings)
    producer = Producer({"bootstrap.servers": app.settings.bootstrap_servers})
    for number in range(PARTITIONS):
        producer.produce(f"{app.name}-names", b'{"name": "a"}', b"k", partition=number)
    assert producer.flush(60) == 0
    app.feed(100)
    app.run()
    asked = []
    for state in (StateAfter.KEEP, StateAfter.EMPTY):
        made = reset_of(app, ResetTo.EARLIEST, state)
        assert made.run(lambda plan: asked.append(plan.state) or True)
        assert made.run(not_asked), "done again"
    assert asked == [StateAfter.KEEP, StateAfter.EMPTY], "the first one has kept stream time"


class OfGrownTopic(CountingAndSumming):
    """Ends when it has read two more partitions."""

    partitions = PARTITIONS + 2


@broker
def test_should_begin_again_with_a_grown_source_when_the_application_cannot_be_rescaled(settings, admin, unique):
    app = ChangingApp(settings, admin, unique("reset"))
    app.become(unlogged(app.name))
    app.feed(400)
    app.run()
    # A reset before the growth is not the one that accepts it.
    assert reset_of(app, ResetTo.LATEST, StateAfter.EMPTY).run(YES)
    topic, grown = f"{app.name}-in", OfGrownTopic.partitions
    app.admin.create_partitions([NewPartitions(topic, grown)])[topic].result()
    assert wait_until(lambda: partition_counts(app.admin, app.settings)[topic] == grown, 60)
    rescale = Rescale(app.plan, app.settings, wall_clock_ms, grown, LoggingRestoreListener(), NO_PROBE, print)
    with pytest.raises(StartRefused, match="`tidemark reset run NAME --to latest --state empty` begins again"):
        rescale.run(YES)
    # Their records of one key would be read by two tasks, or its state would be in another one.
    for to, state in ((ResetTo.EARLIEST, StateAfter.EMPTY), (ResetTo.LATEST, StateAfter.KEEP)):
        with pytest.raises(StartRefused, match=f"rescale run NAME --tasks {grown}"):
            reset_of(app, to, state).run(YES)
    reset = reset_of(app, ResetTo.LATEST, StateAfter.EMPTY)
    assert f"{topic}: got more partitions" in "; ".join(reset.show().warnings)
    assert reset.run(YES)
    assert reset.run(not_asked), "done again"
    assert description(app).partitions == {topic: grown}
    before = Counter(app.expected)
    app.feed(200)
    app.source = OfGrownTopic
    app.run()
    now, last = app.expected - before, app.last_outputs()
    assert {key: last[key]["n"] for key in now} == now


@broker
def test_should_refuse_a_grown_topic_that_is_the_changelog_of_its_table(settings, admin, unique):
    app = ChangingApp(settings, admin, unique("reset"))
    app.source = BesideATable
    app.become(unlogged_and_optimised(app.name))
    topic, grown = f"{app.name}-names", OfGrownTopic.partitions
    create_topics(admin, [TopicSpec(topic, PARTITIONS, {"cleanup.policy": "compact"})], app.settings)
    producer = Producer({"bootstrap.servers": app.settings.bootstrap_servers})
    for number in range(PARTITIONS):
        producer.produce(topic, b'{"name": "a"}', b"k", partition=number)
    assert producer.flush(60) == 0
    app.feed(100)
    app.run()
    app.admin.create_partitions([NewPartitions(topic, grown)])[topic].result()
    assert wait_until(lambda: partition_counts(app.admin, app.settings)[topic] == grown, 60)
    with pytest.raises(StartRefused, match="store names has its records from before as contents"):
        reset_of(app, ResetTo.LATEST, StateAfter.EMPTY).run(YES)


@broker
@pytest.mark.parametrize("to", [ResetTo.EARLIEST, ResetTo.LATEST])
def test_should_not_lose_a_store_without_a_changelog_by_a_reset_that_keeps_the_state(settings, admin, unique, to):
    app = ChangingApp(settings, admin, unique("reset"))
    app.become(unlogged(app.name))
    app.feed(100)
    app.run()
    before = app.counts()
    app.feed(100)
    made = reset_of(app, to, StateAfter.KEEP)
    for refused in (made.show, lambda: made.run(not_asked)):
        with pytest.raises(StartRefused, match="contents of: n; use --state empty"):
            refused()
    app.run()
    assert app.counts() == app.expected
    assert Counter(app.counts()).total() == Counter(before).total() + 100


@broker
def test_should_count_records_twice_when_they_are_read_again_on_top_of_the_state(app):
    before = Counter(app.expected)
    made = reset_of(app, ResetTo.EARLIEST, StateAfter.KEEP)
    assert made.run(YES)
    assert made.run(not_asked)
    app.feed(100)
    app.run()
    assert app.counts() == app.expected + before
    given = {TopicPartition(f"{app.name}-in", number): offset for number, offset in enumerate(committed(app))}
    with pytest.raises(StartRefused, match="nothing to reset"):
        reset_of(app, ResetTo.OFFSETS, StateAfter.KEEP, given=given).run(YES)
    assert reset_of(app, ResetTo.LATEST, StateAfter.KEEP).run(not_asked)
    assert committed(app) == list(given.values())


@broker
def test_should_leave_out_records_from_before_a_time(app):
    before = Counter(app.expected)
    app.feed(300)
    time.sleep(0.01)  # Record timestamps have milliseconds.
    at_ms = wall_clock_ms()
    app.feed(100)
    after = app.expected - before
    producer = Producer({"bootstrap.servers": app.settings.bootstrap_servers})
    assert producer.flush(60) == 0
    assert reset_of(app, ResetTo.TIME, StateAfter.KEEP, at_ms=at_ms).run(YES)
    app.run()
    counted = Counter(app.counts()) - before
    assert counted.total() == 100
    assert counted <= after


@broker
def test_should_continue_without_deleted_records(app):
    app.feed(300)
    ends = EndOffsets(app.admin, 60)
    places = [TopicPartition(f"{app.name}-in", number) for number in range(PARTITIONS)]
    cut = {place: end - 40 for place, end in ends.of(places).items()}
    records = [ClientPartition(place.topic, place.partition, offset) for place, offset in cut.items()]
    for deleted in app.admin.delete_records(records).values():
        deleted.result()
    before = Counter(app.counts())
    with pytest.raises(StartRefused, match="tidemark reset run NAME --to offsets --state keep --offset"):
        app.run()
    first = dict.fromkeys(places, 0)
    plan = reset_of(app, ResetTo.OFFSETS, StateAfter.KEEP, given=first).show()
    assert {source.partition: source.to_offset for source in plan.sources} == cut
    assert {parse_offsets([target]).popitem() for target in plan.targets} == set(first.items())
    assert f"{places[0]} begins at offset {cut[places[0]]}" in "; ".join(plan.warnings)
    assert reset_of(app, ResetTo.OFFSETS, StateAfter.KEEP, given=first).run(YES)
    assert come_to(app, list(cut.values()))
    app.run()
    assert (Counter(app.counts()) - before).total() == 40 * PARTITIONS


@broker
def test_should_move_to_given_offsets_by_command(app, tmp_path, monkeypatch):
    name = app.for_commands(tmp_path, monkeypatch)
    (tmp_path / f"{name}.py").write_text(
        f"from tests.support.changes import version_one\ndef topology():\n    return version_one({app.name!r})\n"
    )

    def command(verb, *options):
        return CliRunner().invoke(build(), ["reset", verb, name, *options])

    wanted = [f"--offset={app.name}-in:{number}=3" for number in range(PARTITIONS)]
    ends = committed(app)
    shown = command("plan", "--to", "offsets", "--state", "empty", *wanted)
    assert shown.exit_code == 0, shown.output
    assert "nothing was changed" in shown.stdout
    assert committed(app) == ends
    assert CliRunner().invoke(build(), [*advised(shown.stdout), "--yes"]).exit_code == 0
    assert come_to(app, [3] * PARTITIONS)
    for wrong in (
        ["--to", "offsets", "--state", "keep"],
        ["--to", "time", "--state", "keep"],
        ["--to", "earliest", "--state", "keep", "--time=-1h"],
        ["--to", "earliest"],
        ["--to", "earliest", "--state", "keep", "--yes"],
    ):
        assert command("plan", *wrong).exit_code != 0


@broker
def test_should_take_effect_as_a_whole_or_not_at_all_wherever_the_command_is_killed(app, tmp_path):
    """Kills the real command with SIGKILL at every failpoint; the next start finishes what a committed reset has left."""
    (tmp_path / "made_reset.py").write_text(
        f"from tests.support.changes import version_one\ndef topology():\n    return version_one({app.name!r})\n"
    )
    arm = tmp_path / "arm.json"
    environment = {
        **os.environ,
        **app.settings.as_environment(),
        "PYTHONPATH": os.pathsep.join([str(project_root() / "include"), str(project_root())]),
        "TIDEMARK_TOPOLOGY_PATH": str(tmp_path),
        "TIDEMARK_PROBE": "tests.system.crash.probe:kill",
        "TEST_CRASH_ARM": str(arm),
    }
    command = [sys.executable, "-m", "tidemark.cli.main", "reset", "run", "made_reset"]
    command += ["--to", "earliest", "--state", "empty", "--yes"]
    before = committed(app)
    app.leave_group()
    for point, after in (
        ("topics-made", before),
        ("switch-before-commit", before),
        ("switch-committed", [0] * PARTITIONS),
    ):
        arm.write_text(json.dumps({"point": point, "skip": 0, "signal": "SIGKILL"}))
        killed = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert come_to(app, after)
    # The killed command holds the application; run again, it finds that all is done.
    with pytest.raises(ApplicationHeld, match="the hold is stale"):
        app.run()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (again.returncode, "has already been reset" in again.stdout) == (0, True), again.stderr
    app.feed(200)
    app.run()
    assert app.counts() == app.expected
