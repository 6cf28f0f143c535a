"""The end of a bounded read: the first records of the sequence in which Kafka Streams would take them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tidemark.instance.slices import NO_TIME, Slices, UnreadRecords, choose_ends, shares_of
from tidemark.names import TopicPartition
from tidemark.topology.plan import Source, SubTopology

MANY = 1_000_000


def known(*times, beyond=0, start=0):
    """Records at consecutive offsets, all known but the last `beyond`."""
    end = start + len(times)
    offsets = np.arange(start, end, dtype=np.int64)
    return UnreadRecords(start, end, end + beyond, offsets, np.array(times, dtype=np.int64))


def taken(sources, most=MANY):
    return choose_ends(sources, most).ends


@pytest.mark.parametrize(
    ("why", "big", "small", "ends"),
    [
        ("all is known: nothing limits", known(10, 20, 30), known(99), (3, 1)),
        ("newer than what the big one has reached", known(10, 20, 30, beyond=1), known(31), (3, 0)),
        ("equal: the second source waits for the first", known(10, 20, 30, beyond=1), known(30), (3, 0)),
        ("older than what the big one has reached", known(10, 20, 30, beyond=1), known(29), (3, 1)),
        ("equal: the first source does not wait for the second", known(30), known(30, beyond=1), (1, 1)),
        ("newer: the first source waits for the second", known(31), known(30, beyond=1), (0, 1)),
        ("cut inside", known(10, 20, 30, 40), known(5, 25, beyond=9), (2, 2)),
        ("both go on: the one that is least far limits", known(10, 50, beyond=1), known(20, 40, beyond=1), (1, 2)),
        ("both equally far: the first one limits", known(10, 50, beyond=1), known(20, 50, beyond=1), (2, 1)),
        ("nothing known of one yet", known(10, 20), known(beyond=5), (0, 0)),
        ("an empty one is passed over", known(10, 20), known(), (2, 0)),
        ("older than one before it: as old as that", known(10, 40, 15, 41), known(20, 40, beyond=1), (3, 2)),
        ("reached is the newest, not the last", known(35), known(20, 40, 5, beyond=1), (1, 3)),
    ],
)  # fmt: skip
def test_should_not_go_beyond_what_another_source_with_unread_records_has_reached(why, big, small, ends):
    assert taken([big, small]) == ends, why


@pytest.mark.parametrize(
    ("most", "ends"),
    [
        (0, (0, 0)),
        (1, (1, 0)),
        (2, (1, 1)),
        (3, (2, 1)),
        (4, (3, 1)),
        (5, (3, 2)),
        (6, (3, 3)),
        (7, (4, 3)),
        (8, (4, 3)),
    ],
)
def test_should_take_the_first_records_of_the_merged_sequence(most, ends):
    assert taken([known(1, 3, 3, 9), known(2, 3, 3)], most) == ends


def test_should_take_a_dead_letter_with_the_record_before_it():
    """A dead letter has no timestamp: it is taken as soon as it is the next record, where Kafka Streams drops it."""
    bad = known(NO_TIME, 10, NO_TIME, 30, NO_TIME)
    assert taken([bad, known(9, beyond=1)]) == (1, 1)
    assert taken([bad, known(20, beyond=1)]) == (3, 1)
    assert taken([bad, known(31, beyond=1)]) == (5, 1)
    assert taken([known(NO_TIME, NO_TIME, beyond=1), known(0)]) == (2, 0)
    assert taken([bad, known(9)], most=3) == (2, 1), "it is a record of the batch"


def test_should_take_offsets_without_a_record_with_the_record_before_them():
    """Such offsets belong to transaction markers and to records that compaction has removed."""
    gaps = UnreadRecords(0, 10, 11, np.array([2, 5]), np.array([10, 30]))
    assert taken([gaps, known(20, 40)]) == (10, 1)
    assert taken([gaps, known(20, 40)], most=2) == (5, 1)
    nothing = UnreadRecords(0, 10, 11, np.array([], dtype=np.int64), np.array([], dtype=np.int64))
    assert taken([nothing, known(0)]) == (10, 0)


@pytest.mark.parametrize(("most", "blocking"), [(3, False), (4, False), (5, True)])
def test_should_say_when_more_times_are_needed(most, blocking):
    assert choose_ends([known(1, 2, 3, beyond=1), known(1, 4)], most).blocking is blocking


def streams_order(sources):
    """Kafka Streams' `PartitionGroup`: always the smallest head, and of equal ones the first source's."""
    at, order = [0] * len(sources), []
    while any(at[i] < len(times) for i, times in enumerate(sources)):
        _, chosen = min((times[at[i]], i) for i, times in enumerate(sources) if at[i] < len(times))
        order.append(chosen)
        at[chosen] += 1
    return order


def reading(*topics):
    """A sub-topology that reads these topics; a name that begins with `table` is a table's."""
    sources = tuple(Source(topic, topic, (), "key", "ts", topic.startswith("table")) for topic in topics)
    return SubTopology(0, sources, ())


class Broker:
    """Records in lists of times; None is a marker, an offset without a record."""

    def __init__(self, times):
        self.times = times
        self.looked_up = []

    def ends(self):
        return {place: len(times) for place, times in self.times.items()}

    def look_up(self, spans):
        self.looked_up.append(dict(spans))
        found = {}
        for place, (start, end) in spans.items():
            there = [(o, t) for o, t in enumerate(self.times[place][start:end], start) if t is not None]
            found[place] = tuple(np.array([row[i] for row in there], dtype=np.int64) for i in (0, 1))
        return found


