"""Offsets moved on a real broker: everything counted again on an empty state, on top of the old one, or left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from tests.change.changing import ChangingApp
from tests.change.test_upgrade import description
from tests.restore.counting import NO_PROBE, PARTITIONS, Crash, come_to, committed, crash_at
from typer.testing import CliRunner

from tidemark.broker.offsets import EndOffsets
from tidemark.change.reset import Reset
from tidemark.change.reset_plan import ResetTo, StateAfter, parse_offsets, target_offsets
from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.commit.record import CommitKind
from tidemark.errors import ApplicationHeld, StartRefused
from tidemark.names import TopicPartition
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import project_root
from tidemark.start.evidence import Watermarks

YES = lambda _plan: True  # noqa: E731
P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)
SOURCES = {P0: Watermarks(5, 100), P1: Watermarks(0, 7)}
broker = pytest.mark.broker


@pytest.fixture
def app(settings, admin, unique):
    """1000 records of 200 keys counted. Nothing runs."""
    made = ChangingApp(settings, admin, unique("reset"))
    made.feed(1000)
    made.run()
    return made


def reset_of(app, to, state, probe=NO_PROBE, given=None, at_ms=None):
    return Reset(
        app.plan, app.settings, wall_clock_ms, to, state, given or {}, at_ms, LoggingRestoreListener(), probe, print
    )


def not_asked(plan):
    raise AssertionError(f"asked to approve {plan}")


@broker
def test_should_count_everything_again_from_an_empty_state(app):
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


@broker
def test_should_count_twice_what_is_read_again_on_top_of_the_state(app):
    before = Counter(app.expected)
    made = reset_of(app, ResetTo.EARLIEST, StateAfter.KEEP)
    assert made.run(YES)
    assert made.run(not_asked)
    app.feed(100)
    app.run()
    assert app.counts() == app.expected + before
    with pytest.raises(StartRefused, match="nothing to reset"):
        reset_of(app, ResetTo.LATEST, StateAfter.KEEP).run(YES)


@broker
def test_should_leave_out_what_came_before_a_time(app):
    before = Counter(app.expected)
    app.feed(300)
    time.sleep(0.01)  # Record timestamps have milliseconds.
    at_ms = wall_clock_ms()
    app.feed(100)
    after = app.expected - before
    producer = Producer({"bootstrap.servers": app.settings.bootstrap_servers})
    assert producer.flush(5) == 0
    assert reset_of(app, ResetTo.TIME, StateAfter.KEEP, at_ms=at_ms).run(YES)
    app.run()
    counted = Counter(app.counts()) - before
    assert counted.total() == 100
    assert counted <= after


@broker
def test_should_go_on_without_what_is_deleted(app):
    app.feed(300)
    ends = EndOffsets(app.admin, 15)
    places = [TopicPartition(f"{app.name}-in", number) for number in range(PARTITIONS)]
    cut = {place: end - 40 for place, end in ends.of(places).items()}
    records = [ClientPartition(place.topic, place.partition, offset) for place, offset in cut.items()]
    for deleted in app.admin.delete_records(records).values():
        deleted.result()
    before = Counter(app.counts())
    with pytest.raises(StartRefused, match="tidemark offsets reset NAME --to offsets --state keep --offset"):
        app.run()
    assert reset_of(app, ResetTo.EARLIEST, StateAfter.KEEP).run(YES)
    assert come_to(app, list(cut.values()))
    app.run()
    assert (Counter(app.counts()) - before).total() == 40 * PARTITIONS


@broker
def test_the_command_should_move_to_given_offsets(app, tmp_path, monkeypatch):
    name = app.for_commands(tmp_path, monkeypatch)
    (tmp_path / f"{name}.py").write_text(
        f"from tests.change.changing import version_one\ndef topology():\n    return version_one({app.name!r})\n"
    )

    def command(*options):
        return CliRunner().invoke(build(["offsets", "up"]), ["offsets", "reset", name, *options])

    wanted = [f"--offset={app.name}-in:{number}=3" for number in range(PARTITIONS)]
    ends = committed(app)
    shown = command("--to", "offsets", "--state", "empty", *wanted)
    assert shown.exit_code == 0, shown.output
    assert "nothing was changed" in shown.stdout
    assert committed(app) == ends
    assert command("--to", "offsets", "--state", "empty", *wanted, "--run", "--yes").exit_code == 0
    assert come_to(app, [3] * PARTITIONS)
    for wrong in (
        ["--to", "offsets", "--state", "keep"],
        ["--to", "time", "--state", "keep"],
        ["--to", "earliest", "--state", "keep", "--time=-1h"],
        ["--to", "earliest"],
        ["--to", "earliest", "--state", "keep", "--yes"],
    ):
        assert command(*wrong).exit_code != 0


@broker
def test_should_be_whole_or_not_at_all_wherever_the_command_is_killed(app, tmp_path):
    """SIGKILL of the real command, again and again; the start that comes next does what a committed one has left."""
    (tmp_path / "made_reset.py").write_text(
        f"from tests.change.changing import version_one\ndef topology():\n    return version_one({app.name!r})\n"
    )
    arm = tmp_path / "arm.json"
    environment = {
        **os.environ,
        **app.settings.as_environment(),
        "PYTHONPATH": os.pathsep.join([str(project_root() / "include"), str(project_root())]),
        "TIDEMARK_TOPOLOGY_PATH": str(tmp_path),
        "TIDEMARK_PROBE": "tests.crash.probe:kill",
        "TEST_CRASH_ARM": str(arm),
    }
    command = [sys.executable, "-m", "tidemark.cli.main", "offsets", "reset", "made_reset"]
    command += ["--to", "earliest", "--state", "empty", "--run", "--yes"]
    before = committed(app)
    for point, after in (
        ("topics-made", before),
        ("switch-before-commit", before),
        ("switch-committed", [0] * PARTITIONS),
    ):
        arm.write_text(json.dumps({"point": point, "skip": 0, "signal": "SIGKILL"}))
        killed = subprocess.run(command, env=environment, capture_output=True, timeout=90, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert come_to(app, after)
    # The killed command holds the application; run again, it finds that all is done.
    with pytest.raises(ApplicationHeld, match="the hold is stale"):
        app.run()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert (again.returncode, "has already been reset" in again.stdout) == (0, True), again.stderr
    app.feed(200)
    app.run()
    assert app.counts() == app.expected


def test_should_go_to_the_beginning_or_the_end():
    nobody = EndOffsets(None, 1)
    assert target_offsets(ResetTo.EARLIEST, SOURCES, {}, None, nobody) == {P0: 5, P1: 0}
    assert target_offsets(ResetTo.LATEST, SOURCES, {}, None, nobody) == {P0: 100, P1: 7}


@pytest.mark.parametrize("offset", [5, 6, 99, 100])
def test_should_go_to_offsets_that_are_there(offset):
    given = parse_offsets([f"in:0={offset}", "in:1=0"])
    assert target_offsets(ResetTo.OFFSETS, SOURCES, given, None, EndOffsets(None, 1)) == {P0: offset, P1: 0}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["in:0=4", "in:1=0"], "4 does not exist, the partition holds 5 to 100"),
        (["in:0=101", "in:1=0"], "101 does not exist"),
        (["in:0=5"], r"--offset in:1=… is missing"),
        (["in:0=5", "in:1=0", "in:2=0"], "does not read this partition"),
        (["in=5"], "write TOPIC:PARTITION=OFFSET"),
        (["in:0=-1"], "write TOPIC:PARTITION=OFFSET"),
    ],
)
def test_should_refuse_offsets_that_are_not_there(texts, message):
    with pytest.raises(StartRefused, match=message):
        target_offsets(ResetTo.OFFSETS, SOURCES, parse_offsets(texts), None, EndOffsets(None, 1))
