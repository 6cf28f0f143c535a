"""What reading does while the brokers of its sources do not answer, without brokers and without Spark."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from spark_jobs import sliced_read
from spark_jobs.sliced_read import SlicedReader

from tidemark.errors import OutcomeUnknown
from tidemark.instance.hand_over import HandOver
from tidemark.instance.source import SourceBatch
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.topology.builder import Topology

PLACE = TopicPartition("in", 0)
TIMED_OUT, MOVED = KafkaError(KafkaError._TIMED_OUT), KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)

pytestmark = pytest.mark.timeout(120)


class ScriptedEnds:
    """End offsets from a script, of which the last answer is repeated: numbers, or errors of Kafka."""

    def __init__(self, *answers, written=None):
        self.answers = list(answers)
        self.written = written

    def stable(self, _places):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            return {PLACE: answer}
        raise OutcomeUnknown("failed to list the offsets") from KafkaException(answer)

    def of(self, places):
        return dict.fromkeys(places, self.written)


def make_reader(*answers, written=None):
    topology = Topology("away")
    topology.stream("in", schema="id STRING", key="id").to("out")
    (subtopology,) = topology.plan().subtopologies
    out = HandOver()
    reads = SimpleNamespace(
        times=None,
        tables=lambda _starts, _ends: [],
        batches=lambda starts, ends, tables: [SourceBatch(0, starts, ends, tables, [])],
    )
    settings = Settings.load(commit_interval_ms=20)
    return SlicedReader(settings, subtopology, reads, ScriptedEnds(*answers, written=written), out), out


@contextmanager
def reading(reader, out, start):
    thread = threading.Thread(target=reader.run, args=({PLACE: start}, BatchSize(100)))
    thread.start()
    try:
        yield
    finally:
        out.stopped.set()
        thread.join(60)


def test_should_continue_when_brokers_answer_again():
    reader, out = make_reader(5, TIMED_OUT, MOVED, 8)
    with reading(reader, out, 0):
        assert [out.take(20).ends[PLACE] for _ in range(2)] == [5, 8]


def test_should_count_the_time_without_an_answer_from_the_first_one_that_is_missing(monkeypatch):
    monkeypatch.setattr(sliced_read, "_AWAY_S", 0.5)
    monkeypatch.setattr(sliced_read, "_LOST_S", 0.5)
    reader, out = make_reader(5, 6, 7, TIMED_OUT, 3, 9, written=3)
    with reading(reader, out, 0):
        assert out.take(20).ends[PLACE] == 5
        # The reader waits meanwhile, for longer than both limits, because a batch is waiting already.
        threading.Event().wait(1.5)
        assert [out.take(20).ends[PLACE] for _ in range(3)] == [6, 7, 9]


def test_should_wait_for_an_open_transaction_before_the_offset_to_be_read(monkeypatch):
    monkeypatch.setattr(sliced_read, "_LOST_S", 0.2)
    reader, out = make_reader(3, *[3] * 30, 9, written=8)
    with reading(reader, out, 7):
        assert out.take(20).ends[PLACE] == 9


def test_should_end_when_brokers_stay_away(monkeypatch):
    monkeypatch.setattr(sliced_read, "_AWAY_S", 0.2)
    reader, _ = make_reader(TIMED_OUT)
    with pytest.raises(OutcomeUnknown, match="failed to list the offsets"):
        reader.run({PLACE: 0}, BatchSize(100))


def test_should_end_at_once_when_the_topic_does_not_exist():
    reader, _ = make_reader(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(OutcomeUnknown, match="failed to list the offsets"):
        reader.run({PLACE: 0}, BatchSize(100))


def test_should_end_when_the_records_to_be_read_are_gone(monkeypatch):
    monkeypatch.setattr(sliced_read, "_LOST_S", 0.2)
    reader, _ = make_reader(3, written=3)
    with pytest.raises(OutcomeUnknown, match=r"in\[0\] ends at offset 3, and is to be read from 7 on"):
        reader.run({PLACE: 7}, BatchSize(100))
