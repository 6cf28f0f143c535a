"""Upgrades of a real application on a real broker: with input arriving, killed at each step, and refused."""

from __future__ import annotations

import re
import threading
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions
from tests.support.changes import BesideATable, ChangingApp, advised, version
from tests.support.counting import NO_PROBE, PARTITIONS, CountingApp, Crash, come_to, committed, crash_at, outputs
from tests.support.routing_source import RoutingSource
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.commit.record import CommitKind
from tidemark.errors import ExitCode, PreflightFailed, StartRefused, TaskLocked
from tidemark.instance.assembly import make_instance
from tidemark.kafka.topics import TopicSpec, create_topics, ensure_user_topics, partition_counts
from tidemark.names import TopicPartition
from tidemark.operations import disk_space
from tidemark.operations.change.upgrade import CHANGES_FOLDER, Upgrade
from tidemark.processes import wait_until
from tidemark.registry.reader import recorded
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.store_sizes import TopicBytes
from tidemark.temporary_folder import TEMPORARY_FOLDER
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]

YES = lambda _plan: True  # noqa: E731
RENAMED = {"renames": ["n=total"], "adds": ["total.twos=1000"]}


@pytest.fixture
def app(settings, admin, unique):
    """Create an application whose version 1 has counted 1000 records of 200 keys, and which is stopped."""
    made = ChangingApp(settings, admin, unique("upgraded"))
    made.feed(1000)
    made.run()
    return made


def upgrade_of(app, probe=NO_PROBE, said=None, renames=(), drops=(), adds=()):
    app.leave_group()
    said = said if said is not None else []
    return Upgrade(
        app.plan, app.settings, wall_clock_ms, renames, drops, adds, LoggingRestoreListener(), probe, said.append
    )


def not_called(point):
    raise AssertionError(f"the change has come to {point}")


def own_topics(app):
    return {topic for topic in partition_counts(app.admin, app.settings) if topic.startswith(app.name)}


def description(app):
    return recorded(app.settings, app.admin, app.plan, partition_counts(app.admin, app.settings))


def renamed(app):
    return version(app.name, "2", "total", n="count(*)", twos="sum(v)")


def test_should_carry_the_state_while_input_arrives_and_count_every_record_once(app):
    before = Counter(app.expected)
    app.become(renamed(app))
    feeding, fed = threading.Event(), threading.Event()

    def feed():
        # Not faster than the upgrade, which ends with its input, reads.
        while not fed.wait(0.05):
            app.feed(100)
            feeding.set()

    thread = threading.Thread(target=feed)

    def arrive(point):
        if point == "topics-made":
            thread.start()
            assert feeding.wait(60)

    try:
        assert upgrade_of(app, arrive, **RENAMED).run(YES)
    finally:
        fed.set()
        thread.join(60)
    records = app.last_records()
    assert {(record.kind, record.topology_version) for record in records.values()} == {(CommitKind.UPGRADE, "2")}
    assert come_to(app, [records[task].end_offsets[f"{app.name}-in"] for task in sorted(records)])
    assert not (app.settings.state_dir / CHANGES_FOLDER / app.name).exists()
    app.run()
    last = app.last_outputs()
    assert {key: row["n"] for key, row in last.items()} == app.expected
    assert all(
        row["twos"] == 1000 + 2 * (row["n"] - before[key]) for key, row in last.items() if row["n"] > before[key]
    )
    # A count that was emitted twice would be a record that was counted twice.
    assert set(outputs(app).values()) == {1}


