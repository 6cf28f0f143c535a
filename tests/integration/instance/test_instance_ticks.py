"""An instance on a real broker whose processors act by the clock, without Spark."""

from __future__ import annotations

import itertools
import json
import shutil
import threading

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from tests.support.truth.topics import read_all

from tidemark.clock import wall_clock_ms
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.instance.assembly import make_instance
from tidemark.instance.source import SourceBatch
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import committed_offsets
from tidemark.kafka.topics import ensure_user_topics, partition_counts
from tidemark.names import TopicPartition, commits_topic
from tidemark.processes import wait_until
from tidemark.processors import Processor, Punctuate
from tidemark.stores.protocol import WHOLE
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized, store

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

HERE = "tests.integration.instance.test_instance_ticks"
EVERY_MS = 60_000


class Heart(Processor):
    """Counts the minutes that passed in its store, and says so."""

    says = True

    def init(self, context):
        self.context = context
        self.beats = context.store("beats")
        context.schedule(EVERY_MS, Punctuate.WALL_CLOCK, self.beat)

    def process(self, record):
        pass

    def beat(self, time_ms):
        n = (self.beats.get("n") or {"n": 0})["n"] + 1
        self.beats.put("n", {"n": n})
        if self.says:
            self.context.forward("n", {"n": n})


class QuietHeart(Heart):
    says = False


class Clock:
    """The wall clock, and what a test adds to it."""

    def __init__(self):
        self.added_ms = 0

    def __call__(self):
        return wall_clock_ms() + self.added_ms


class Scripted:
    """A `BatchSource`: each `next` asks `step`, which gives a batch or None."""

    def __init__(self, step):
        self.next = lambda timeout_s: step()

    def start(self, next_offsets, max_batch_records):
        pass

    def stop(self):
        pass


class Crash(Exception):
    """Simulates the death of the process at this point."""


def run(plan, settings, script, probe=lambda point: None):
    """Run until `script(number, clock, tasks)` says True at its call of that number; what is then in `beats`.

    Otherwise it gives the next batch, or None. It is asked once all tasks are open.
    """
    stop, clock, numbers, held = threading.Event(), Clock(), itertools.count(1), []

    def step():
        tasks = instance._tasks
        if len(tasks) < len(plan.subtopologies):
            return None
        given = script(next(numbers), clock, tasks)
        if given is not True:
            return given
        held.extend(t.stores["beats"].get_many(WHOLE, [b"n"])[0] for t in tasks.values() if "beats" in t.stores)
        stop.set()
        return None

    instance = make_instance(plan, settings, 0, "ticks", probe, clock)
    too_long = threading.Timer(60, stop.set)
    too_long.start()
    try:
        instance.run(Scripted(step), stop)
    finally:
        too_long.cancel()
        instance.close(None)
    (found,) = held
    return found


def prepared(topology, settings, admin):
    plan = topology.plan()
    ensure_user_topics(plan, settings.model_copy(update={"num_partitions": 1}), admin)
    return plan


def a_heart(unique, processor="Heart", logging=True):
    topology = Topology(unique("ticks"))
    kept = store("beats", "n BIGINT", logging=logging)
    events = topology.stream(unique("events"), schema="id STRING", key="id")
    events.process(f"{HERE}:{processor}", emits="n BIGINT", stores=[kept]).to(unique("out"))
    return topology


def commits(plan, settings):
    kept = read_all(settings.bootstrap_servers, [commits_topic(plan.application_id)])
    return [CommitRecord.from_bytes(row.value) for rows in kept.values() for row in rows]


def two_minutes(number, clock, tasks):
    """A minute passes at the second and the fourth call, and nothing between."""
    if number in (2, 4):
        clock.added_ms += EVERY_MS
    return True if number == 7 else None


def test_should_commit_a_tick_with_its_output_its_store_and_unchanged_offsets(settings, admin, unique):
    plan = prepared(a_heart(unique), settings, admin)
    assert run(plan, settings, two_minutes) == b'{"n":2}'
    records = commits(plan, settings)
    assert [record.kind for record in records] == [CommitKind.START, CommitKind.TICK, CommitKind.TICK]
    (source,) = plan.subtopologies[0].source_topics
    assert [dict(record.sources) for record in records] == [{source: {0: (0, 0)}}] * 3
    (out,) = plan.subtopologies[0].sink_topics
    assert [dict(record.sinks) for record in records[1:]] == [{out: 1}] * 2
    changelog = f"{plan.application_id}-beats-changelog"
    assert [dict(record.changelogs) for record in records[1:]] == [{changelog: 1}] * 2
    rows = read_all(settings.bootstrap_servers, [out, changelog])
    assert [(row.key, json.loads(row.value)) for row in rows[(out, 0)]] == [(b"n", {"n": 1}), (b"n", {"n": 2})]
    assert [json.loads(row.value) for row in rows[(changelog, 0)]] == [{"n": 1}, {"n": 2}]
    place = TopicPartition(source, 0)
    found = committed_offsets(librdkafka_config(settings), plan.application_id, [place], 60)
    assert found[place].offset == 0


