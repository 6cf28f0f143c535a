"""Live figures from a real broker: lag, rates, late records and dead letters, and what is said when it is away."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from tidemark.clock import wall_clock_ms
from tidemark.commit.dead_letter import dead_letter_record
from tidemark.commit.record import CommitKind, commit_record
from tidemark.errors import OutcomeUnknown, PreflightFailed
from tidemark.names import DESCRIPTION_KEY, TaskId, TopicPartition, commits_topic, dlq_topic, topology_topic
from tidemark.overview import live
from tidemark.overview.commit_window import BUCKET_MS
from tidemark.overview.live import LiveReader
from tidemark.processes import wait_until
from tidemark.registry.description import describe_state, with_generations
from tidemark.registry.reader import named_plan
from tidemark.stream_times import StreamTimes
from tidemark.tasks.update import DeadLetter
from tidemark.topology.builder import Topology


class App:
    """An application's topics, written by hand."""

    def __init__(self, settings, create_topic, name):
        topology = Topology(name)
        self.source, self.sink = f"{name}-in", f"{name}-out"
        topology.stream(self.source, schema="id STRING", key="id").group_by_key().count(store="n").to(self.sink)
        self.plan = topology.plan()
        self.id = self.plan.application_id
        for topic in (self.source, self.sink, commits_topic(self.id), dlq_topic(self.id)):
            create_topic(topic, 2)
        create_topic(topology_topic(self.id), 1)
        self._producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
        counts = dict.fromkeys((self.source, self.sink), 2)
        self.produce(topology_topic(self.id), 0, describe_state(self.plan, counts).to_bytes(), DESCRIPTION_KEY)

    def produce(self, topic, partition, value, key=None, headers=()):
        self._producer.produce(topic, value, key, partition, headers=list(headers))
        assert self._producer.flush(60) == 0

    def commit(self, at_ms, partition, span, **figures):
        record = commit_record(
            CommitKind.BATCH, self.id, "1", TaskId(0, partition), 1, at_ms, spans={self.source: span},
            stream_times=StreamTimes.none(), changelogs={}, ends_before={}, **figures,
        )  # fmt: skip
        self.produce(commits_topic(self.id), partition, record.to_bytes(), str(record.task).encode())

    def dead_letter(self, reason):
        letter = DeadLetter(reason, self.source, 0, 1, b"k", b"v", ())
        key, value, headers = dead_letter_record(letter, 10_000)
        self.produce(dlq_topic(self.id), 0, value, key, headers)


def looked(reader, now_ms, app, is_complete):
    """Look until `is_complete` holds for the application, and return its view. One look may miss what a slow broker sends."""
    views = {}

    def is_shown():
        try:
            views.update(reader.look(now_ms))
        except OutcomeUnknown:
            return False
        return views[app.id].fault is None and is_complete(views[app.id])

    assert wait_until(is_shown, 60), views
    return views[app.id]


@pytest.fixture
def app(settings, create_topic, unique):
    return App(settings, create_topic, unique("live"))


@pytest.fixture
def reader(settings, app, monkeypatch):
    # A broker may stand still for seconds on a busy machine.
    monkeypatch.setattr("tidemark.overview.live.ANSWER_S", 15.0)
    made = LiveReader({app.id: app.plan}, settings)
    yield made
    made.close()


@pytest.mark.broker
def test_should_show_lag_rates_late_rows_and_dead_letters_and_follow_them(app, reader):
    for number in range(30):
        app.produce(app.source, number % 2, b"{}")
    now_ms = wall_clock_ms() // BUCKET_MS * BUCKET_MS
    app.commit(now_ms - BUCKET_MS, 0, (0, 10), sinks={app.sink: 20}, late_rows=4, bad_rows=1)
    app.dead_letter("not JSON")
    view = looked(reader, now_ms, app, lambda seen: seen.figures and seen.figures.bad and seen.dead_letters)
    # Task 0 has committed 10 of 15, task 1 nothing of 15.
    assert (view.total_lag, view.figures.bad, view.figures.late) == (20, 1, {0: 4})
    assert (view.figures.read_per_s, view.figures.written_per_s) == ({app.source: 1.0}, {app.sink: 2.0})
    assert (view.dead_letters, view.reasons) == (1, {"not JSON": 1})
    (sample,) = view.samples
    assert (sample.reason, sample.source, sample.source_offset) == ("not JSON", TopicPartition(app.source, 0), 1)
    assert (sample.key, sample.value) == ("k", "v")

    app.commit(now_ms, 0, (10, 15))
    app.commit(now_ms, 1, (0, 15))
    app.dead_letter("refused")

    def is_all_there(seen):
        return (seen.total_lag, seen.figures.last_commit_ms, len(seen.reasons)) == (0, now_ms, 2)

    view = looked(reader, now_ms + BUCKET_MS, app, is_all_there)
    assert view.figures.read_per_s == {app.source: 2.0}
    assert view.reasons == {"not JSON": 1, "refused": 1}