def test_should_begin_again_or_be_complete_after_a_kill_at_each_step(app):
    old, offsets = description(app), committed(app)
    app.become(renamed(app))
    for point in ("topics-made", "copying", "switch-before-commit"):
        with pytest.raises(Crash):
            upgrade_of(app, crash_at(point), **RENAMED).run(YES)
        assert (point, description(app), committed(app)) == (point, old, offsets)
    for point in ("switch-committed", "folders-forgotten"):
        with pytest.raises(Crash):
            upgrade_of(app, crash_at(point), **RENAMED).run(YES)
        assert description(app).version == "2"
    said, records = [], app.last_records()
    assert upgrade_of(app, said=said).run(YES), "what was declared is of no use any more"
    assert any("already" in line for line in said)
    assert app.last_records() == records
    assert not list(app.settings.state_dir.glob("*/*/*/rocksdb/n"))
    app.feed(300)
    app.run()
    assert {key: row["n"] for key, row in app.last_outputs().items()} == app.expected
    assert set(outputs(app).values()) == {1}


def test_should_not_use_the_name_of_an_old_changelog_again_after_it_was_deleted(app):
    app.become(renamed(app))
    assert upgrade_of(app, **RENAMED).run(YES)
    changelog = f"{app.name}-n-changelog"
    app.admin.delete_topics([changelog])[changelog].result(60)
    assert wait_until(lambda: changelog not in own_topics(app), 60)
    app.become(version(app.name, "3", "n", n="count(*)"))
    assert upgrade_of(app, renames=["total=n"], drops=["total.twos"]).run(YES)
    assert description(app).stores["n"].spec.generation == 1
    app.feed(300)
    app.run()
    assert {key: row["n"] for key, row in app.last_outputs().items()} == app.expected


def test_should_leave_corrupt_and_half_built_stores_to_the_clean_command(app):
    """A corrupt store that is not logged is the only remainder of its contents, also if the new version names it no more."""
    left = [app.store_folder(0).with_name(name) for name in ("n.corrupt-5", "gone.corrupt-5", "n.restoring")]
    for folder in left:
        folder.mkdir()
    app.become(renamed(app))
    assert upgrade_of(app, **RENAMED).run(YES)
    assert [folder for folder in left if not folder.exists()] == []
    assert not app.store_folder(0).exists()


def test_should_refuse_before_anything_is_built_when_a_new_sink_does_not_exist(app, tmp_path):
    topology, sink = version(app.name, "2", "total", n="count(*)"), f"{app.name}-more"
    topology.stream(f"{app.name}-in", schema="id STRING, v BIGINT", key="id").to(sink)
    app.become(topology)
    before = own_topics(app)
    made = upgrade_of(app, not_called, renames=["n=total"])
    for refused in (lambda: made.show(tmp_path / "shown"), lambda: made.run(YES)):
        with pytest.raises(PreflightFailed, match=f"topics {sink} do not exist; .*`tidemark topics create NAME`"):
            refused()
    assert own_topics(app) == before
    ensure_user_topics(app.plan, app.settings, app.admin)
    assert upgrade_of(app, renames=["n=total"]).run(YES)
    assert description(app).version == "2"


def test_should_change_nothing_when_an_upgrade_is_refused(app, tmp_path):
    first, before = app.plan, (description(app), committed(app), partition_counts(app.admin, app.settings))
    app.become(version(app.name, "2", "n", n="sum(v)"))
    with pytest.raises(StartRefused, match=r"was count\(\*\), now it is sum\(v\)\): `tidemark upgrade plan NAME`"):
        app.run()
    assert "--drop n" in " ".join(upgrade_of(app).show(tmp_path / "shown").refused)
    with pytest.raises(StartRefused, match="nothing was changed: store n: its field n was"):
        upgrade_of(app).run(YES)
    assert (description(app), committed(app), partition_counts(app.admin, app.settings)) == before
    app.plan = first
    app.feed(100)
    app.run()
    assert app.counts() == app.expected


def test_should_say_that_there_is_no_way_back_after_an_added_sub_topology(app, tmp_path):
    assert upgrade_of(app).show(tmp_path / "shown").warnings == []
    topology = version(app.name, "2", "n", n="count(*)")
    source = topology.stream(f"{app.name}-more", schema="id STRING, v BIGINT", key="id")
    source.group_by_key().aggregate(store="m", n="count(*)").to(f"{app.name}-more-out")
    app.become(topology)
    ensure_user_topics(app.plan, app.settings, app.admin)
    made = upgrade_of(app).show(tmp_path / "shown")
    assert made.refused == ()
    assert made.warnings == ["sub-topology 1 is new: no later upgrade can remove it, so none can go back to 1"]


