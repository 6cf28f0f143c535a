"""What waits in the sources, and the wait until what was unprocessed before a change is committed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import OutcomeUnknown
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.case import drain as module
from tidemark.recovery.evidence import Watermarks
from tidemark.recovery.facts import TaskFacts

TASK, PLACE = TaskId(0, 0), TopicPartition("in", 0)
LEAD, SIDE = TopicPartition("lead", 1), TopicPartition("side", 1)


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


def facts(committed, recorded):
    """Both sources hold the offsets from 5 to 20."""
    record = None if recorded is None else SimpleNamespace(end_offsets=recorded)
    known = {place: ClientPartition(place.topic, place.partition, offset) for place, offset in committed.items()}
    return {TASK: TaskFacts(TASK, known, record, dict.fromkeys((LEAD, SIDE), Watermarks(5, 20)), {})}


CASES = [
    # (committed, in the last commit record, offsets that wait)
    ({LEAD: 20, SIDE: 20}, {"lead": 20, "side": 20}, 0),
    ({LEAD: 18, SIDE: 20}, {"lead": 18, "side": 20}, 2),
    # Brokers have deleted an offset, or all, because nothing was committed for 7 days.
    ({LEAD: 20}, {"lead": 20, "side": 20}, 0),
    ({}, {"lead": 20, "side": 19}, 1),
    # Nothing has ever been committed.
    ({}, None, 30),
]


@pytest.mark.parametrize(("committed", "recorded", "waiting"), CASES)
def test_should_count_what_waits_after_the_last_commit(committed, recorded, waiting):
    found = facts(committed, recorded)
    assert module.source_lag(found) == waiting
    evidence, reports = SimpleNamespace(current_offsets=lambda: found), []
    if waiting == 0:
        module.drain(evidence, 0, reports.append)
        assert reports == ["what waited is committed"]
    else:
        with pytest.raises(OutcomeUnknown, match=f"{waiting} source offsets still wait"):
            module.drain(evidence, 0, reports.append)
