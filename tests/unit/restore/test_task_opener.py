"""Several tasks that are opened at the same time, one of which is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from tidemark.commit.record import CommitKind, commit_record
from tidemark.errors import StartRefused, UserCodeFailed
from tidemark.kafka.topic_config import DAY_MS, changelog_policies
from tidemark.names import TaskId, TopicPartition
from tidemark.processes import wait_until
from tidemark.recovery import facts
from tidemark.recovery.evidence import CommittedProgress, StateCopy
from tidemark.recovery.facts import Witnesses
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore import task_opener
from tidemark.restore.restorer import RestoreSuspended
from tidemark.restore.store_builder import StoreBuilder, whole_changelog
from tidemark.restore.task_opener import Assignment, LostWrites, TaskOpener
from tidemark.settings import Settings
from tidemark.stores.directory import InstanceDirectory
from tidemark.stores.memory import MemoryStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import StreamTimes
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.builder import Topology
from tidemark.topology.stores import store
from tidemark.topology.windows import tumbling

NOW = 1_700_000_000_000
REFUSED, RESTORING = (Assignment(TaskId(0, number), TopicPartition("in", number), 1) for number in (0, 1))


@pytest.fixture
def opener(monkeypatch):
    monkeypatch.setattr(task_opener, "find_copies", lambda _, tasks: {task: {} for task in tasks})
    return TaskOpener(
        plan=None, settings=SimpleNamespace(restore_threads=2), directory=None, member=None,
        witnesses=SimpleNamespace(facts_for_local_stores=lambda tasks: dict.fromkeys(tasks)), opener=None,
        builder=SimpleNamespace(copies=()), sink_partitions={}, limits=None, writers={},
        takeover=SimpleNamespace(of_dead_owners=lambda tasks, number: None), number=0,
    )  # fmt: skip


def test_should_suspend_the_other_restores_when_a_task_is_refused(opener, monkeypatch):
    is_restoring, suspended = threading.Event(), []

    def open_one(self, assignment, facts, lost_writes, elsewhere, should_continue):
        if assignment == REFUSED:
            assert is_restoring.wait(30)
            raise StartRefused("task 0_0: its changelog is lost")
        assert should_continue()
        is_restoring.set()
        suspended.append(wait_until(lambda: not should_continue(), 10))
        raise RestoreSuspended("in the middle")

    monkeypatch.setattr(TaskOpener, "_open_one", open_one)
    with pytest.raises(StartRefused, match="its changelog is lost"):
        opener.open([REFUSED, RESTORING], lambda _: True)
    assert suspended == [True]


def test_should_close_the_stores_and_the_folder_when_a_processor_cannot_be_initialised(opener, monkeypatch, tmp_path):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    stream.process(
        "tests.support.used_processors:RaisesWithoutTextInInit", emits="n BIGINT", stores=[store("s", "n BIGINT")]
    ).to("out")
    held, closed = MemoryStore(), []
    held.close = lambda: closed.append("s")
    progress = CommittedProgress({"in": 0}, 0, StreamTimes.none())
    monkeypatch.setattr(TaskOpener, "_rank_of", lambda *_: lambda folder: None)
    monkeypatch.setattr(TaskOpener, "_copies", lambda *_: {})
    monkeypatch.setattr(TaskOpener, "_bring_level", lambda *_: (progress, False))
    directory = InstanceDirectory(tmp_path, "app", 0)
    opening = replace(
        opener, plan=topology.plan(), directory=directory, opener=SimpleNamespace(open=lambda path, spec: held),
        witnesses=SimpleNamespace(clock=lambda: 0), settings=SimpleNamespace(sql_memory_bytes=1 << 20),
    )  # fmt: skip
    with pytest.raises(UserCodeFailed):
        opening._open_one(REFUSED, SimpleNamespace(offsets_ms=0), None, {}, lambda: True)
    assert closed == ["s"]
    # The folder was released, too.
    directory.open_task(REFUSED.task).close()


def test_should_close_a_custom_store_whose_restore_is_suspended(tmp_path):
    def replay_tail(*_, **__):
        raise RestoreSuspended("the task was given away")

    replaced, made, closed = MemoryStore(), MemoryStore(), []
    made.close = lambda: closed.append("made")
    opened = SimpleNamespace(open=lambda folder, spec: made, clock=lambda: 0)
    builder = StoreBuilder(opened, SimpleNamespace(replay_tail=replay_tail), ())
    job = SimpleNamespace(
        spec=SimpleNamespace(is_rocksdb=False), low_offset=0, target=SimpleNamespace(changelog_offset=9)
    )
    with pytest.raises(RestoreSuspended):
        builder.bring_level(
            RESTORING.task, job, whole_changelog(job), replaced, tmp_path / "s", tmp_path / "b", lambda: False
        )
    assert closed == ["made"]


class Ends:
    """A changelog that has lost what was before offset 10; everything else is there."""

    def of(self, partitions):
        return dict.fromkeys(partitions, 100)

    def beginnings(self, partitions):
        return {partition: 10 if "changelog" in partition.topic else 0 for partition in partitions}


@pytest.fixture
def shortened(opener, monkeypatch):
    """An opener of a task with a window store, a copy of the store, and a list of the searches for what is lost.

    The copy has read the changelog up to an offset, of which 100 is the last; it is up to date at batch 7. The search finds
    that live windows are lost, although the clock does not say so.
    """
    topology = Topology("app", version="1")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    stream.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="w", retention="6h").to("out")
    plan = topology.plan()
    times, task = StreamTimes(NOW, {"w": NOW}), TaskId(0, 0)
    record = commit_record(
        CommitKind.BATCH,
        "app",
        "1",
        task,
        7,
        NOW,
        spans={"in": (0, 50)},
        stream_times=times,
        changelogs={},
        ends_before={},
    )
    searches = []

    def last_lost_writes(config, ends, application_id, wanted, lows, **_):
        searches.append(wanted)
        return dict.fromkeys(wanted, record)

    monkeypatch.setattr(facts, "committed_offsets", lambda *_: {})
    monkeypatch.setattr(facts, "last_commit_records", lambda *_, **__: {task: record})
    monkeypatch.setattr(facts, "oldest_writes", lambda *_, **__: {})
    monkeypatch.setattr(facts, "last_lost_writes", last_lost_writes)
    identities = SimpleNamespace(lost=lambda plan: {})
    witnesses = Witnesses(plan, Settings.load(), {}, Ends(), changelog_policies(plan), lambda: NOW, identities)
    (subtopology,) = plan.subtopologies
    (spec,) = subtopology.stores
    layout = value_signature(spec, value_layouts(subtopology)["w"])

    def copy_of(batch, changelog_offset, age_ms=0):
        offsets = {"in": 7 * batch + 1}
        checkpoint = StoreCheckpoint("app", "1", "w", layout, batch, NOW - age_ms, offsets, NOW, changelog_offset)
        return StateCopy(SourceOfState.LOCAL, checkpoint, "/state")

    found = witnesses.facts_for_local_stores([task])[task]
    lost_writes = LostWrites(witnesses, {task: found})
    return partial(replace(opener, plan=plan, witnesses=witnesses)._plan, found, lost_writes), copy_of, searches


@pytest.mark.parametrize(("batch", "changelog_offset"), [(7, 100), (7, 50), (6, 99), (6, 10)])
def test_should_not_search_for_lost_windows_when_the_local_store_is_used(shortened, batch, changelog_offset):
    """It is up to date, or only the rest of the changelog is read."""
    plan, copy_of, searches = shortened
    assert plan({"w": [copy_of(batch, changelog_offset)]}).stores["w"].kind is SourceOfState.LOCAL
    assert searches == []


@pytest.mark.parametrize("has_old_copy", [False, True])
def test_should_refuse_by_the_commits_when_the_whole_changelog_would_be_read(shortened, has_old_copy):
    plan, copy_of, searches = shortened
    with pytest.raises(StartRefused, match="windows that are still live may have been deleted"):
        plan({"w": [copy_of(6, 50, age_ms=60 * DAY_MS)] if has_old_copy else []})
    assert len(searches) == 1


def test_should_search_a_partition_of_the_commits_once_for_the_tasks_of_all_sub_topologies(opener, monkeypatch):
    """Two partitions are searched at the same time."""
    tasks = [TaskId(subtopology, partition) for subtopology in range(3) for partition in range(2)]
    searches, is_searching = [], threading.Barrier(2)

    def with_lost_writes(found):
        searches.append(sorted(found))
        is_searching.wait(30)
        return {task: SimpleNamespace(task=task, is_searched=True) for task in found}

    witnesses = SimpleNamespace(
        facts_for_local_stores=lambda tasks: {task: SimpleNamespace(task=task, is_searched=False) for task in tasks},
        with_lost_writes=with_lost_writes,
        evidence=lambda facts, copies: facts,
    )
    monkeypatch.setattr(task_opener, "plan_start", lambda found: found)
    monkeypatch.setattr(task_opener, "is_decided_by_lost_writes", lambda found, plan: True)
    monkeypatch.setattr(
        TaskOpener, "_open_one", lambda self, a, facts, lost_writes, *_: self._plan(facts, lost_writes, {})
    )
    opening = replace(opener, witnesses=witnesses, settings=SimpleNamespace(restore_threads=len(tasks)))
    assignments = [Assignment(task, TopicPartition(f"in-{task.subtopology}", task.partition), 1) for task in tasks]
    plans = opening.open(assignments, lambda _: True)
    assert [(plan.task, plan.is_searched) for plan in plans] == [(task, True) for task in tasks]
    assert sorted(searches) == [[task for task in tasks if task.partition == partition] for partition in range(2)]