def test_should_give_the_group_the_offsets_again_that_brokers_have_deleted(settings, admin, unique):
    plan = prepared(a_heart(unique), settings, admin)
    briefly = lambda number, clock, tasks: True if number == 2 else None  # noqa: E731
    run(plan, settings, briefly)
    assert wait_until(lambda: is_deleted(admin, plan.application_id), 60)
    run(plan, settings, briefly)
    records = commits(plan, settings)
    assert [record.kind for record in records] == [CommitKind.START, CommitKind.TICK]
    (source,) = plan.subtopologies[0].source_topics
    assert dict(records[1].sources) == {source: {0: (0, 0)}}
    place = TopicPartition(source, 0)
    found = committed_offsets(librdkafka_config(settings), plan.application_id, [place], 60)
    assert found[place].offset == 0
    run(plan, settings, briefly)
    assert len(commits(plan, settings)) == 2


def is_deleted(admin, group):
    """A group whose last member's session still runs cannot be."""
    try:
        admin.delete_consumer_groups([group])[group].result(60)
    except KafkaException:
        return False
    return True


def test_should_commit_a_tick_that_writes_only_an_unlogged_store(settings, admin, unique):
    plan = prepared(a_heart(unique, "QuietHeart", logging=False), settings, admin)
    assert run(plan, settings, two_minutes) == b'{"n":2}'
    assert [record.kind for record in commits(plan, settings)] == [CommitKind.START, CommitKind.TICK, CommitKind.TICK]


def a_third_minute(number, clock, tasks):
    """Later than any minute before."""
    if number == 2:
        clock.added_ms += 10 * EVERY_MS
    return True if number == 4 else None


def test_should_start_an_unlogged_store_empty_when_a_committed_tick_was_not_applied_to_it(
    settings, admin, unique, caplog
):
    plan = prepared(a_heart(unique, "QuietHeart", logging=False), settings, admin)
    points = []

    def die_in_the_second_tick(point):
        points.append(point)
        if points.count("6-commit") == 3:
            raise Crash

    with pytest.raises(Crash):
        run(plan, settings, two_minutes, die_in_the_second_tick)
    assert [record.batch for record in commits(plan, settings)] == [0, 1, 2]
    # The committed offsets are those of the folder, which holds one minute; two are committed.
    assert run(plan, settings, a_third_minute) == b'{"n":1}'
    assert (
        "has no changelog, and its folder holds batch 1, while the last commit is batch 2: it starts empty"
        in caplog.text
    )


def test_should_keep_an_unlogged_store_that_is_up_to_date_and_empty_it_for_a_new_start(settings, admin, unique, caplog):
    plan = prepared(a_heart(unique, "QuietHeart", logging=False), settings, admin)
    assert run(plan, settings, two_minutes) == b'{"n":2}'
    assert run(plan, settings, a_third_minute) == b'{"n":3}'
    assert "starts empty" not in caplog.text
    # Begun again from nothing, with the folder left where it was: no offset was ever another than 0.
    internal = [f"{plan.application_id}-{name}" for name in ("commits", "topology")]
    for deleted in admin.delete_topics(internal).values():
        deleted.result(60)
    assert wait_until(lambda: not set(internal) & partition_counts(admin, settings).keys(), 60)
    assert run(plan, settings, a_third_minute) == b'{"n":1}'
    assert "its folder holds batch 3, while nothing was ever committed: it starts empty" in caplog.text


def test_should_keep_an_unlogged_store_that_a_dead_peer_holds_beside_an_older_own_one(settings, admin, unique, caplog):
    plan = prepared(a_heart(unique, "QuietHeart", logging=False), settings, admin)
    assert run(plan, settings, two_minutes) == b'{"n":2}'
    own, peer = settings.state_dir / "0", settings.state_dir / "1"
    shutil.copytree(own, peer)
    assert run(plan, settings, a_third_minute) == b'{"n":3}'
    # As after a second instance, which had the task meanwhile, has been removed.
    own.rename(settings.state_dir / "newer")
    peer.rename(own)
    (settings.state_dir / "newer").rename(peer)
    assert run(plan, settings, a_third_minute) == b'{"n":4}'
    assert "starts empty" not in caplog.text


def test_should_tick_even_when_other_tasks_always_have_a_batch(settings, admin, unique):
    topology = a_heart(unique)
    busy = topology.stream(unique("busy"), schema="id STRING", key="id")
    busy.group_by_key().count(name="n", store=Materialized("counts", in_memory=True))
    plan = prepared(topology, settings, admin)
    place = TopicPartition(unique("busy"), 0)

    def backlog(number, clock, tasks):
        if number in (2, 4):
            clock.added_ms += EVERY_MS
        if number == 6:
            return True
        start = tasks[place].next_offsets[place.topic]
        columns = {
            "__p": [0],
            "__status": [0],
            "__rows": [1],
            "__max_ts": [1],
            "__last_offset": [start],
            "__key": ["a"],
            "n": [1],
        }
        return SourceBatch(1, {place: start}, {place: start + 1}, [pa.table(columns)], ())

    assert run(plan, settings, backlog) == b'{"n":2}'
    kinds = [record.kind for record in commits(plan, settings)]
    assert kinds.count(CommitKind.BATCH) == 5
    assert kinds.count(CommitKind.TICK) == 2
