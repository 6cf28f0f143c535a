"""The savepoint that a drill compares with."""

from __future__ import annotations

from types import SimpleNamespace

from tidemark.drill import drill as module
from tidemark.errors import CopyUnusable
from tidemark.savepoints.repository import SavepointRepository
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