def test_should_start_a_dropped_store_empty_under_its_name_and_ignore_old_folders_elsewhere(app, tmp_path):
    app.become(version(app.name, "2", "n", n="sum(v)"))
    made = upgrade_of(app, drops=["n"]).show(tmp_path / "shown")
    assert made.lost == {"n": 200}
    assert made.left == (f"{app.name}-n-changelog",)
    assert upgrade_of(app, drops=["n"]).run(YES)
    app.expected.clear()
    app.feed(300)
    # The folder of version 1 is still here, as it would be on another machine.
    assert list(app.settings.state_dir.glob("0/*/*/rocksdb/n"))
    app.run()
    assert {k: r["n"] for k, r in app.last_outputs().items() if k in app.expected} == app.expected
    assert app.counts() == app.expected
    assert f"{app.name}-n-changelog-1" in partition_counts(app.admin, app.settings)
    app.feed(100)
    app.run()
    assert app.counts() == app.expected


def beside_names(name, number, schema, *, optimised=True):
    """Counts by key in `n`, beside a table of names."""
    topology = Topology(name, version=number, optimised=optimised)
    source = topology.stream(f"{name}-in", schema="id STRING, v BIGINT", key="id")
    source.group_by_key().aggregate(store="n", n="count(*)").to(f"{name}-out")
    topology.table(f"{name}-names", schema=schema, store="names")
    return topology


def test_should_read_a_table_again_that_its_topic_keeps_and_ignore_the_folders_from_before(
    settings, admin, unique, tmp_path
):
    read = set()

    class ReadsTables(BesideATable):
        def read_table(self, spec, partition, _start, _end, _should_continue):
            read.add((partition.partition, tuple(column.name for column in spec.columns)))
            return iter(())

    app = ChangingApp(settings, admin, unique("upgraded"))
    app.source = ReadsTables
    app.become(beside_names(app.name, "1", "name STRING, age INT", optimised=False))
    create_topics(admin, [TopicSpec(f"{app.name}-names", PARTITIONS, {"cleanup.policy": "compact"})], app.settings)
    app.feed(100)
    app.run()
    reordered = "age INT, name STRING"
    for number, schema, drops, left in (
        ("2", "name STRING, age INT", ["names"], (f"{app.name}-names-changelog",)),
        ("3", reordered, [], ()),
        ("4", f"{reordered}, ward STRING", ["names"], ()),
    ):
        app.become(beside_names(app.name, number, schema))
        made = upgrade_of(app, drops=drops).show(tmp_path / number)
        assert (made.refused, made.lost, made.left) == ((), {}, left)
        assert upgrade_of(app, drops=drops).run(YES)
        app.feed(100)
        app.run()
        assert {key: row["n"] for key, row in app.last_outputs().items()} == app.expected
        columns = tuple(each.split()[0] for each in schema.split(", "))
        assert read == {(partition, columns) for partition in range(PARTITIONS)}
        read.clear()


def test_should_not_read_a_table_from_a_topic_that_has_deleted_records(settings, admin, unique, tmp_path):
    app = ChangingApp(settings, admin, unique("upgraded"))
    app.source = BesideATable
    app.become(beside_names(app.name, "1", "name STRING, age INT", optimised=False))
    topic = f"{app.name}-names"
    create_topics(admin, [TopicSpec(topic, PARTITIONS, {"cleanup.policy": "delete"})], app.settings)
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    producer.produce(topic, b"{}", b"ann", partition=0)
    assert producer.flush(60) == 0
    place = ClientPartition(topic, 0, 1)
    admin.delete_records([place])[place].result(60)
    app.feed(100)
    app.run()
    before = description(app)
    app.become(beside_names(app.name, "2", "name STRING, age INT"))
    policy, lost = upgrade_of(app, drops=["names"]).show(tmp_path / "deleting").refused
    assert f"{topic} is the changelog of its own table, but has cleanup.policy=delete" in policy
    assert f"{topic}[0] begins at offset 1, so store names would lose the keys" in lost
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    with pytest.raises(StartRefused, match=re.escape(lost)):
        upgrade_of(app, drops=["names"]).run(not_called)
    assert description(app) == before


