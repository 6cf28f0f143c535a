"""The small decisions of an instance: states, capacity of a transaction, ownership, group metadata, run file."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tidemark.errors import OutcomeUnknown
from tidemark.instance.instance import Instance, _Rate
from tidemark.instance.transaction_capacity import BatchSize, TransactionCapacity, split_by_capacity
from tidemark.kafka.member import GroupMetadata
from tidemark.kafka.ownership import Ownership
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.supervision.run_file import RunFile, read_run_file
from tidemark.supervision.state import InstanceState, StateMachine

ZERO, ONE = TopicPartition("in", 0), TopicPartition("in", 1)


def test_should_report_each_transition_once():
    seen = []
    states = StateMachine("app", 0, lambda new, old: seen.append((old.value, new.value)))
    for state in (InstanceState.REBALANCING, InstanceState.REBALANCING, InstanceState.RUNNING):
        states.to(state)
    assert seen == [("CREATED", "REBALANCING"), ("REBALANCING", "RUNNING")]


@pytest.mark.parametrize("last", [InstanceState.NOT_RUNNING, InstanceState.ERROR])
def test_should_not_leave_a_final_state(last):
    states = StateMachine("app", 0, lambda new, old: None)
    states.state = last
    with pytest.raises(ValueError, match="cannot go"):
        states.to(InstanceState.RUNNING)


def test_should_not_run_before_it_has_joined():
    with pytest.raises(ValueError, match="CREATED to RUNNING"):
        StateMachine("app", 0, lambda new, old: None).to(InstanceState.RUNNING)


def a_part(*records: int):
    return [(f"task-{i}", SimpleNamespace(records=n)) for i, n in enumerate(records)]


@pytest.mark.parametrize(
    ("capacity", "parts"), [(29, [[10], [20], [30]]), (30, [[10, 20], [30]]), (60, [[10, 20, 30]])]
)
def test_should_put_as_many_tasks_into_a_transaction_as_fit(capacity, parts):
    split = split_by_capacity(a_part(10, 20, 30), capacity)
    assert [[update.records for _, update in part] for part in split] == parts


def test_should_report_no_rate_of_records_that_were_committed_long_ago_when_the_clock_is_set_back(monkeypatch):
    ticks_ms, wall_ns = [0], [2 * 3_600_000 * 10**6]
    monkeypatch.setattr(time, "monotonic_ns", lambda: ticks_ms[0] * 10**6)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns[0])
    rate = _Rate()
    rate.add(5000)
    assert rate.per_second() == 500
    ticks_ms[0] += 10_000
    wall_ns[0] -= 3_600_000 * 10**6
    assert rate.per_second() == 0


def test_should_adapt_the_rate_quickly_when_it_falls_and_slowly_when_it_rises():
    capacity = TransactionCapacity(9_000)
    capacity.observe(100_000, 1.0)
    assert capacity.records == 300_000
    capacity.observe(200_000, 1.0)
    assert 300_000 < capacity.records < 600_000
    before = capacity.records
    capacity.observe(10, 60.0)
    assert capacity.records == before


def test_should_recover_its_rate_after_one_slow_commit_even_when_only_small_ones_follow():
    """Measured: a broker that did not respond for 8 s once left batches of 500 records for the rest of the process."""
    capacity = TransactionCapacity(10_000)
    capacity.observe(3000, 8.0)
    assert capacity.records >= 100_000
    for _ in range(20):
        capacity.observe(3000, 8.0)
    assert capacity.records == 1250
    for _ in range(20):
        capacity.observe(500, 0.01)
    assert capacity.records > 100_000


def test_should_halve_or_fit_a_batch_that_was_too_large_but_not_below_the_minimum():
    size = BatchSize(1_000_000)
    size.shrink()
    assert size.records == 500_000
    size.shrink(10.0)
    assert size.records == 50_000
    size.shrink(1.01)
    assert (size.records, size.is_least) == (25_000, False)
    size.shrink(1e9)
    assert (size.records, size.is_least) == (1000, True)
    assert BatchSize(300).is_least


@pytest.mark.parametrize(
    ("records", "held", "can"), [(50_000, 1001, True), (50_000, 1000, False), (1000, 50_000, False)]
)
def test_should_not_shrink_batches_whose_records_come_of_little_input(records, held, can):
    assert BatchSize(1_000_000, known=records).can_shrink(held) is can


def test_should_double_full_batches_that_would_fit_twice_up_to_the_setting():
    size = BatchSize(10_000, known=2000)
    assert not size.grow(held=900, load=0.1)
    assert not size.grow(held=2000, load=0.6)
    assert size.grow(held=1000, load=0.5)
    assert size.records == 4000
    assert size.grow(held=4000, load=0.1)
    assert size.grow(held=8000, load=0.1)
    assert size.records == 10_000
    assert not size.grow(held=10_000, load=0.0)


@pytest.mark.parametrize(("known", "records"), [(None, 50_000), (7000, 7000), (80_000, 50_000), (3, 1000)])
def test_should_begin_with_the_batch_size_of_the_previous_process(known, records):
    assert BatchSize(50_000, known).records == records


def test_should_give_a_partition_a_new_epoch_when_it_comes_back():
    ownership = Ownership()
    ownership.assigned([ZERO, ONE])
    first = ownership.epoch(ZERO)
    ownership.revoked([ZERO])
    assert ownership.epoch(ZERO) is None
    ownership.assigned([ZERO])
    assert ownership.epoch(ZERO) not in (None, first)
    assert ownership.epoch(ONE) == first


class OneOwnedTask(Instance):
    """An instance with a task of the partition `ZERO`; what it was asked for is in `journal`."""

    def __init__(self):
        self.journal, self.lock, self.changed = [], threading.RLock(), threading.Event()
        ownership = Ownership()
        ownership.assigned([ZERO])
        self.member = SimpleNamespace(ownership=ownership, metadata=lambda: SimpleNamespace(generation=7))
        self.plan = SimpleNamespace(subtopologies=[SimpleNamespace(index=0, lead=SimpleNamespace(topic="in"))])
        self.partitions = {"in": 2}
        self.states = StateMachine("app", 0, lambda new, old: self.journal.append(new.value))
        self.attached = SimpleNamespace(source=SimpleNamespace(stop=lambda: self.journal.append("stop")))
        self.active_stores = SimpleNamespace(replace=lambda *_: None)
        self.probe = lambda _: None
        self.listeners = SimpleNamespace(rebalanced=lambda held, generation: self.journal.append((*held, generation)))
        self.description = SimpleNamespace(look=lambda: None, outdated=None)
        self.opener = SimpleNamespace(open=lambda missing, _: [self.opened(each) for each in missing])
        self._tasks = {}

    def opened(self, assignment):
        closing = SimpleNamespace(wait=lambda _: self.journal.append("close"))
        task = SimpleNamespace(
            lead=assignment.partition, epoch=assignment.epoch, release=lambda: None, start_closing=lambda: closing
        )
        return SimpleNamespace(task=task, is_fresh=False)

    def _start_source(self):
        self.journal.append("start")


@pytest.fixture
def running():
    """An instance that runs its task."""
    instance = OneOwnedTask()
    instance.states.state = InstanceState.REBALANCING
    instance._reconcile(threading.Event())
    assert instance.journal == ["stop", "RESTORING", "start", (ZERO, 7), "RUNNING"]
    instance.journal.clear()
    return instance


def test_should_keep_its_source_when_a_rebalance_changes_nothing_for_it(running):
    running.member.ownership.assigned([])
    running._reconcile(threading.Event())
    assert running.journal == [(ZERO, 7)]


CHANGES = {
    "one more": (lambda ownership: ownership.assigned([ONE]), 2),
    "one less": (lambda ownership: ownership.revoked([ZERO]), 0),
    "the same again": (lambda ownership: (ownership.revoked([ZERO]), ownership.assigned([ZERO])), 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_should_read_again_after_every_rebalance_that_changes_its_tasks(running, change):
    moves, tasks = CHANGES[change]
    moves(running.member.ownership)
    running._reconcile(threading.Event())
    assert "stop" in running.journal
    assert ("close" in running.journal) is (change != "one more")
    assert len(running._tasks) == tasks


def test_should_read_again_after_a_discarded_batch_although_no_task_has_changed(running):
    running._reopen()
    running.member.ownership.assigned([])
    running._reconcile(threading.Event())
    assert running.journal == ["REBALANCING", "stop", "start", (ZERO, 7), "RUNNING"]


@pytest.mark.parametrize(
    ("generation", "member", "checked"), [(-1, "m", False), (0, "m", True), (1, "m", True), (3, "", False)]
)
def test_should_know_which_metadata_a_coordinator_does_not_check(generation, member, checked):
    opaque = b"CGMDv2:" + generation.to_bytes(4, "little", signed=True) + b"group\0"
    parsed = GroupMetadata.parse(opaque, member)
    assert (parsed.generation, parsed.is_checked) == (generation, checked)


def test_should_refuse_metadata_of_an_unknown_form():
    with pytest.raises(OutcomeUnknown):
        GroupMetadata.parse(b"CGMDv3:....", "m")


def test_should_write_a_run_file_at_once_on_a_change_and_otherwise_once_a_second(tmp_path, monkeypatch):
    # This thread may stand still for longer than a second.
    monkeypatch.setattr("tidemark.supervision.run_file._REWRITE_S", 3600)
    path = tmp_path / "instances" / "app-0.json"
    run_file = RunFile(path, {"application_id": "app"})
    run_file.update({"state": "RUNNING"}, now=True)
    run_file.update({"batch": 7})
    assert (read_run_file(path) or {})["state"] == "RUNNING"
    assert "batch" not in (read_run_file(path) or {})
    run_file.update({}, now=True)
    assert (read_run_file(path) or {})["batch"] == 7


def test_should_be_written_from_several_threads_at_once(tmp_path):
    run_file = RunFile(tmp_path / "app-0.json", {})
    with ThreadPoolExecutor(8) as pool:
        written = [pool.submit(run_file.update, {"n": n}, now=True) for n in range(400)]
    assert [future.exception() for future in written] == [None] * 400


def test_should_not_join_the_group_when_it_is_asked_to_stop_before():
    stop, seen, states = threading.Event(), [], StateMachine("app", 0, lambda new, old: None)
    starting = SimpleNamespace(
        attached=SimpleNamespace(), committer=SimpleNamespace(init=lambda _s: seen.append("init")), has_grown=False,
        settings=Settings(), second_copy=SimpleNamespace(look_before_join=stop.set), states=states,
        member=SimpleNamespace(start=lambda: seen.append("join")),
    )  # fmt: skip
    Instance.run(starting, None, stop)
    assert (seen, states.state) == (["init"], InstanceState.PENDING_SHUTDOWN)
