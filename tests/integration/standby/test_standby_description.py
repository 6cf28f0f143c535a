"""A standby of an application whose state moves to other changelogs: it follows them, or ends and says why."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from tests.support.counting import until_block_ends
from tests.support.standby import Application, contents, count

from tidemark.cli.output import Output
from tidemark.cli.status import instance_listing
from tidemark.errors import ExitCode, StandbyCannotFollow, StandbyOutdated
from tidemark.kafka.topics import partition_counts
from tidemark.names import TaskId, TopicPartition, topology_topic
from tidemark.processes import wait_until
from tidemark.queries.position import UNHEARD_MS
from tidemark.registry.description import describe_state, with_generations
from tidemark.standby.copies import StandbyCopies
from tidemark.standby.process import run_standby
from tidemark.standby.progress import useless_because
from tidemark.stores.rocksdb import RocksStore
from tidemark.supervision.local_instances import LocalInstance, local_instances
from tidemark.supervision.run_file import read_run_file, standby_file_path
from tidemark.topology.builder import Topology

TASK = TaskId(0, 0)


def describe(app, plan):
    """What the commit of a change writes down."""
    description = describe_state(plan, partition_counts(app.admin, app.settings))
    app.write([(b"topology", description.to_bytes())], TopicPartition(topology_topic(app.id), 0))


@contextmanager
def standing_by(app, plan=None, number=0):
    """A standby of the topology as it was first, or of another; gives what it ended with, in a list."""

    def follow(stop):
        run_standby(plan or app.plan, app.settings, number, "made", stop, lambda _paces: None)

    with until_block_ends(follow) as ended:
        yield ended


def said(app, number=0):
    return read_run_file(standby_file_path(app.settings.var_dir, app.id, number)) or {}


def is_level(app, generation):
    summary = said(app)
    return summary.get("state") == "RUNNING" and summary.get("changelog_generations") == {"n": generation}


def copy_of(app):
    store = RocksStore(
        app.settings.state_dir / "standby-0" / app.id / "0_0" / "rocksdb" / "n", write_buffer_bytes=1 << 20
    )
    try:
        return contents(store)
    finally:
        store.close()


def is_useful(app, number=0):
    """Whether a standby runs and is useful, in one of its reports."""
    report = said(app, number)
    return report.get("state") == "RUNNING" and report.get("useful") is True


def await_copy(app):
    """The standby has copied all that was committed. It says once a second what its copies hold."""
    end = app.ends.of([app.changelog("n")])[app.changelog("n")]
    copies = StandbyCopies(app.settings.state_dir, app.id, answer_s=60.0)

    def is_complete():
        found = copies.find([TASK])[TASK].get("n", ())
        return any(copy.checkpoint.changelog_offset >= end for copy in found)

    assert wait_until(is_complete, 60)


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_follow_the_new_changelog_of_a_rewritten_store(counting):
    counting.commit({"n": {0: [(b"old", count(1))], 1: [(b"x", count(1))]}})
    describe(counting, counting.plan)
    gone = counting.settings.state_dir / "standby-0" / counting.id / "7_7"
    gone.mkdir(parents=True)
    with standing_by(counting) as ended:
        assert wait_until(lambda: ended or is_level(counting, 0), 60)
        assert not gone.exists(), "the application has no such task"
        moved = with_generations(counting.plan, {"n": 1})
        after = Application(moved, counting.settings, counting.admin, create_sources=False)
        after.commit({"n": {0: [(b"new", count(2))], 1: [(b"y", count(1))]}})
        describe(after, moved)
        assert wait_until(lambda: ended or is_level(counting, 1), 60), said(counting)
        assert ended == []
        (row,) = local_instances(counting.settings.var_dir, time.time())
        assert (row.changelog_generation, row.useful, row.useless_because) == (1, True, None)
        await_copy(after)
    assert ended == []
    assert copy_of(counting) == {b"new": count(2)} == after.fold("n")


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_continue_when_the_description_was_written_again_unchanged(counting, caplog):
    counting.commit({"n": {0: [(b"a", count(1))], 1: [(b"x", count(1))]}})
    describe(counting, counting.plan)
    with standing_by(counting) as ended:
        assert wait_until(lambda: ended or is_level(counting, 0), 60)
        describe(counting, counting.plan)
        counting.commit({"n": {0: [(b"b", count(1))]}})
        place = counting.changelog("n")
        end = counting.ends.of([place])[place]

        def has_followed():
            found = StandbyCopies(counting.settings.state_dir, counting.id).find([TASK])[TASK].get("n", ())
            return any(copy.checkpoint.changelog_offset >= end for copy in found)

        assert wait_until(lambda: ended or has_followed(), 60)
    assert ended == []
    assert "starts following again" not in caplog.text


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_end_and_say_why_when_another_topology_version_runs(counting):
    counting.commit({"n": {0: [(b"a", count(1))], 1: [(b"x", count(1))]}})
    describe(counting, counting.plan)
    other = Topology(counting.id, version="2")
    other.stream(counting.source, schema="id STRING", key="id").group_by_key().count(name="n", store="m").to(
        "elsewhere"
    )
    with standing_by(counting, other.plan(), number=1) as next_ended:
        with standing_by(counting) as ended:
            assert wait_until(lambda: ended or is_level(counting, 0), 60)
            assert wait_until(lambda: next_ended or said(counting, 1).get("useless_because"), 60)
            assert (said(counting, 1)["state"], said(counting, 1)["useful"]) == ("CREATED", False)
            after = Application(other.plan(), counting.settings, counting.admin)
            describe(counting, other.plan())
            assert wait_until(lambda: ended, 60), said(counting)
        after.commit({"m": {0: [(b"b", count(1))], 1: [(b"y", count(1))]}})
        # The standby of the next version was started too early, and has waited.
        assert wait_until(lambda: next_ended or is_useful(counting, 1), 60), said(counting, 1)
    assert next_ended == []
    (error,) = ended
    assert isinstance(error, StandbyOutdated)
    assert error.exit_code is ExitCode.RETRY
    assert "start it again with the version that runs now" in str(error)
    assert (said(counting)["state"], said(counting)["useful"]) == ("ERROR", False)


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_wait_until_an_instance_has_created_the_topics(settings, admin, unique, caplog):
    topology = Topology(unique("app"))
    topology.stream(unique("in"), schema="id STRING", key="id").group_by_key().count(name="n", store="n").to(
        unique("out")
    )
    absent = SimpleNamespace(plan=topology.plan(), settings=settings, id=topology.application_id)
    with standing_by(absent) as ended:
        assert wait_until(lambda: ended or said(absent).get("useless_because"), 60)
        assert "does not exist yet: start an instance" in said(absent)["useless_because"]
        assert (said(absent)["state"], said(absent)["useful"]) == ("CREATED", False)
        app = Application(absent.plan, settings, admin)
        app.commit({"n": {0: [(b"a", count(1))], 1: [(b"x", count(1))]}})
        assert wait_until(lambda: ended or is_useful(app), 60), said(app)
        await_copy(app)
    assert ended == []
    assert copy_of(app) == {b"a": count(1)}


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_end_when_it_has_waited_in_vain_so_that_it_is_started_with_what_is_deployed_by_then(
    settings, unique, monkeypatch
):
    monkeypatch.setattr("tidemark.standby.process._FOLLOWS_WITHIN_S", 0.5)
    topology = Topology(unique("app"))
    topology.stream(unique("in"), schema="id STRING", key="id").group_by_key().count(store="n").to(unique("out"))
    absent = SimpleNamespace(plan=topology.plan(), settings=settings, id=topology.application_id)
    with standing_by(absent) as ended:
        assert wait_until(lambda: ended, 60)
    (error,) = ended
    assert isinstance(error, StandbyCannotFollow)
    assert error.exit_code is ExitCode.RETRY
    assert "does not exist yet" in str(error)


@dataclass(frozen=True)
class _Copy:
    name: str
    lag_offsets: int
    holds_something: bool
    fault: str | None = None


LEVEL, BEHIND, COLD = _Copy("0_0/n", 0, True), _Copy("0_1/n", 9, True), _Copy("0_2/n", 9, False)
EMPTY = _Copy("0_3/n", 0, False)
STOPPED = _Copy("0_4/n", 0, True, "changelog c was deleted")
NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("copies", "outdated", "asked_ms", "why"),
    [
        ([LEVEL, BEHIND, EMPTY], None, NOW, None),
        ([LEVEL], None, NOW - UNHEARD_MS, None),
        ([LEVEL], None, NOW - UNHEARD_MS - 1, "Kafka has not answered for"),
        ([LEVEL, COLD], None, NOW, "nothing has been read yet of 0_2/n"),
        ([LEVEL, STOPPED], None, NOW, "changelog c was deleted; what the copies held before is kept"),
        ([LEVEL, STOPPED], "other changelogs", NOW, "other changelogs"),
    ],
)
def test_should_say_whether_its_copies_can_be_used(copies, outdated, asked_ms, why):
    found = useless_because(copies, outdated, asked_ms, NOW)
    assert found is None if why is None else why in found


def test_should_show_the_generation_of_a_standbys_copies_and_whether_they_can_be_used(capsys):
    row = LocalInstance(
        "a", "standby-0", "RUNNING", is_alive=True, host="here", records_per_second=0.0, partitions=("0_0",),
        changelog_generation=2, useful=True,
    )  # fmt: skip
    rows = [
        row,
        replace(row, useful=False, useless_because="nothing has been read yet of 0_2/n"),
        replace(row, useful=None),
        replace(row, changelog_generation=None, useful=False, useless_because="it waits"),
        replace(row, changelog_generation=3, same_rack_tasks=("0_0", "0_1")),
    ]
    Output().show(None, instance_listing(rows, NOW / 1000))
    printed = capsys.readouterr().out
    assert "generation 2, useful" in printed
    assert "generation 2, not useful: nothing has been read yet of 0_2/n" in printed
    assert printed.count("generation 2") == 2
    assert "generation 3, useful, in the rack of the instance of 0_0, 0_1" in printed
    assert printed.count("in the rack") == 1
    assert "None" not in printed