def test_should_change_nothing_when_the_answer_is_no_or_while_an_instance_runs(app):
    first, before = app.plan, (description(app), committed(app))
    app.become(renamed(app))
    assert not upgrade_of(app, **RENAMED).run(lambda _plan: False)
    instance = make_instance(first, app.settings, 0, "changing", NO_PROBE)
    try:
        with pytest.raises(TaskLocked, match="pause its DAG"):
            upgrade_of(app, **RENAMED).run(YES)
    finally:
        instance.close(None)
    assert (description(app), committed(app)) == before


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"drops": ["n"]}, "both are version 1"),
        ({"drops": ["typo"]}, "has no store 'typo'"),
        ({"adds": ["n.nope=1"]}, "--add n.nope=1"),
        ({"renames": ["n=typo"]}, "has no store 'typo'"),
    ],
)
def test_should_refuse_declarations_about_the_version_that_runs(app, declared, why):
    before = (description(app), committed(app))
    with pytest.raises(StartRefused, match=why):
        upgrade_of(app, **declared).run(not_called)
    assert (description(app), committed(app)) == before


def test_should_refuse_declarations_again_once_the_upgraded_application_has_run(app):
    app.become(renamed(app))
    assert upgrade_of(app, **RENAMED).run(YES)
    app.feed(100)
    app.run()
    with pytest.raises(StartRefused, match="has no store 'n'"):
        upgrade_of(app, **RENAMED).run(not_called)
    said = []
    assert upgrade_of(app, said=said).run(not_called)
    assert any("already" in line for line in said)


def test_should_start_and_record_a_version_that_keeps_the_same_state_without_an_upgrade(app):
    app.become(version(app.name, "1b", "n", n="count(*)"))
    app.feed(100)
    app.run()
    assert app.counts() == app.expected
    assert description(app).version == "1b"


def test_should_refuse_a_source_that_has_grown_and_name_the_command_that_helps(app):
    topic = f"{app.name}-in"
    app.admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result()
    assert wait_until(lambda: partition_counts(app.admin, app.settings)[topic] == PARTITIONS + 1, 60)
    match = rf"{topic} has 3 partitions, it had 2 .* `tidemark rescale run NAME --tasks 3`"
    with pytest.raises(StartRefused, match=match):
        app.run()
    app.become(renamed(app))
    with pytest.raises(StartRefused, match="tidemark upgrade run"):
        app.run()
    with pytest.raises(StartRefused, match=match):
        upgrade_of(app, **RENAMED).run(YES)


def test_should_end_an_instance_that_is_assigned_a_partition_added_later(app):
    """The group assigns the partition when the client refreshes its metadata, some minutes after the topic has grown."""
    stop, given = threading.Event(), TopicPartition(f"{app.name}-in", PARTITIONS)

    class Idle:
        def start(self, next_offsets, max_batch_records):
            instance.member.ownership.assigned([given])
            instance.changed.set()

        def next(self, timeout_s):
            return None

        def stop(self):
            return

    instance = make_instance(app.plan, app.settings, 0, "changing", NO_PROBE)
    too_long = threading.Timer(60, stop.set)
    too_long.start()
    try:
        with pytest.raises(StartRefused, match=r"more than its 2 partitions: .* `tidemark rescale run NAME --tasks N`"):
            instance.run(Idle(), stop)
    finally:
        too_long.cancel()
        instance.close(None)