@pytest.mark.broker
def test_the_last_commit_of_an_idle_application_should_be_found_before_the_window(app, reader):
    app.produce(app.source, 0, b"{}")
    day_ms = 86_400_000
    now_ms = wall_clock_ms()
    app.commit(now_ms, 0, (0, 1), late_rows=2)
    view = looked(reader, now_ms + day_ms, app, lambda seen: seen.figures and seen.total_lag is not None)
    assert (view.total_lag, view.figures.late, view.figures.last_commit_ms) == (0, {}, now_ms)


@pytest.mark.broker
def test_an_application_that_never_ran_should_not_hide_the_others(app, settings, unique):
    other = Topology(unique("never"))
    other.stream(f"{unique('never')}-in", schema="id STRING", key="id").group_by_key().count(store="n").to("out")
    reader = LiveReader({"other": other.plan(), app.id: app.plan}, settings)
    try:
        view = looked(reader, wall_clock_ms(), app, lambda seen: seen.total_lag is not None)
        assert reader.look(wall_clock_ms())["other"].total_lag is None
    finally:
        reader.close()
    assert view.total_lag == 0


@pytest.mark.broker
def test_should_read_which_names_are_in_use_only_when_a_description_was_written(app, reader, monkeypatch):
    read = []

    def counted(*given):
        read.append(1)
        return named_plan(*given)

    monkeypatch.setattr(live, "named_plan", counted)
    now_ms = wall_clock_ms()
    looked(reader, now_ms, app, lambda seen: seen.total_lag is not None)
    before = len(read)
    looked(reader, now_ms + 3_600_000, app, lambda seen: seen.total_lag is not None)
    assert len(read) == before
    upgraded = with_generations(app.plan, {"n": 1})
    described = describe_state(upgraded, dict.fromkeys((app.source, app.sink), 2))
    app.produce(topology_topic(app.id), 0, described.to_bytes(), DESCRIPTION_KEY)
    view = looked(reader, now_ms, app, lambda seen: [store.generation for store in seen.plan.stores] == [1])
    assert view.total_lag == 0


@pytest.mark.broker
def test_should_say_that_the_commits_were_lost(app, reader, admin):
    now_ms = wall_clock_ms()
    looked(reader, now_ms, app, lambda seen: seen.total_lag is not None)
    admin.delete_topics([commits_topic(app.id)])[commits_topic(app.id)].result()
    assert wait_until(lambda: "was deleted" in (reader.look(now_ms)[app.id].fault or ""), 60)


@pytest.mark.broker
def test_should_follow_a_new_description_that_ends_a_fault(app, reader, monkeypatch):
    def task_ids(plan, _partitions):
        if plan.stores[0].generation == 0:
            raise PreflightFailed("the old plan cannot be followed")
        return []

    monkeypatch.setattr(live, "task_ids", task_ids)
    now_ms = wall_clock_ms()
    for _ in range(2):
        assert reader.look(now_ms)[app.id].fault == "the old plan cannot be followed"
    described = describe_state(with_generations(app.plan, {"n": 1}), dict.fromkeys((app.source, app.sink), 2))
    app.produce(topology_topic(app.id), 0, described.to_bytes(), DESCRIPTION_KEY)
    looked(reader, now_ms, app, lambda seen: [store.generation for store in seen.plan.stores] == [1])


@pytest.mark.broker
def test_a_broker_that_is_away_should_be_named_within_the_time_for_an_answer(settings, app, monkeypatch):
    monkeypatch.setattr(live, "ANSWER_S", 0.5)
    away = settings.model_copy(update={"bootstrap_servers": "127.0.0.1:1"})
    reader = LiveReader({app.id: app.plan}, away)
    began_s = time.monotonic()
    with pytest.raises(OutcomeUnknown, match=r"no broker answers at 127\.0\.0\.1:1"):
        reader.look(wall_clock_ms())
    assert time.monotonic() - began_s < settings.broker_timeout_ms / 1000
