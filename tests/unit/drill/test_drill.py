"""The savepoint that a drill compares with, and the disk space without which it does not begin."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from tidemark.drill import drill as module
from tidemark.errors import CopyUnusable, PreflightFailed
from tidemark.names import TaskId, TopicPartition
from tidemark.operations import disk_space
from tidemark.recovery.evidence import Watermarks
from tidemark.savepoints.repository import SavepointRepository
from tidemark.store_sizes import TopicBytes
from tidemark.supervision.savepoint_ids import new_savepoint_id

NOW, HOUR = 1_700_000_000_000, 3_600_000


def test_should_compare_with_the_newest_savepoint_that_no_clock_that_was_ahead_has_named(monkeypatch, tmp_path):
    old, new, unreadable, ahead = (new_savepoint_id(NOW - hours * HOUR) for hours in (3, 2, 1, -48))
    repository = SavepointRepository(str(tmp_path), "app")
    for savepoint_id in (ahead, new, old, unreadable):
        repository.begin(savepoint_id, NOW)

    def saved_states(evidence, _repository, savepoint_id):
        if savepoint_id == unreadable:
            raise CopyUnusable("its manifest is missing")
        return [savepoint_id]

    monkeypatch.setattr(module, "saved_states", saved_states)
    context = SimpleNamespace(clients=SimpleNamespace(clock=lambda: NOW), evidence=None)
    reported = []
    drill = SimpleNamespace(context=context, report=reported.append)
    assert module._Course(drill, repository, None)._newest_savepoint() == [new]
    assert reported == ["a savepoint is skipped: its manifest is missing"]


CHANGELOG_BYTES, SAVED_BYTES = 9_000_000, 1_000
NEEDED = 2 * (CHANGELOG_BYTES + 2 * SAVED_BYTES)


@pytest.mark.parametrize(("free", "begins"), [(NEEDED - 1, False), (NEEDED, True)])
def test_should_not_begin_without_space_for_the_changelogs_and_twice_the_savepoint(monkeypatch, tmp_path, free, begins):
    """A few keys that are updated again and again make a large changelog of a small store."""
    tasks = TaskId(0, 0), TaskId(0, 1)
    spec = SimpleNamespace(name="n")
    partitions = {task: TopicPartition("app-n-changelog", task.partition) for task in tasks}
    witnesses = SimpleNamespace(
        settings=None, changelog_of=lambda task, _spec: partitions[task], logged_stores=lambda _task: [spec]
    )
    facts = {task: SimpleNamespace(changelogs={"n": Watermarks(100, 90_100)}) for task in tasks}
    sizes = TopicBytes(dict.fromkeys(partitions.values(), CHANGELOG_BYTES))
    monkeypatch.setattr(disk_space, "topic_bytes", lambda _topics, _settings: sizes)
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _folder: usage)
    copy = SimpleNamespace(bytes_to_copy=SAVED_BYTES)
    states = [SimpleNamespace(name=(task, "n"), copy=copy) for task in tasks]
    context = SimpleNamespace(evidence=SimpleNamespace(witnesses=witnesses, facts=lambda: facts))
    course = module._Course(SimpleNamespace(context=context), None, SimpleNamespace(folder=tmp_path / "drill"))
    if begins:
        course._require_room(states)
        return
    with pytest.raises(
        PreflightFailed, match=rf"about {NEEDED} bytes are needed in {tmp_path} .*, but {free} are free"
    ):
        course._require_room(states)
