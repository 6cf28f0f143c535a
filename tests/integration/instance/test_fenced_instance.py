"""The exit code of an instance whose place in the group another member has taken: a live copy, or no process."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient
from tests.support.counting import NO_PROBE, PARTITIONS, counted_plan
from tests.support.group_requests import join_group, sync_group

from tidemark.errors import InstanceFenced, OutcomeUnknown
from tidemark.instance.assembly import make_instance
from tidemark.kafka.offsets import describe_group, retry_until_stable
from tidemark.names import group_instance_id
from tidemark.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]

SESSION_MS = 3000


class Idle:
    """A `BatchSource` without input."""

    def __init__(self):
        self._pause = threading.Event()

    def start(self, next_offsets, max_batch_records):
        return

    def next(self, timeout_s):
        self._pause.wait(timeout_s)

    def stop(self):
        return


class Run:
    """An instance at work in a thread of its own, on a disk of its own."""

    def __init__(self, plan, settings, disk="state"):
        self.stop, self.failure = threading.Event(), None
        own = settings.model_copy(update={"state_dir": settings.state_dir.with_name(disk)})
        self.instance = make_instance(plan, own, 0, "made", NO_PROBE)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            self.instance.run(Idle(), self.stop)
        except BaseException as error:
            self.failure = error
        finally:
            self.instance.close(self.failure)

    @property
    def runs(self):
        return self.thread.is_alive() and len(self.instance._tasks) == PARTITIONS

    def await_running(self):
        assert wait_until(lambda: self.runs or self.failure is not None, 60)
        assert self.failure is None

    def ended_with(self):
        self.thread.join(90)
        assert not self.thread.is_alive()
        return self.failure


@contextmanager
def running(plan, settings, disk="state"):
    run = Run(plan, settings, disk)
    try:
        yield run
    finally:
        run.stop.set()
        run.thread.join(60)
    assert not run.thread.is_alive()


@pytest.fixture
def brief(settings):
    """A session that ends soon."""
    return settings.model_copy(update={"session_timeout_ms": SESSION_MS})


@pytest.fixture
def plan(brief, admin, unique):
    return counted_plan(brief, admin, unique("app"), 0)


def coordinator(settings, group):
    """The address of the broker that coordinates the group, and its id."""
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0})
    found = retry_until_stable(lambda: describe_group(settings, admin, group), group, 60).coordinator
    return f"{found.host}:{found.port}", found.id


def test_should_end_the_first_of_two_copies_for_good_and_leave_the_second_running(plan, brief, monkeypatch):
    with running(plan, brief) as first:
        first.await_running()
        check, held = first.instance.second_copy, []
        ask = check.holder

        def ask_the_group(stop):
            held.append(first.instance.active_stores.copies())
            return ask(stop)

        monkeypatch.setattr(check, "holder", ask_the_group)
        with running(plan, brief, "other") as second:
            assert isinstance(first.ended_with(), InstanceFenced)
            second.await_running()
        # While it asks whether the other copy lives, which takes sessions, it answers no queries from what it had.
        assert held == [{}]


def test_should_ask_for_a_restart_when_a_join_request_of_a_dead_process_took_its_place(plan, brief):
    """The join request of an earlier process is still in the network and arrives after that process has ended."""
    app = plan.application_id
    topic = plan.subtopologies[0].lead.topic
    with running(plan, brief) as lone:
        lone.await_running()
        address, _ = coordinator(brief, app)
        join_group(address, app, group_instance_id(app, 0), [topic], session_ms=SESSION_MS)
        assert isinstance(lone.ended_with(), OutcomeUnknown)
    with running(plan, brief) as again:
        again.await_running()


def test_should_ask_for_a_restart_when_a_new_coordinator_knows_only_an_earlier_process(cluster, settings, unique):
    """A coordinator persists member ids when a rebalance ends, so its successor may know only those of the previous one."""
    # It says so before the session of the member that the new coordinator knows has ended.
    three = settings.model_copy(update={"bootstrap_servers": cluster.bootstrap, "session_timeout_ms": 120_000})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    plan = counted_plan(three, admin, unique("app"), 0)
    app, topic = plan.application_id, plan.subtopologies[0].lead.topic
    lone, leader = group_instance_id(app, 0), group_instance_id(app, 1)
    given = {leader: {}, lone: {topic: range(PARTITIONS)}}
    address, _ = coordinator(three, app)
    described = lambda: describe_group(three, admin, app)  # noqa: E731
    joined = join_group(address, app, leader, [topic], session_ms=300_000)
    sync_group(address, app, leader, joined, {leader: {}})
    try:
        with running(plan, three) as first:
            assert wait_until(lambda: len(described().members) == 2, 60)
            joined = join_group(address, app, leader, [topic], joined.member_id, 300_000)
            sync_group(address, app, leader, joined, given)
            first.await_running()
        assert first.failure is None
        # The leader begins a rebalance, and does not end it: it dies before it has given anything to anybody.
        rejoining = threading.Thread(
            target=join_group, args=(address, app, leader, [topic], joined.member_id, 300_000), daemon=True
        )
        rejoining.start()
        assert wait_until(lambda: described().state is ConsumerGroupState.PREPARING_REBALANCING, 60)
        with running(plan, three) as second:
            rejoining.join(60)
            member_id = lambda: second.instance.member._consumer.memberid()  # noqa: E731
            assert wait_until(lambda: bool(member_id()), 60)
            _, node = coordinator(three, app)
            cluster.kill_node(node)
            assert isinstance(second.ended_with(), OutcomeUnknown)
        with running(plan, three) as again:
            again.await_running()
    finally:
        cluster.start()
