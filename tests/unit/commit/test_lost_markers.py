"""In which partitions `LostMarkers` aborts one more transaction, to end an aborted one whose marker is missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.commit import lost_markers
from tidemark.commit.lost_markers import LostMarkers
from tidemark.errors import BatchAborted, BrokersAway, OutcomeUnknown, PreflightFailed
from tidemark.kafka.offsets import PartitionEnd
from tidemark.names import TopicPartition
from tidemark.settings import Settings

A, B = TopicPartition("out", 0), TopicPartition("out", 1)


class Kafka:
    """Two partitions, their leaders, and one producer. `open_in` are those in which a transaction is open."""

    name = "stream-0"

    def __init__(self, monkeypatch):
        self.epochs, self.written = {A: 5, B: 5}, {A: 5, B: 5}
        self.open_in, self.left = set(), []
        self.has_aborted, self.calls, self.moves, self.fails = False, [], [], False
        facts = {"out": {number: SimpleNamespace(leader=1) for number in (0, 1)}}
        self.facts = facts["out"]
        monkeypatch.setattr(lost_markers, "describe_replicas", lambda *_: (frozenset({1}), facts))
        monkeypatch.setattr(
            lost_markers, "leader_epochs_at", lambda _settings, held: {p: self.written[p] for p in held}
        )
        monkeypatch.setattr(lost_markers, "left_by_aborted", lambda _name, led, away, _: self.left and [*away, *led])
        self.markers = LostMarkers(self, None, self, Settings.load(), [A, B])

    def stable(self, places):
        assert all(self.facts[place.partition].leader is not None for place in places)
        return {place: 10 if place in self.open_in else 15 for place in places}

    def of(self, places):
        return dict.fromkeys(places, 15)

    def with_epochs(self, places):
        return {place: PartitionEnd(15, self.epochs[place]) for place in places}

    def init(self, timeout_s):
        self.calls.append("init")

    def begin(self):
        self.has_aborted = False
        self.calls.append("begin")

    def send_many(self, topic, messages, partition):
        self.calls.append(partition)

    def flush(self):
        if self.fails:
            self.has_aborted = True
            raise BatchAborted("not acknowledged")

    def abort(self):
        self.has_aborted = True
        self.calls.append("abort")
        self.open_in.clear()
        if self.moves:
            # The leader changes again, and this marker is lost, too.
            self.epochs[A] += 1
            self.open_in.add(self.moves.pop())

    def attempt(self, *places):
        """Look for lost markers as a commit to these partitions does before it begins its transaction."""
        return self.markers.end_in(self.with_epochs(places))


@pytest.fixture
def kafka(monkeypatch):
    monkeypatch.setattr(lost_markers, "_ENDS_S", 0.0)
    monkeypatch.setattr(lost_markers, "_HELD_S", 0.0)
    return Kafka(monkeypatch)


def lost_in(kafka, place):
    """An attempt for this partition is aborted while its leader changes, and the marker is lost."""
    assert not kafka.attempt(place)
    kafka.has_aborted = True
    kafka.open_in.add(place)
    kafka.epochs[place] += 1


def test_should_end_what_is_open_where_the_leader_has_changed_since_the_aborted_attempt_began(kafka):
    lost_in(kafka, A)
    assert kafka.attempt(A, B)
    assert kafka.calls == ["begin", 0, "abort"]
    assert not kafka.attempt(A, B)


@pytest.mark.parametrize("why", ["the same leader", "not open", "committed"])
def test_should_add_nothing_elsewhere(kafka, why):
    lost_in(kafka, A)
    if why == "the same leader":
        kafka.epochs[A] = 5
    elif why == "not open":
        kafka.open_in.clear()
    else:
        kafka.has_aborted = False
    assert not kafka.attempt(A, B)
    assert kafka.calls == []


def test_should_look_again_when_the_leader_changes_while_it_ends_a_transaction(kafka):
    lost_in(kafka, A)
    kafka.moves = [A]
    assert kafka.attempt(A)
    assert kafka.attempt(A)
    assert not kafka.attempt(A)
    assert kafka.calls == ["begin", 0, "abort"] * 2


def test_should_remember_a_partition_until_a_batch_writes_to_it_or_its_transaction_has_ended(kafka):
    lost_in(kafka, A)
    assert not kafka.attempt(B)
    kafka.has_aborted = False
    kafka.fails = True
    with pytest.raises(BatchAborted):
        kafka.attempt(A)
    kafka.fails = False
    assert kafka.attempt(A)


@pytest.mark.parametrize("left", [True, False])
def test_should_end_at_a_start_what_the_aborted_transaction_of_the_process_before_has_left(kafka, left):
    kafka.open_in.add(A)
    kafka.epochs[A] = 6
    kafka.left = left
    kafka.moves = [A] if left else []
    kafka.markers.init(1)
    assert kafka.calls == ["init", *(["begin", 0, "abort"] if left else [])]
    assert kafka.attempt(A) is left


def test_should_end_with_the_next_commit_what_it_could_not_end_at_the_start(kafka):
    kafka.open_in.add(A)
    kafka.epochs[A], kafka.left, kafka.fails = 6, True, True
    kafka.markers.init(1)
    kafka.fails = False
    assert kafka.attempt(A)
    assert kafka.calls == ["init", "begin", 0, "begin", 0, "abort"]
    assert not kafka.attempt(A)


def test_should_not_initialise_before_it_can_end_everything(kafka):
    kafka.facts[0].leader = None
    kafka.left = True
    with pytest.raises(BrokersAway, match=r"no broker leads out\[0\]"):
        kafka.markers.init(1)
    assert kafka.calls == []
    kafka.left = False
    kafka.markers.init(1)
    assert kafka.calls == ["init"]


def test_should_refuse_a_command_before_it_initialises(kafka):
    kafka.open_in.add(A)
    kafka.epochs[A] = 6
    kafka.left = True
    with pytest.raises(PreflightFailed, match="start that instance, which ends it"):
        kafka.markers.init(1, ends_them=False)
    assert kafka.calls == []


def test_should_not_count_a_broker_as_a_leader_that_has_just_gone(kafka, monkeypatch):
    answered = kafka.stable

    def stable(places):
        if A in places:
            kafka.facts[0].leader = None
            raise OutcomeUnknown("no answer")
        return answered(places)

    monkeypatch.setattr(kafka, "stable", stable)
    kafka.markers.init(1)
    assert kafka.calls == ["init"]


def test_should_warn_when_nobody_knows_how_an_open_transaction_ends(kafka, caplog):
    kafka.open_in.add(A)
    kafka.epochs[A] = 6
    kafka.left = None
    kafka.markers.init(1)
    assert "a transaction is open in out[0]" in caplog.text
