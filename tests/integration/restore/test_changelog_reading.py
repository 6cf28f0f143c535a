"""Reaching the end of a changelog on a real broker: markers, aborted and open transactions, empty partitions."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.committed_reader import (
    ChangelogBatch,
    larger,
    last_record_ends,
    range_reader,
    read_committed_until,
)
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TopicPartition
from tidemark.processes import wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def client(broker):
    return {"bootstrap.servers": broker.bootstrap, "log_level": 0}


@pytest.fixture
def changelog(create_topic, unique):
    return TopicPartition(create_topic(unique("changelog")), 0)


@pytest.fixture
def writer(client, unique):
    producer = Producer({**client, "transactional.id": unique("writer"), "transaction.timeout.ms": 60_000})
    producer.init_transactions(60)
    return producer


def write(producer, changelog, *keys, end="commit"):
    producer.begin_transaction()
    for key in keys:
        producer.produce(changelog.topic, key=key, value=b"v", partition=0)
    producer.flush(60)
    if end == "commit":
        producer.commit_transaction(60)
    elif end == "abort":
        producer.abort_transaction(60)


def read(client, admin, changelog, start=0, stalled_after_s=60.0):
    end = EndOffsets(admin, 60).of([changelog])[changelog]
    batches = list(
        read_committed_until(
            client, changelog, start, end, stalled_after_s=stalled_after_s, should_continue=lambda: True
        )
    )
    return [key for batch in batches for key in batch.keys], batches[-1].next_offset if batches else start, end


def test_should_end_at_once_in_an_empty_partition(client, admin, changelog):
    assert read(client, admin, changelog) == ([], 0, 0)


def test_should_end_after_the_marker_of_the_last_transaction(client, admin, changelog, writer):
    write(writer, changelog, b"a", b"b")
    keys, next_offset, end = read(client, admin, changelog)
    assert keys == [b"a", b"b"]
    # A commit or abort returns before its marker is on every partition.
    assert next_offset >= end >= 2


def test_should_skip_aborted_records_at_the_very_end(client, admin, changelog, writer):
    write(writer, changelog, b"a")
    write(writer, changelog, b"x", b"y", end="abort")
    keys, next_offset, end = read(client, admin, changelog)
    assert keys == [b"a"]
    # A commit or abort returns before its marker is on every partition.
    assert next_offset >= end >= 4


def test_should_end_in_a_partition_that_holds_only_aborted_records(client, admin, changelog, writer):
    write(writer, changelog, b"x", end="abort")
    keys, next_offset, end = read(client, admin, changelog)
    assert keys == []
    # A commit or abort returns before its marker is on every partition.
    assert next_offset >= end >= 1


def test_should_wait_for_a_transaction_that_is_open_at_the_start_and_include_it(client, admin, changelog, writer):
    """A read_committed end offset would be before the transaction, and the restore would miss the last batch."""
    write(writer, changelog, b"a")
    write(writer, changelog, b"last", end="open")
    committing = threading.Timer(1.0, lambda: writer.commit_transaction(60))
    committing.start()
    keys, _, _ = read(client, admin, changelog)
    committing.join()
    assert keys == [b"a", b"last"]


def test_should_give_up_on_a_transaction_that_stays_open(client, admin, changelog, writer):
    write(writer, changelog, b"x", end="open")
    with pytest.raises(OutcomeUnknown, match="a transaction is open"):
        read(client, admin, changelog, stalled_after_s=1.0)
    writer.abort_transaction(60)


def test_should_read_one_range_after_another_with_one_client_although_none_is_read_to_its_end(
    client, changelog, writer
):
    """What was fetched for one range, and the end that was reached in it, belongs to no other."""
    write(writer, changelog, *(b"%d" % number for number in range(5_000)))
    with range_reader(client, "reader", stalled_after_s=60) as read_range:
        for start in (4_990, 10, 4_000, 3_999, 0, 4_999, 2_500, 2_500):
            assert next(read_range(changelog, start, 5_000)).keys[0] == b"%d" % start
        whole = [key for batch in read_range(changelog, 1_000, 4_000) for key in batch.keys]
    assert whole == [b"%d" % number for number in range(1_000, 4_000)]


def test_should_stop_when_told_and_report_how_far_it_got(client, admin, changelog, writer):
    write(writer, changelog, b"a", b"b")
    assert list(read_committed_until(client, changelog, 0, 3, stalled_after_s=5, should_continue=lambda: False)) == []


def test_should_begin_at_a_given_offset(client, admin, changelog, writer):
    write(writer, changelog, b"a", b"b", b"c")
    assert read(client, admin, changelog, start=1)[0] == [b"b", b"c"]


class MovingLeader:
    """An admin client whose first answers are those of a broker that leads no more.

    Held to the real one by `tests/integration/kafka/test_end_offsets.py`: it goes on so until it is asked for metadata.
    """

    def __init__(self, failures: int, code: int) -> None:
        self.failures, self.code = failures, code

    def list_offsets(self, asked, **_options):
        (place,) = asked
        future = Future()
        if self.failures:
            future.set_exception(KafkaException(KafkaError(self.code)))
        else:
            future.set_result(SimpleNamespace(offset=7))
        return {place: future}

    def list_topics(self, timeout):
        assert timeout > 0
        self.failures = max(0, self.failures - 1)


def test_should_retry_while_a_leader_moves():
    place = TopicPartition("t", 0)
    # The first metadata is asked for before the first request.
    admin = MovingLeader(3, KafkaError.NOT_LEADER_FOR_PARTITION)
    assert EndOffsets(admin, 5).of([place]) == {place: 7}


@pytest.mark.parametrize(
    ("failures", "code"), [(10**6, KafkaError.NOT_LEADER_FOR_PARTITION), (2, KafkaError.TOPIC_AUTHORIZATION_FAILED)]
)
def test_should_give_up_when_no_leader_is_elected_in_time_and_at_once_on_other_errors(failures, code):
    with pytest.raises(OutcomeUnknown, match=r"offsets of t\[0\]"):
        EndOffsets(MovingLeader(failures, code), 0.2).of([TopicPartition("t", 0)])


def test_should_return_nothing_beyond_the_requested_end(client, admin, changelog, writer):
    """A point in time, or a source topic used as a changelog, ends before the last record."""
    write(writer, changelog, b"a", b"b")
    write(writer, changelog, b"c", b"d")
    for end, keys in ((1, [b"a"]), (2, [b"a", b"b"]), (3, [b"a", b"b"]), (4, [b"a", b"b", b"c"])):
        batches = list(
            read_committed_until(client, changelog, 0, end, stalled_after_s=60, should_continue=lambda: True)
        )
        assert [key for batch in batches for key in batch.keys] == keys
        assert batches[-1].next_offset == end


def test_should_return_the_same_records_in_larger_batches():
    batches = [
        ChangelogBatch([b"a"], [b"1"], 2),
        ChangelogBatch([], [], 3),
        ChangelogBatch([b"b", b"c"], [None, b"2"], 7),
    ]
    assert list(larger(batches, 2)) == [ChangelogBatch([b"a", b"b", b"c"], [b"1", None, b"2"], 7)]
    assert list(larger(batches, 1)) == [batches[0], ChangelogBatch([b"b", b"c"], [None, b"2"], 7)]
    # Where the last ones hold nothing, how far was read is still told.
    assert list(larger([*batches, ChangelogBatch([], [], 9)], 2))[-1] == ChangelogBatch([], [], 9)
    assert list(larger([], 2)) == []


def test_should_find_where_the_last_committed_record_before_an_offset_ends(client, admin, changelog, writer):
    def ends(oldest: int, offset: int) -> int:
        return last_record_ends(client, {changelog: (oldest, offset)}, stalled_after_s=60.0)[changelog]

    assert ends(0, 0) == 0
    write(writer, changelog, b"a", b"b")
    write(writer, changelog, b"x", end="abort")
    # Two records, a marker, a record that was aborted, and its marker.
    assert wait_until(lambda: EndOffsets(admin, 60).stable([changelog])[changelog] == 5, 60)
    assert [ends(0, offset) for offset in range(6)] == [0, 1, 2, 2, 2, 2]
    # Without a record, an offset says as much as is known.
    assert (ends(2, 5), ends(5, 5)) == (5, 5)
