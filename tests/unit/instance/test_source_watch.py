"""The look whether source topics are still those of the start: ids, partitions, and answers that do not come."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidemark.errors import OutcomeUnknown, StartRefused
from tidemark.instance import source_watch
from tidemark.instance.source_watch import SourceWatch
from tidemark.topology.builder import Topology

UNKNOWN = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))


def a_plan(routed=()):
    topology = Topology("app")
    table = topology.table("rows", schema="id STRING, since BIGINT", key="id", timestamp="since", store="rows")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    stream.left_join(table).to("out")
    return dataclasses.replace(topology.plan(), routed=tuple(routed))


def described(topic_id, partitions):
    answer = Future()
    answer.set_result(SimpleNamespace(topic_id=topic_id, partitions=list(range(partitions))))
    return answer


def failed(error):
    answer = Future()
    answer.set_exception(error)
    return answer


class Brokers:
    """Answers about the topics, and a clock."""

    def __init__(self, plan=None):
        self.answers = {"in": described("id-in", 2), "rows": described("id-rows", 2)}
        self.asked = []
        self.now_s = 100.0
        ids, partitions = {"in": "id-in", "rows": "id-rows", "out": "id-out"}, {"in": 2, "rows": 2, "out": 2}
        self.watch = SourceWatch(plan or a_plan(), ids, partitions, self._ask, lambda: self.now_s)

    def _ask(self, topics):
        self.asked.append((self.now_s, topics))
        return {topic: self.answers[topic] for topic in topics}

    def look(self):
        self.watch.begin()
        self.watch.require_unchanged()


def test_should_ask_about_all_sources_at_most_once_per_second():
    brokers = Brokers()
    for now_s in (100.0, 100.999, 101.0, 101.5):
        brokers.now_s = now_s
        brokers.look()
    assert brokers.asked == [(100.0, ["in", "rows"]), (101.0, ["in", "rows"])]


@pytest.mark.parametrize("topic", ["in", "rows"])
def test_should_end_when_a_source_was_created_again(topic):
    brokers = Brokers()
    brokers.answers[topic] = described("another", 2)
    with pytest.raises(OutcomeUnknown, match=f"source topic {topic} was deleted and created again"):
        brokers.look()


@pytest.mark.parametrize("topic", ["in", "rows"])
def test_should_refuse_a_source_with_more_partitions(topic):
    brokers = Brokers()
    brokers.answers[topic] = described(f"id-{topic}", 3)
    with pytest.raises(StartRefused, match=f"{topic} now has more than its 2 partitions.*tidemark rescale run"):
        brokers.look()


def test_should_start_again_with_more_partitions_of_a_routed_source():
    brokers = Brokers(a_plan(routed=["rows"]))
    brokers.answers["rows"] = described("id-rows", 3)
    with pytest.raises(OutcomeUnknown, match="rows has more partitions now"):
        brokers.look()


def test_should_continue_when_a_broker_does_not_know_a_topic():
    brokers = Brokers()
    brokers.answers["in"] = failed(UNKNOWN)
    brokers.look()
    brokers.now_s += 1
    brokers.look()
    assert len(brokers.asked) == 2


def test_should_wait_once_for_an_answer_and_compare_it_when_it_comes(monkeypatch, caplog):
    monkeypatch.setattr(source_watch, "_ANSWER_S", 0.01)
    brokers = Brokers()
    late = brokers.answers["in"] = Future()
    for _ in range(3):
        brokers.now_s += 1
        brokers.look()
    assert (len(brokers.asked), caplog.text.count("have not described")) == (1, 1)
    late.set_result(SimpleNamespace(topic_id="another", partitions=[0, 1]))
    with pytest.raises(OutcomeUnknown, match="created again"):
        brokers.watch.begin()