def slices_of(broker, subtopology, most):
    slices = Slices(subtopology, dict.fromkeys(broker.times, 0), most, broker.look_up)
    while slices.unread(broker.ends()):
        yield slices.next(broker.ends())


@pytest.mark.parametrize("seed", range(40))
def test_should_cut_the_sequence_that_kafka_streams_takes(seed, monkeypatch):
    """Each slice is a prefix of that sequence, wherever batches and look-ups end."""
    chance = random.Random(seed)
    monkeypatch.setattr("tidemark.instance.slices.LOOK_AHEAD_RECORDS", chance.choice([1, 7, 1000]))
    most = chance.choice([1, 2, 5, 30])
    names = ["t0", "t1", "t2"]
    sub = reading(*names)
    times = {
        TopicPartition(name, 0): [
            chance.choice([NO_TIME, chance.randrange(30) + i // 3]) for i in range(chance.choice([0, 3, 40]))
        ]
        for name in names
    }
    order = streams_order([times[TopicPartition(name, 0)] for name in names])
    done = dict.fromkeys(times, 0)
    for cut in slices_of(Broker(times), sub, most):
        assert cut.starts == done
        done = cut.ends
        prefix = order[: sum(done.values())]
        assert {place: prefix.count(int(place.topic[1])) for place in done} == done
        assert sum(cut.ends.values()) - sum(cut.starts.values()) <= most


def test_should_not_read_a_small_source_ahead_of_a_big_one():
    """The measured case had 12 000 pulses, 20 check-ins that are newer, and batches of 1000."""
    pulses, patients = TopicPartition("pulses", 0), TopicPartition("table-patients", 0)
    broker = Broker({pulses: list(range(12_000)), patients: list(range(20_000, 20_020))})
    cuts = list(slices_of(broker, reading("pulses", "table-patients"), 1000))
    ends = [(cut.ends[pulses], cut.ends[patients]) for cut in cuts]
    assert ends == [*((n, 0) for n in range(1000, 12_001, 1000)), (12_000, 20)]
    assert len(broker.looked_up) == 1, "times are looked up for many slices at once"


def test_should_look_up_nothing_where_there_is_one_source():
    places = [TopicPartition("t0", number) for number in range(3)]
    broker = Broker(dict(zip(places, ([1] * 10, [1] * 50, []), strict=True)))
    cuts = list(slices_of(broker, reading("t0"), 30))
    assert [tuple(cut.ends[p] for p in places) for cut in cuts] == [(5, 25, 0), (10, 50, 0)]
    assert broker.looked_up == []


def test_should_look_up_nothing_once_other_sources_have_nothing_unread():
    big, small = TopicPartition("t0", 0), TopicPartition("t1", 0)
    broker = Broker({big: list(range(100)), small: [3]})
    cuts = list(slices_of(broker, reading("t0", "t1"), 10))
    assert [(cut.ends[big], cut.ends[small]) for cut in cuts] == [
        (9, 1),
        *((n, 1) for n in range(19, 100, 10)),
        (100, 1),
    ]
    assert broker.looked_up == [{big: (0, 100), small: (0, 1)}]
    empty = Broker({big: list(range(100)), small: []})
    assert [cut.ends[big] for cut in slices_of(empty, reading("t0", "t1"), 40)] == [40, 80, 100]
    assert empty.looked_up == []


def test_should_take_a_table_before_a_stream_of_equal_time():
    stream, table = TopicPartition("t0", 0), TopicPartition("table", 0)
    broker = Broker({stream: [5, 5, 5], table: [5, 5, 5]})
    cuts = list(slices_of(broker, reading("t0", "table"), 2))
    assert [(cut.ends[stream], cut.ends[table]) for cut in cuts] == [(0, 2), (1, 3), (3, 3)]


def test_should_let_tasks_advance_independently():
    """Kafka Streams merges the sources of one task; another partition number is another task."""
    sub = reading("t0", "t1")
    times = {
        TopicPartition(topic, number): [1000 * number + i for i in range(10)]
        for topic in ("t0", "t1")
        for number in (0, 1)
    }
    first = next(slices_of(Broker(times), sub, 20))
    assert set(first.ends.values()) == {5}


def test_should_continue_when_there_are_only_bad_records_and_markers():
    sub = reading("t0", "t1")
    times = {TopicPartition("t0", 0): [None] * 50, TopicPartition("t1", 0): list(range(50))}
    cuts = list(slices_of(Broker(times), sub, 10))
    assert cuts[-1].ends == dict.fromkeys(times, 50)


def test_should_wait_for_records_that_arrive_while_it_catches_up():
    sub = reading("t0", "t1")
    big, small = TopicPartition("t0", 0), TopicPartition("t1", 0)
    broker = Broker({big: list(range(100)), small: []})
    cuts = slices_of(broker, sub, 10)
    assert next(cuts).ends == {big: 10, small: 0}
    broker.times[small].append(14)
    assert next(cuts).ends == {big: 19, small: 1}


@pytest.mark.parametrize(
    ("unread", "most", "shares"),
    [
        ({0: 4, 1: 5}, 10, {0: 4, 1: 5}),
        ({0: 4, 1: 6}, 10, {0: 4, 1: 6}),
        ({0: 4, 1: 7}, 10, {0: 3, 1: 6}),
        ({0: 1, 1: 1000, 2: 0}, 10, {0: 1, 1: 9, 2: 0}),
    ],
)
def test_should_share_a_batch_out_in_proportion_to_what_is_unread(unread, most, shares):
    assert shares_of(unread, most) == shares
