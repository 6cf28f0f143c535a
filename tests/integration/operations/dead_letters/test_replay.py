"""Dead letters on a real broker: found by their fields, replayed once each, deleted by time."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from tests.support.truth.topics import read_all
from typer.testing import CliRunner

from tidemark.cli import dlq as command
from tidemark.cli.main import build
from tidemark.commit.dead_letter import dead_letter_record
from tidemark.commit.producer import TransactionalProducer
from tidemark.errors import ApplicationHeld, ProducerFenced
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.preflight import preflight
from tidemark.kafka.record_sizes import MAX_MESSAGE_BYTES, size_limits, topic_limits
from tidemark.kafka.topics import ensure_user_topics
from tidemark.names import DESCRIPTION_KEY, topology_topic
from tidemark.operations.dead_letters.destinations import Destinations
from tidemark.operations.dead_letters.reader import DeadLetterFilter, DeadLetterReader
from tidemark.operations.dead_letters.replay import PROCESSED, REPLAYED_BEFORE, DeadLetterReplay, purge
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.processes import wait_until
from tidemark.registry.description import describe_state
from tidemark.supervision.hold import Hold, release_hold, take_hold
from tidemark.tasks.update import REFUSED, TOO_LARGE, UNWRITABLE_KEY, DeadLetter
from tidemark.topology.builder import Topology

pytestmark = pytest.mark.broker

AT = time.time_ns() // 1_000_000 - 3_600_000
"""Recent enough for the brokers to keep the records."""
ALL = DeadLetterFilter()


class Killed(BaseException):
    """Simulates the death of the process at this point."""


class Bench:
    """An application that has written letters: of each of its partitions two unreadable records, and one of each other kind."""

    def __init__(self, settings, admin, unique):
        topology = Topology(unique("app"))
        self.source, self.sink = unique("in"), unique("out")
        topology.stream(self.source, schema="id STRING", key="id").group_by_key().count(name="n", store="n").to(
            self.sink
        )
        self.plan, self.settings = topology.plan(), settings
        ensure_user_topics(self.plan, settings, admin)
        preflight(self.plan, settings, admin)
        self.client = librdkafka_config(settings)
        self.limits = size_limits(self.plan, settings, admin)
        self.app = self.plan.application_id
        feeder = Producer(self.client)
        feeder.produce(self.source, b"refused", b"k", 2, timestamp=AT, headers=[("own", b"r")])
        feeder.produce(self.source, b"{" * 900_000, b"k", 3, timestamp=AT)
        assert feeder.flush(60) == 0
        own = (("own", b"h"),)
        sink = (("tidemark.sink", self.sink.encode()),)
        self.write(
            *(
                DeadLetter("unparsable", self.source, p, 10 + n, b"k%d" % p, b"{%d" % n, own, AT + n)
                for p in (0, 1) for n in (0, 1)
            ),
            DeadLetter(REFUSED, self.source, 2, 0, b"k", b'{"id": "refused"}', ()),
            DeadLetter(TOO_LARGE, self.source, 2, 5, b"k", b"large", own, AT, sink),
            DeadLetter("unparsable", self.source, 3, 0, b"k", b"{" * 900_000, (("h", b"h" * 200_000),), AT),
            DeadLetter("unparsable", self.source, 3, 9, b"k", b"{" * 2_000_000, (), AT),
        )  # fmt: skip
        self.letters = DeadLetterReader(self.app, settings)

    def write(self, *letters):
        producer = TransactionalProducer(self.client, f"{self.app}-0", 10_000, 1000)
        producer.init(60)
        producer.begin()
        for letter in letters:
            producer.send_one(f"{self.app}-dlq", *dead_letter_record(letter, self.limits.of(f"{self.app}-dlq")))
        producer.flush()
        producer.commit()

    def replay(self, wanted=ALL, limit=None, probe=lambda point: None):
        return DeadLetterReplay(self.plan, self.letters, self.settings, probe).run(wanted, limit, lambda done: None)

    def limit(self, topic, largest):
        """Set `max.message.bytes` of a topic."""
        apply_changes([TopicChange(topic, MAX_MESSAGE_BYTES, "", str(largest))], self.settings, self.letters.admin)
        assert wait_until(
            lambda: topic_limits([topic], self.settings, self.letters.admin).of(topic) == largest,
            60,
        )

    def there(self, topic):
        found = read_all(self.settings.bootstrap_servers, [topic])
        return sorted(
            (place[1], row.key, (row.value or b"")[:9], row.timestamp_ms, row.headers)
            for place, rows in found.items()
            for row in rows
        )


@pytest.fixture
def bench(settings, admin, unique):
    return Bench(settings, admin, unique)


OWN = (("own", b"h"),)


def test_should_replay_each_dead_letter_once_whatever_is_selected_next(bench):
    before = bench.there(bench.source)
    done = bench.replay(DeadLetterFilter(topic=bench.source, partition=1))
    again = [(1, b"k1", b"{0", AT, OWN), (1, b"k1", b"{1", AT + 1, OWN)]
    assert (done.sent, list(done.left)) == (2, [])
    assert bench.there(bench.source) == sorted(before + again)
    done = bench.replay()
    # The shortened letter whose record is there is whole again; of the other one nothing is left to send.
    again += [(0, b"k0", b"{0", AT, OWN), (0, b"k0", b"{1", AT + 1, OWN), (3, b"k", b"{" * 9, AT, ())]
    assert bench.there(bench.source) == sorted(before + again)
    assert [row[1:] for row in bench.there(bench.sink)] == [(b"k", b"large", AT, OWN)]
    assert (done.sent, done.left[REPLAYED_BEFORE], done.left[PROCESSED[REFUSED]], done.left.total()) == (4, 2, 1, 4)
    done = bench.replay(DeadLetterFilter(reason=REFUSED))
    assert bench.there(bench.source) == sorted([*before, *again, (2, b"k", b"refused", AT, (("own", b"r"),))])
    assert bench.replay(DeadLetterFilter(reason=REFUSED)).left == {REPLAYED_BEFORE: 1}
    assert sum(letter.is_replayed for letter in bench.letters.read(ALL)) == 7


@pytest.mark.parametrize("point", ["replay-letters", "replay-receipts", "replay-commit"])
def test_should_send_nothing_twice_and_lose_nothing_when_it_is_killed(bench, point):
    def kill(passed):
        if passed == point:
            raise Killed

    before = bench.there(bench.source)
    with pytest.raises(Killed):
        bench.replay(limit=3, probe=kill)
    bench.replay()
    values = [row[2] for row in bench.there(bench.source) if row not in before]
    assert sorted(values) == sorted([b"{0", b"{1"] * 2)
    assert len(bench.there(bench.source)) == len(before) + 5
    assert len(bench.there(bench.sink)) == 1


def test_should_fence_another_replay_that_runs_at_the_same_time(bench):
    def overtaken(point):
        if point == "replay-receipts":
            bench.replay()

    before = bench.there(bench.source)
    with pytest.raises(ProducerFenced):
        bench.replay(probe=overtaken)
    assert len(bench.there(bench.source)) == len(before) + 5


def test_should_replay_the_others_when_a_destination_would_refuse_a_letter_or_is_gone(bench, unique):
    sink, gone = (("tidemark.sink", bench.sink.encode()),), unique("gone")
    bench.write(
        DeadLetter(TOO_LARGE, bench.source, 0, 6, b"k", b"l" * 3_000, (), AT, sink),
        DeadLetter(TOO_LARGE, bench.source, 0, 7, b"k", b"gone", (), AT, (("tidemark.sink", gone.encode()),)),
        DeadLetter("unparsable", bench.source, 99, 0, b"k", b"nowhere", (), AT),
        DeadLetter("unparsable", gone, 0, 0, b"k", b"gone", (), AT),
        DeadLetter("unparsable", bench.source, 0, 8, b"k", b"last", (), AT),
    )
    bench.limit(bench.sink, 2_000)
    done = bench.replay()
    assert done.sent == 7
    assert b"last" in [row[2] for row in bench.there(bench.source)]
    assert [row[2] for row in bench.there(bench.sink)] == [b"large"]
    assert done.left[f"topic {gone} does not exist: create it, then replay again"] == 2
    assert done.left[f"topic {bench.source} has no partition 99: add partitions to it, then replay again"] == 1
    (raised,) = [why for why in done.left if f"larger than topic {bench.sink} accepts: raise it with" in why]
    bench.limit(bench.sink, int(re.search(r"max\.message\.bytes=(\d+)", raised)[1]))
    assert bench.replay().sent == 1
    assert [row[2] for row in bench.there(bench.sink)] == [b"large", b"l" * 9]


def test_should_send_the_record_of_an_output_whose_key_could_not_be_written_only_on_request(bench):
    """With the bytes of its own key: the letter is the output, with the text of that key."""
    feeder = Producer(bench.client)
    feeder.produce(bench.source, b"{}", bytes(8), 1, timestamp=AT)
    assert feeder.flush(60) == 0
    offset = len([row for row in bench.there(bench.source) if row[0] == 1]) - 1
    bench.write(DeadLetter(UNWRITABLE_KEY, bench.source, 1, offset, b"0", b'{"n": 1}', ()))
    wanted = DeadLetterFilter(partition=1, reason=UNWRITABLE_KEY)
    assert bench.replay(DeadLetterFilter(partition=1)).left == {PROCESSED[UNWRITABLE_KEY]: 1}
    before = bench.there(bench.source)
    assert bench.replay(wanted).sent == 1
    assert bench.there(bench.source) == sorted([*before, (1, bytes(8), b"{}", AT, ())])


def test_should_leave_out_letters_to_a_topic_that_a_rescale_has_replaced(bench, create_topic):
    now = replace(describe_state(bench.plan, {bench.source: 4}), routing=2)
    old, new = (create_topic(replace(now, routing=n).routed_topic(bench.source)) for n in (1, 2))
    feeder = Producer(bench.client)
    feeder.produce(topology_topic(bench.app), now.to_bytes(), DESCRIPTION_KEY)
    assert feeder.flush(60) == 0
    bench.write(
        *(
            DeadLetter(TOO_LARGE, bench.source, 0, 6, b"k", b"large", (), AT, (("tidemark.sink", topic.encode()),))
            for topic in (old, new, f"{bench.app}-deleted-repartition")
        ),
        DeadLetter(REFUSED, old, 0, 0, b"k", b"{}", ()),
    )
    limits = Destinations.of(bench.plan, bench.letters, ALL, bench.settings).limits
    assert {bench.source, bench.sink, bench.letters.topic, new} == limits.by_topic.keys()
    done = bench.replay()
    assert (done.sent, len(bench.there(old)), len(bench.there(new))) == (7, 0, 1)
    left = {why.split()[1]: count for why, count in done.left.items() if "is not read any more" in why}
    assert left == {old: 2, f"{bench.app}-deleted-repartition": 1}


def test_should_refuse_to_replay_while_another_operation_holds_the_application(bench):
    bench.write(*(DeadLetter("unparsable", bench.source, 1, n, b"k", b"many", (), AT) for n in range(500)))

    def take(point):
        if point == "replay-commit":
            take_hold(bench.settings.var_dir, bench.app, Hold("c1", "a rescale", 5))

    held = "no dead letter is replayed while .* is held by c1: a rescale; replay again when that has ended"
    before = len(bench.there(bench.source))
    with pytest.raises(ApplicationHeld, match=held):
        bench.replay(probe=take)
    assert len(bench.there(bench.source)) + len(bench.there(bench.sink)) == before + 500
    with pytest.raises(ApplicationHeld, match=held):
        bench.replay()
    release_hold(bench.settings.var_dir, bench.app, "c1")
    assert bench.replay().sent == 6


def test_should_replay_many_small_letters_to_a_topic_that_accepts_no_large_batch(bench):
    values = [b"%04d" % number * 250 for number in range(200)]
    bench.write(*(DeadLetter("unparsable", bench.source, 1, n, b"k", v, (), AT) for n, v in enumerate(values)))
    bench.limit(bench.source, 20_000)
    assert bench.replay(DeadLetterFilter(partition=1, topic=bench.source)).sent == 202
    assert [row[2] for row in bench.there(bench.source) if row[2][:4].isdigit()] == [value[:9] for value in values]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (ALL, 8),
        (DeadLetterFilter(reason="unparsable"), 6),
        (DeadLetterFilter(partition=2), 2),
        (DeadLetterFilter(topic="other"), 0),
        (DeadLetterFilter(since_ms=AT), 8),
        (DeadLetterFilter(until_ms=AT), 0),
    ],
)
def test_should_find_dead_letters_by_their_fields(bench, wanted, count):
    found = list(bench.letters.read(wanted))
    assert len(found) == count
    assert len(list(bench.letters.read(wanted, limit=1))) == min(1, count)


def test_should_delete_dead_letters_from_before_a_time(bench):
    written = [letter.written_ms for letter in bench.letters.read(ALL)]
    assert purge(bench.letters, min(written)) == {}
    assert sum(purge(bench.letters, int(time.time() * 1000) + 1).values()) >= 8
    assert list(bench.letters.read(ALL)) == []
    assert purge(bench.letters, int(time.time() * 1000) + 1) == {}


def test_should_keep_the_last_dead_letter_when_no_transaction_ends_after_it(bench):
    """This is so under at_least_once: a partition that was emptied may end earlier after all brokers crash."""
    producer = Producer(bench.client)
    for _ in range(2):
        producer.produce(bench.letters.topic, b"{", b"k", 0, headers=[("tidemark.reason", b"unparsable")])
    assert producer.flush(60) == 0
    purge(bench.letters, int(time.time() * 1000) + 60_000)
    (kept,) = bench.letters.read(ALL)
    assert kept.offset == bench.letters.ends.of([kept.place])[kept.place] - 1


def test_should_list_show_replay_and_purge_from_the_command_line(bench, monkeypatch):
    monkeypatch.setattr(command, "_letters", lambda *_: bench.letters)
    monkeypatch.setattr(command, "load", lambda _: SimpleNamespace(plan=lambda: bench.plan))
    monkeypatch.setattr(command.Settings, "load", lambda: bench.settings)

    def run(*arguments, code=0):
        done = CliRunner().invoke(build(), ["dlq", *arguments])
        assert done.exit_code == code, done.output
        return done.stdout

    (letter,) = json.loads(run("list", "x", "--json", "--reason", TOO_LARGE))
    details = letter["details"]
    assert (details["sink"], details["partition"], details["offset"], letter["is_replayed"]) == (
        bench.sink,
        "2",
        "5",
        False,
    )
    place = letter["letter"]
    assert "value: large" in run("show", "x", place)
    run("show", "x", "0:999999", code=1)
    assert "unparsable" in run("list", "x")
    assert "1 dead letters replayed" in run("replay", "x", "--reason", TOO_LARGE)
    assert "replayed" in run("show", "x", place)
    run("list", "x", "--since", "nonsense", code=2)
    assert "deleted" in run("purge", "x", "--until", "now", "--yes")
