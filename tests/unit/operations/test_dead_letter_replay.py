"""The topic to which a replay sends a dead letter, or the reason for which it leaves it out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.names import TopicPartition
from tidemark.operations.dead_letters.reader import DeadLetterFilter
from tidemark.operations.dead_letters.replay import PURGED, DeadLetterReplay
from tidemark.tasks.update import REFUSED
from tidemark.topology.builder import Topology


@pytest.mark.parametrize("is_between", [True, False])
def test_should_say_why_the_record_behind_a_refused_row_is_gone(is_between):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, other STRING", key="id")
    stream.group_by("other").count(name="n", store="n").to("out")
    plan = topology.plan()
    (between,) = plan.repartition_topics
    replay = DeadLetterReplay(plan, SimpleNamespace(message=lambda place, offset: None), None, None)
    source = TopicPartition(between if is_between else "in", 0)
    letter = SimpleNamespace(reason=REFUSED, source=source, source_offset=3, is_whole=True)
    found = replay._destination(letter, DeadLetterFilter(reason=REFUSED))
    assert found == (PURGED if is_between else "its original record is gone")
