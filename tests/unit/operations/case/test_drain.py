"""The wait until what was unprocessed before a change is committed."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import OutcomeUnknown
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.case import drain as module
from tidemark.recovery.evidence import Watermarks
from tidemark.recovery.facts import TaskFacts

TASK, PLACE = TaskId(0, 0), TopicPartition("in", 0)


class Evidence:
    """Answers with these committed offsets, one after the other, while records arrive. It reads no history of commits."""

    def __init__(self, *committed):
        self._committed, self._end = list(committed), 90

    def current_offsets(self):
        self._end += 10
        offset = self._committed.pop(0) if len(self._committed) > 1 else self._committed[0]
        committed = {PLACE: ClientPartition("in", 0, offset)}
        return {TASK: TaskFacts(TASK, committed, None, {PLACE: Watermarks(0, self._end)}, {})}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.0)


def test_should_wait_only_for_what_was_there_at_the_beginning():
    said = []
    module.drain(Evidence(40, 70, 100), 60, said.append)
    assert said == ["60 of the source offsets that waited are not committed yet", "what waited is committed"]


def test_should_say_what_still_waits_when_the_time_is_over():
    with pytest.raises(OutcomeUnknown, match="60 source offsets still wait after 0 s"):
        module.drain(Evidence(40), 0, lambda said: None)
