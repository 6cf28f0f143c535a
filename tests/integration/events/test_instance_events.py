"""The events of an instance on a real broker, with hand-made batches: in topic, database, run file and user listeners."""

from __future__ import annotations

import shutil
import sys
import threading
from types import ModuleType

import pytest
from confluent_kafka import Producer
from tests.integration.instance.test_instance_start import PARTITIONS, OneBatch
from tests.support.truth.topics import read_all

from tidemark.database import FactsDatabase
from tidemark.errors import OutcomeUnknown
from tidemark.events.event import Event, EventKind
from tidemark.events.table import EventReader
from tidemark.instance.assembly import make_instance
from tidemark.kafka.topics import ensure_user_topics
from tidemark.names import changelog_topic, events_topic
from tidemark.supervision.run_file import read_run_file, run_file_path
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

STARTED = ["CREATED", "REBALANCING", "RESTORING", "RUNNING"]
STOPPED = ["PENDING_SHUTDOWN", "NOT_RUNNING"]


@pytest.fixture
def application(settings, admin, unique):
    """The plan of a count over two partitions that hold a record each."""
    topology = Topology(unique("app"))
    stream = topology.stream(unique("in"), schema="id STRING", key="id")
    stream.group_by_key().count(name="n", store="n").to(unique("out"))
    plan = topology.plan()
    ensure_user_topics(plan, settings.model_copy(update={"num_partitions": PARTITIONS}), admin)
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for partition in range(PARTITIONS):
        producer.produce(unique("in"), b"{}", b"k", partition=partition)
    assert producer.flush(60) == 0
    return plan


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """An instance that waits at its end until all its events are written, however busy the machine is."""
    monkeypatch.setattr("tidemark.instance.instance._LISTENERS_CLOSE_S", 60.0)


@pytest.fixture
def own(monkeypatch):
    """A module of a user with a listener that keeps what it hears, and one that fails in every call."""
    module = ModuleType("own_listeners")
    module.heard = []

    class Keeping:
        def __init__(self, application_id, instance):
            self.of = (application_id, instance)

        def on_change(self, new, old):
            module.heard.append((*self.of, str(new)))

    class Failing(Keeping):
        def on_change(self, new, old):
            raise RuntimeError("broken on purpose")

        on_rebalance = on_restore_start = on_restore_end = on_change

    module.Keeping, module.Failing = Keeping, Failing
    monkeypatch.setitem(sys.modules, "own_listeners", module)
    return module


def run(plan, settings, failure=None):
    """From its start to its end over one batch, which is committed when there is one left."""
    stop = threading.Event()
    instance = make_instance(plan, settings, 0, "made", lambda point: None)
    too_long = threading.Timer(60, stop.set)
    too_long.start()
    try:
        instance.run(OneBatch(stop), stop)
    finally:
        too_long.cancel()
        instance.close(failure)


def on_topic(plan, settings):
    topic = events_topic(plan.application_id)
    (rows,) = read_all(settings.bootstrap_servers, [topic]).values()
    return [Event.from_json(row.value) for row in rows]


def in_database(plan, settings):
    return list(EventReader(FactsDatabase(settings), plan.application_id, 0).new())


def states(events):
    return [event.body["new"] for event in events if event.kind is EventKind.STATE]


def test_should_show_an_instance_from_start_to_end_in_topic_and_database(application, settings):
    run(application, settings)
    events = on_topic(application, settings)
    assert in_database(application, settings) == events
    assert states(events) == STARTED + STOPPED
    assert {(e.application_id, e.topology_version, e.instance) for e in events} == {
        (application.application_id, application.version, 0)
    }
    lead = application.subtopologies[0].lead.topic
    partitions = [f"{lead}[{number}]" for number in range(PARTITIONS)]
    (rebalance,) = [e.body for e in events if e.kind is EventKind.REBALANCE and e.body["held"]]
    generation = rebalance.pop("generation")
    assert rebalance == {"held": partitions, "gained": partitions, "lost": []}
    assert generation >= 1
    said = read_run_file(run_file_path(settings.var_dir, application.application_id, 0)) or {}
    assert (said["state"], said["partitions"], said["generation"]) == ("NOT_RUNNING", partitions, generation)


def test_should_show_the_restore_of_a_lost_store_in_topic_and_database(application, settings):
    run(application, settings)
    before = len(on_topic(application, settings))
    shutil.rmtree(settings.state_dir)
    run(application, settings)
    # Where it takes longer than a second, the topic is told of it meanwhile, too.
    events = [e for e in on_topic(application, settings)[before:] if e.kind is not EventKind.RESTORE_BATCH]
    assert in_database(application, settings)[before:] == events
    assert states(events) == STARTED + STOPPED
    for partition in range(PARTITIONS):
        summary = [e for e in events if e.body.get("partition") == partition]
        assert [e.kind for e in summary] == [EventKind.RESTORE_START, EventKind.RESTORE_END]
        assert summary[0].body["changelog"] == changelog_topic(application.application_id, "n")
        assert summary[1].body["next_offset"] >= summary[1].body["end_offset"] > summary[0].body["start_offset"]
        assert summary[1].body["records"] == 1
    kinds = [e.kind if e.kind is not EventKind.STATE else e.body["new"] for e in events]
    assert kinds.index("RESTORING") < kinds.index(EventKind.RESTORE_START) < kinds.index(EventKind.RESTORE_END)
    assert kinds.index(EventKind.RESTORE_END) < kinds.index("RUNNING")


def test_should_write_the_failure_as_the_last_event_when_an_instance_fails(application, settings):
    run(application, settings, OutcomeUnknown("the broker is away"))
    events = on_topic(application, settings)
    assert in_database(application, settings) == events
    assert states(events) == [*STARTED, "PENDING_SHUTDOWN", "ERROR"]
    assert [event.what for event in events[-2:]] == ["OutcomeUnknown: the broker is away", "PENDING_SHUTDOWN → ERROR"]


def test_should_call_a_users_listeners_and_continue_when_one_fails(application, settings, own):
    listeners = ["own_listeners:Failing", "own_listeners:Keeping"]
    run(application, settings.model_copy(update={"listeners": listeners}))
    assert not any("own_listeners" in thread.name for thread in threading.enumerate()), "closed with the instance"
    assert own.heard == [(application.application_id, 0, state) for state in STARTED + STOPPED]
    assert states(on_topic(application, settings)) == STARTED + STOPPED


def test_should_run_a_stream_when_its_database_is_away(application, settings, caplog):
    settings.var_dir.mkdir(parents=True)
    (settings.var_dir / "facts.db").mkdir()
    run(application, settings)
    assert states(on_topic(application, settings)) == STARTED + STOPPED
    assert caplog.text.count("the database of facts, sqlite") == 1