def test_should_show_refuse_and_upgrade_by_command(app, tmp_path, monkeypatch):
    name = app.for_commands(tmp_path, monkeypatch)
    (tmp_path / f"{name}.py").write_text(
        "from tests.support.changes import version\ndef topology():\n"
        f"    return version({app.name!r}, '2', 'total', n='count(*)', twos='sum(v)')\n"
    )

    def command(verb, *options):
        return CliRunner().invoke(build(), ["upgrade", verb, name, *options], terminal_width=200)

    refused = command("plan")
    assert refused.exit_code == ExitCode.REFUSED
    assert "--rename n=NEW" in refused.stdout
    with monkeypatch.context() as patch:
        patch.setattr(disk_space, "ASSUMED_BYTES_PER_OFFSET", 1 << 60)
        patch.setattr(disk_space, "topic_bytes", lambda _topics, _settings: TopicBytes({}))
        full = command("plan", "--rename", "n=total", "--add", "total.twos")
    assert isinstance(full.exception, PreflightFailed), full.output
    scratch = app.settings.state_dir / TEMPORARY_FOLDER / f"{app.name}-upgrade"
    assert f"bytes are needed in {scratch}" in str(full.exception)
    assert [path for path in scratch.iterdir() if path.is_dir()] == []
    shown = command("plan", "--rename", "n=total", "--add", "total.twos")
    assert shown.exit_code == 0
    assert "n → total" in shown.stdout
    assert description(app).version == "1"
    assert command("plan", "--yes").exit_code != 0
    declared = ["--rename", "n=total", "--add", "total.twos"]
    assert advised(shown.stdout) == ["upgrade", "run", name, *declared]
    done = command("run", *declared, "--yes")
    assert done.exit_code == 0, done.output
    assert "is at version 2" in done.stdout
    assert description(app).version == "2"


def keyed_again(name, number, *columns, **aggregates):
    """Counts in `n` after a repartition topic of these columns."""
    topology = Topology(name, version=number)
    stream = topology.stream(f"{name}-in", schema="id STRING, v BIGINT", key="id").select(*columns)
    stream.group_by("id", name="again").aggregate(store="n", **aggregates).to(f"{name}-out")
    return topology


class KeyedAgainApp(CountingApp):
    """Counts what it has sent to a repartition topic."""

    def __init__(self, settings, admin, name) -> None:
        super().__init__(settings, admin, name, topology=lambda name: keyed_again(name, "1", "id", n="count(*)"))

    def make_source(self, instance, stop) -> RoutingSource:
        """One that reads through the repartition topic."""
        counts = partition_counts(self.admin, self.settings)
        partitions = sum(counts[topic] for s in instance.plan.subtopologies for topic in s.source_topics)
        return RoutingSource(self.settings.bootstrap_servers, instance.plan, partitions, stop)


def test_should_refuse_unread_records_between_sub_topologies_without_a_new_column(settings, admin, unique):
    app = KeyedAgainApp(settings, admin, unique("upgraded"))
    app.feed(400)
    app.run()
    app.feed(400)
    with pytest.raises(Crash):
        app.run(crash_at("7-stores"))
    old, new = app.plan, keyed_again(app.name, "2", "id", "v", n="count(*)", total="sum(v)").plan()
    # Also when no store changes.
    app.plan = keyed_again(app.name, "2", "id", "v", n="count(*)").plan()
    with pytest.raises(StartRefused, match=r"it reads v from .*-again-repartition.*upgrade plan NAME"):
        app.run()
    with pytest.raises(StartRefused, match=r"other columns than the new version reads \(v\)"):
        upgrade_of(app).run(YES)
    app.plan = new
    with pytest.raises(
        StartRefused, match=r"other columns than the new version reads \(v\) that are not read yet; bring"
    ):
        upgrade_of(app, adds=["n.total=0"]).run(YES)
    app.plan = old
    app.run()
    app.plan = new
    assert upgrade_of(app, adds=["n.total=0"]).run(YES)
