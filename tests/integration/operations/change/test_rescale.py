"""Rescales on a real broker: to 8 and to 3 tasks while input arrives; a source that has grown; kills at each step."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.integration.operations.change.test_reset import reset_of
from tests.integration.operations.change.test_upgrade import description, upgrade_of
from tests.support.changes import advised, version, version_one
from tests.support.counting import NO_PROBE, CountingApp, Crash, crash_at, outputs
from tests.support.routing_source import RoutingSource
from tests.support.truth.topics import read_all
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.commit.history import last_commit_records
from tidemark.commit.record import CommitKind
from tidemark.errors import StartRefused
from tidemark.kafka.offsets import EndOffsets, committed_offsets
from tidemark.kafka.partitioner import partitions_of
from tidemark.kafka.topics import ensure_user_topics, partition_counts
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.change.rescale import Rescale
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.processes import wait_until
from tidemark.registry.reader import resolved_plan
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.stores.directory import folder_of
from tidemark.stores.protocol import WHOLE
from tidemark.stores.rocksdb import opened
from tidemark.tasks.values import value_layouts
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]

YES = lambda _plan: True  # noqa: E731


class RescaledApp(CountingApp):
    """Counts by key; its topic has four partitions."""

    def __init__(self, settings, admin, name) -> None:
        four = settings.model_copy(update={"num_partitions": 4})
        ensure_user_topics(version_one(name).plan(), four, admin)
        super().__init__(settings, admin, name, topology=version_one)

    def make_source(self, instance, stop) -> RoutingSource:
        """One that reads through repartition topics."""
        counts = partition_counts(self.admin, self.settings)
        partitions = sum(counts[topic] for s in instance.plan.subtopologies for topic in s.source_topics)
        return RoutingSource(self.settings.bootstrap_servers, instance.plan, partitions, stop)

    def counts(self) -> dict[str, int]:
        """What the stores of all tasks hold on disk, and that each key lies where murmur2 wants it."""
        plan = resolved_plan(self.plan, self.settings, self.admin)
        tasks = partition_counts(self.admin, self.settings)[plan.subtopologies[0].lead.topic]
        layout, found = value_layouts(plan.subtopologies[0])["n"], {}
        for number in range(tasks):
            with opened(folder_of(self.state, TaskId(0, number), "n")) as store:
                items = list(store.items(WHOLE))
            keys = [key for key, _ in items]
            assert set(partitions_of(keys, tasks).tolist()) <= {number}
            decoded = layout.decode([value for _, value in items])
            found |= {key.decode(): int(n) for key, n in zip(keys, decoded["f0"], strict=True)}
        assert sorted(path.name for path in self.state.glob("0_*")) == [f"0_{number}" for number in range(tasks)]
        return found


@pytest.fixture
def app(settings, admin, unique):
    """Create an application whose four tasks have counted 1000 records of 200 keys, and which is stopped."""
    made = RescaledApp(settings, admin, unique("rescaled"))
    made.feed(1000)
    made.run()
    return made


def rescale_of(app, tasks, probe=NO_PROBE, said=None):
    app.leave_group()
    said = said if said is not None else []
    return Rescale(app.plan, app.settings, wall_clock_ms, tasks, LoggingRestoreListener(), probe, said.append)


def kinds(app, tasks):
    client = {"bootstrap.servers": app.settings.bootstrap_servers}
    # A client of its own: one that knew the topic before it grew does not know its new partitions.
    ends = EndOffsets(AdminClient(client), 60)
    records = last_commit_records(client, ends, app.name, tasks, stalled_after_s=60)
    return {str(task): record.kind for task, record in records.items()}


def test_should_go_from_four_to_eight_to_three_tasks_while_input_arrives_and_count_every_record_once(app):
    for tasks in (8, 3):

        def arrive(point):
            if point == "topics-made":
                app.feed(300, keys=250)

        app.feed(100)
        assert rescale_of(app, tasks, arrive).run(YES)
        now = [TaskId(0, number) for number in range(8)]
        assert kinds(app, now) == {f"0_{number}": CommitKind.RESCALE for number in range(tasks)}
        assert kinds(app, [TaskId(1, n) for n in range(4)]) == {f"1_{n}": CommitKind.RESCALE for n in range(4)}
        app.feed(200)
        app.run()
        assert app.counts() == app.expected
    # A count that was emitted twice would be a record that was counted twice.
    assert set(outputs(app).values()) == {1}


def test_should_process_unread_repartition_records_during_a_rescale(app):
    assert rescale_of(app, 2).run(YES)
    app.feed(400)

    class Enough(Exception):
        pass

    sent = []

    def stop_before_counting(point):
        # Routers commit first; what they have sent is not counted yet.
        if point == "7-stores":
            sent.append(point)
            if len(sent) == 1:
                raise Enough

    with pytest.raises(Enough):
        app.run(stop_before_counting)
    plan = rescale_of(app, 5).show()
    assert sum(plan.unread.values()) > 0
    old, wider = app.plan, Topology(app.name, version="2")
    source = wider.stream(f"{app.name}-in", schema="id STRING, v BIGINT, w BIGINT", key="id")
    source.group_by_key().aggregate(store="n", n="count(*)").to(f"{app.name}-out")
    app.plan = wider.plan()
    with pytest.raises(StartRefused, match=r"-source-.*-1-repartition\[.\] holds records with other columns .* \(w\)"):
        upgrade_of(app).run(YES)
    app.plan = old
    said = []
    assert rescale_of(app, 5, said=said).run(YES)
    assert any("unread records sent on" in line for line in said)
    app.run()
    assert app.counts() == app.expected
    assert set(outputs(app).values()) == {1}


def test_should_begin_again_or_be_complete_after_a_kill_at_each_step(app):
    old = description(app)
    for point in ("topics-made", "copying", "switch-before-commit"):
        with pytest.raises(Crash):
            rescale_of(app, 3, crash_at(point)).run(YES)
        assert (point, description(app)) == (point, old)
    # A standby that has ended: its folders may be taken over as any dead peer's.
    ended = app.settings.state_dir / "standby-0" / app.name
    for task in ("0_0", "0_3"):
        (ended / task / "rocksdb" / "n").mkdir(parents=True)
    for point in ("switch-committed", "folders-forgotten"):
        with pytest.raises(Crash):
            rescale_of(app, 3, crash_at(point)).run(YES)
        assert description(app).routing > 0
    said = []
    assert rescale_of(app, 3, said=said).run(YES)
    assert any("already" in line for line in said)
    assert [folder.name for folder in ended.iterdir() if folder.is_dir()] == ["0_0"]
    app.feed(100)
    app.run()
    assert app.counts() == app.expected
    assert set(outputs(app).values()) == {1}


def test_should_rescale_when_a_source_has_grown_and_when_it_grows_again(app):
    topic = f"{app.name}-in"

    def grow(partitions):
        app.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()
        assert wait_until(lambda: partition_counts(app.admin, app.settings)[topic] == partitions, 60)
        # Keys go elsewhere from now on, to partitions that no task has read.
        app.feed(200)

    grow(6)
    with pytest.raises(StartRefused, match="rescale run NAME --tasks 6"):
        app.run()
    assert rescale_of(app, 6).run(YES)
    app.run()
    assert app.counts() == app.expected
    grow(7)
    app.run()
    assert app.counts() == app.expected
    client = {"bootstrap.servers": app.settings.bootstrap_servers}
    places = [TopicPartition(topic, number) for number in range(7)]
    assert len(committed_offsets(client, app.name, places, 20)) == 7
    assert description(app).partitions == {topic: 7}
    assert set(outputs(app).values()) == {1}


def hold_twice(app):
    """Count records of one key in two tasks."""
    producer = Producer({"bootstrap.servers": app.settings.bootstrap_servers})
    for partition in (1, 2):
        producer.produce(f"{app.name}-in", b"{}", b"twice", partition=partition)
        app.expected["twice"] += 1
    assert producer.flush(60) == 0
    app.run()


def test_should_refuse_a_key_that_two_tasks_hold_until_its_state_is_computed_again(app):
    hold_twice(app)
    before = description(app)
    with pytest.raises(StartRefused, match="store n: task 0_2 and task 0_0 or 0_1 hold the same key") as refused:
        rescale_of(app, 3).run(YES)
    assert "twice" not in str(refused.value)
    assert description(app) == before
    assert reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY).run(YES)
    assert rescale_of(app, 3).run(YES)
    app.run()
    assert app.counts() == app.expected


def test_should_name_a_reset_that_is_possible_when_two_tasks_hold_a_key_of_a_source_that_has_grown(app):
    hold_twice(app)
    topic = f"{app.name}-in"
    app.admin.create_partitions([NewPartitions(topic, 6)])[topic].result()
    assert wait_until(lambda: partition_counts(app.admin, app.settings)[topic] == 6, 60)
    with pytest.raises(StartRefused, match=r"hold the same key.*`tidemark reset run NAME --to latest --state empty`"):
        rescale_of(app, 6).run(YES)
    assert reset_of(app, ResetTo.LATEST, StateAfter.EMPTY).run(YES)


def test_should_refuse_the_current_number_of_tasks_and_show_a_plan_without_changing_anything(
    app, tmp_path, monkeypatch
):
    before = description(app)
    with pytest.raises(StartRefused, match="already has 4 tasks"):
        rescale_of(app, 4).run(YES)
    assert not rescale_of(app, 3).run(lambda _plan: False)
    name = app.for_commands(tmp_path, monkeypatch)
    (tmp_path / f"{name}.py").write_text(
        f"from tests.support.changes import version_one\ndef topology():\n    return version_one({app.name!r})\n"
    )

    def command(*options):
        return CliRunner().invoke(build(), [*options])

    shown = command("rescale", "plan", name, "--tasks", "3")
    assert shown.exit_code == 0, shown.output
    assert "nothing was changed" in shown.stdout
    assert description(app) == before
    assert command("rescale", "plan", name, "--tasks", "3", "--yes").exit_code != 0
    assert command("rescale", "plan", name, "--tasks", "0").exit_code != 0
    done = command(*advised(shown.stdout), "--yes")
    assert done.exit_code == 0, done.output
    assert description(app).routing == 1
    assert f"{app.name}-source-{app.name}-in-1-repartition" in command("lag", name).stdout.replace("\n", "")


def test_should_upgrade_and_reset_a_rescaled_application(app):
    assert rescale_of(app, 2).run(YES)
    unroutable = Topology(app.name, version="2")
    placed = unroutable.stream(f"{app.name}-in", schema="id STRING, v BIGINT", key="id").filter("_offset >= 0")
    placed.group_by_key().aggregate(store="total", n="count(*)")
    app.plan = unroutable.plan()
    with pytest.raises(StartRefused, match="uses _offset"):
        upgrade_of(app, renames=["n=total"]).run(YES)
    app.plan = version(app.name, "2", "total", n="count(*)").plan()
    assert upgrade_of(app, renames=["n=total"]).run(YES)
    assert description(app).routing == 1
    app.feed(100)
    app.run()
    assert last_counts(app) == app.expected
    assert set(outputs(app).values()) == {1}
    assert reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY).run(YES)
    app.run()
    assert last_counts(app) == app.expected
    assert max(outputs(app).values()) == 2


def test_should_continue_by_the_advised_reset_when_records_between_sub_topologies_were_deleted(
    app, tmp_path, monkeypatch
):
    assert rescale_of(app, 2).run(YES)
    app.run()

    class Enough(Exception):
        pass

    def stop_before_counting(point):
        if point == "7-stores":
            raise Enough

    app.feed(400)
    with pytest.raises(Enough):
        app.run(stop_before_counting)
    topic, client = (
        description(app).routed_topic(f"{app.name}-in"),
        {"bootstrap.servers": app.settings.bootstrap_servers},
    )
    routed = [TopicPartition(topic, number) for number in range(2)]
    ends = EndOffsets(AdminClient(client), 60).of(routed)
    places = [ClientPartition(place.topic, place.partition, ends[place]) for place in routed]
    for deleted in app.admin.delete_records(places).values():
        deleted.result()
    with pytest.raises(StartRefused, match="records in between have been deleted") as refused:
        app.run()
    _, _, advice = str(refused.value).partition("to continue without them: `")
    sources = [TopicPartition(f"{app.name}-in", number) for number in range(4)]
    given = committed_offsets(client, app.name, sources, 20)
    offsets = [f"--offset {place.topic}:{place.partition}={at.offset}" for place, at in given.items()]
    advised = advice.partition("`")[0].replace("--offset TOPIC:PARTITION=OFFSET", " ".join(offsets))
    name = app.for_commands(tmp_path, monkeypatch)
    (tmp_path / f"{name}.py").write_text(
        f"from tests.support.changes import version_one\ndef topology():\n    return version_one({app.name!r})\n"
    )
    command = advised.replace("NAME", name).split()
    assert command[:3] == ["tidemark", "reset", "run"]
    done = CliRunner().invoke(build(), [*command[1:], "--yes"])
    assert done.exit_code == 0, done.output
    app.run()


def last_counts(app):
    """By key, the count that stands last in the sink."""
    rows = read_all(app.settings.bootstrap_servers, [f"{app.name}-out"])
    return {row.key.decode(): json.loads(row.value)["n"] for found in rows.values() for row in found}
