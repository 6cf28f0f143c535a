"""The topic to which a replay sends a dead letter, or the reason for which it leaves it out."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tidemark.commit.dead_letter import OFFSET, PARTITION, REASON, SHORTENED, TOPIC, dead_letter_record
from tidemark.names import TopicPartition
from tidemark.operations.dead_letters import replay as module
from tidemark.operations.dead_letters.reader import (
    REPLAYED,
    DeadLetterFilter,
    ReplayMarker,
    StoredDeadLetter,
    letter_of,
)
from tidemark.operations.dead_letters.replay import PURGED, DeadLetterReplay
from tidemark.settings import Settings
from tidemark.tasks.update import REFUSED, UNPARSABLE, UNWRITABLE_KEY, DeadLetter
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


@pytest.mark.parametrize("limit", [20_000, 500])
def test_should_keep_a_records_own_headers_when_they_have_the_names_of_those_that_tidemark_adds(limit):
    """A record may have been a dead letter of another application, and its producer may use such a name for its own data."""
    own = ((REASON, b"theirs"), (OFFSET, b"99"), (SHORTENED, b"value"), ("tidemark.sink", b"theirs"), ("trace", None))
    letter = DeadLetter(UNPARSABLE, "in", 3, 17, b"k", b"{" * 300, own, 5, (("tidemark.error", b"no JSON"),))
    key, value, headers = dead_letter_record(letter, limit)
    found = letter_of(
        SimpleNamespace(
            topic=lambda: "app-dlq", partition=lambda: 0, offset=lambda: 40, timestamp=lambda: (1, 5),
            key=lambda: key, value=lambda: value, headers=lambda: headers,
        )
    )  # fmt: skip
    assert found.headers == own
    assert (found.reason, found.source, found.source_offset) == (UNPARSABLE, TopicPartition("in", 3), 17)
    assert (found.summary["tidemark.error"], "tidemark.sink" in found.summary) == ("no JSON", False)
    assert found.is_whole == (value == letter.value) == (limit > 500)


class Letters:
    """The dead letters of an application. Its sources still have every record."""

    topic, application_id = "app-dlq", "app"
    client = {}  # noqa: RUF012

    def __init__(self, *letters):
        self.letters = list(letters)

    def read(self, wanted):
        yield from filter(wanted.takes, list(self.letters))

    def message(self, source, offset):
        text = b"record %d" % offset
        return SimpleNamespace(key=lambda: b"k", value=lambda: text, timestamp=lambda: (1, 5), headers=lambda: [])

    def mark(self, offsets):
        marker = ReplayMarker(TopicPartition("app-dlq", 0), 50, 50)
        self.letters = [
            replace(each, marker=each.marker or (marker if each.offset in offsets else None)) for each in self.letters
        ]


class Broker:
    """A producer that keeps what it is told to send, and marks dead letters as replayed when it commits."""

    def __init__(self, letters):
        self.letters, self.sent, self.receipts = letters, [], []

    def init(self, stalled_after_s):
        pass

    begin = flush = abort = lambda self: None

    def send_many(self, topic, messages, partition):
        for message in messages:
            if (REASON, REPLAYED.encode()) in message.get("headers", ()):
                self.receipts += json.loads(message["value"])
            else:
                self.sent.append((topic, partition, message["value"]))

    def commit(self):
        self.letters.mark(self.receipts)


def a_letter(offset, record, reason=UNWRITABLE_KEY, partition=0, written_ms=1):
    """A dead letter of the record at offset `record` of the source."""
    summary = {REASON: reason, TOPIC: "in", PARTITION: "0", OFFSET: str(record)}
    return StoredDeadLetter(TopicPartition("app-dlq", partition), offset, written_ms, b"k", b"{}", (), summary)


@pytest.fixture
def replay(monkeypatch, tmp_path):
    """`replay(broker, wanted, limit)` runs one replay."""
    topology = Topology("app")
    topology.stream("in", schema="id STRING", key="id").group_by_key().count(name="n", store="n").to("out")
    limits = SimpleNamespace(producer_config=dict)
    destinations = SimpleNamespace(absence=lambda letter: None, refusal=lambda topic, message: None, limits=limits)
    monkeypatch.setattr(module.Destinations, "of", lambda *_: destinations)

    def run(broker, wanted, limit=None):
        monkeypatch.setattr(module, "TransactionalProducer", lambda *_: broker)
        settings = Settings.load(var_dir=tmp_path)
        replays = DeadLetterReplay(topology.plan(), broker.letters, settings, lambda point: None)
        return replays.run(wanted, limit, lambda done: None).sent

    return run


@pytest.mark.parametrize("at_once", [1, 2, 500])
def test_should_send_a_record_once_however_many_dead_letters_it_has(replay, monkeypatch, at_once):
    """Also if they are in several transactions."""
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    broker = Broker(Letters(a_letter(1, 7), a_letter(2, 7), a_letter(3, 8), a_letter(4, 7)))
    assert replay(broker, DeadLetterFilter(reason=UNWRITABLE_KEY)) == 4
    assert broker.sent == [("in", 0, b"record 7"), ("in", 0, b"record 8")]
    assert broker.receipts == [1, 2, 3, 4]


def test_should_not_send_a_record_again_that_an_earlier_replay_has_sent(replay):
    """Whatever the limit and the reason of that replay, and wherever the dead letter is that it chose."""
    broker = Broker(Letters(a_letter(1, 7, REFUSED), a_letter(2, 7), a_letter(3, 7), a_letter(4, 8)))
    wanted = DeadLetterFilter(reason=UNWRITABLE_KEY)
    assert replay(broker, wanted, limit=1) == 1
    assert replay(broker, DeadLetterFilter(reason=REFUSED)) == 1
    assert replay(broker, wanted) == 2
    assert broker.sent == [("in", 0, b"record 7"), ("in", 0, b"record 8")]
    assert sorted(broker.receipts) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("letter", "is_sent"),
    [
        # In the partition of the marker, whose offset and time are 50, no clock decides.
        (a_letter(49, 5, written_ms=99), False),
        (a_letter(51, 5, written_ms=1), True),
        (a_letter(99, 5, partition=1, written_ms=49), False),
        (a_letter(1, 5, partition=1, written_ms=51), True),
    ],
)
def test_should_send_a_record_that_has_the_place_of_another_one_that_an_earlier_replay_has_sent(
    replay, letter, is_sent
):
    """The source topic was created again after that replay, so a dead letter that comes later is of a new record."""
    broker = Broker(Letters(a_letter(1, 5)))
    wanted = DeadLetterFilter(reason=UNWRITABLE_KEY)
    assert replay(broker, wanted) == 1
    broker.sent.clear()
    broker.letters.letters.append(letter)
    assert replay(broker, wanted) == 1
    assert broker.sent == ([("in", 0, b"record 5")] if is_sent else [])
