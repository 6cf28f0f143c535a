"""The transactional producer on a real broker: fencing, generations, and the meaning of errors."""

from __future__ import annotations

import contextlib
import json
import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from tests.support.group_requests import remove_from_group
from tests.support.truth.topics import read_all

from tidemark.commit import lost_markers, producer
from tidemark.commit.history import last_commit_records
from tidemark.commit.lost_markers import LostMarkers
from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.producer import TransactionalProducer
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.errors import BatchAborted, OutcomeUnknown, ProducerFenced
from tidemark.kafka import committed_reader, records_at
from tidemark.kafka.committed_reader import read_committed_consumer
from tidemark.kafka.member import GroupMetadata, Member
from tidemark.kafka.offsets import EndOffsets, committed_offsets
from tidemark.names import TaskId, TopicPartition, commits_topic
from tidemark.processes import wait_until
from tidemark.stream_times import StreamTimes

pytestmark = pytest.mark.broker


@pytest.fixture
def client(broker):
    return {"bootstrap.servers": broker.bootstrap, "log_level": 0}


def a_producer(client, name):
    producer = TransactionalProducer(client, name, 10_000, 100_000)
    producer.init(60)
    return producer


def a_fenced_producer(client, name, topic):
    """In the middle of a batch, when another copy has come; it does not know yet."""
    first = a_producer(client, name)
    first.begin()
    first.send_many(topic, [{"key": b"k", "value": b"zombie"}])
    first.flush()
    a_producer(client, name)
    return first


class Joined:
    """A member of a group, and the lock it is used under, which keeps it from polling while it is held."""

    def __init__(self, client, group, topic, name):
        self.lock, self.client, self.group = threading.RLock(), client, group
        config = {**client, "group.id": group, "group.instance.id": name, "session.timeout.ms": 60_000}
        self.member = Member(config, [topic], self.lock, lambda: None)

    def holds(self, partition):
        with self.lock:
            return self.member.ownership.epoch(partition) is not None

    def committed(self, partitions):
        return committed_offsets(self.client, self.group, partitions, 60)

    def metadata(self):
        with self.lock:
            return self.member.metadata()

    def has_another_id(self, member_id):
        """Raises the error that has ended its thread, because then it would never get another one."""
        self.member.check()
        return self.metadata().member_id not in ("", member_id)


@contextlib.contextmanager
def joining(client, group, topic, name, *, polls=True):
    """One that has asked to join, and is closed at the end of the block. One that does not poll takes no part in a rebalance
    after its first: its client waits for the callback of that one.
    """
    made = Joined(client, group, topic, name)
    try:
        with contextlib.nullcontext() if polls else made.lock:
            made.member.start()
            yield made
    finally:
        made.member.close()


@pytest.fixture
def joined(client, create_topic, unique):
    topic = create_topic(unique("source"), partitions=2)
    with joining(client, unique("group"), topic, unique("member")) as made:
        assert wait_until(lambda: bool(made.member.ownership.held()), 60)
        yield made


def committed_rows(client, topic):
    """The committed records. Waits for the transaction's markers, for which the end of a transaction does not wait."""
    return [row for found in read_all(client["bootstrap.servers"], [topic]).values() for row in found]


def values(client, topic):
    return sorted((row.partition, row.value) for row in committed_rows(client, topic))


def test_should_send_a_batch_to_the_given_partition_or_else_by_key(client, create_topic, unique):
    topic = create_topic(unique("out"), partitions=3)
    producer = a_producer(client, unique("app"))
    producer.begin()
    producer.send_many(topic, [{"key": b"a", "value": b"%d" % i} for i in range(5)], partition=2)
    producer.flush()
    producer.commit()
    assert values(client, topic) == [(2, b"%d" % i) for i in range(5)]


def test_should_send_timestamps_headers_and_null_keys_and_values(client, create_topic, unique):
    topic = create_topic(unique("out"), partitions=1)
    producer = TransactionalProducer(client, unique("app"), 10_000, 3)
    producer.init(60)
    producer.begin()
    sent = [
        {"key": b"a", "value": b"1", "timestamp": 5_000, "headers": [("trace", b"x"), ("trace", None)]},
        {"key": None, "value": b"2", "timestamp": 4_000},
        {"key": b"a", "value": None, "timestamp": 3_000},
        # The client takes 0 for now: one millisecond later is as near as it comes.
        {"key": b"a", "value": b"4", "timestamp": 0},
    ]
    producer.send_many(topic, sent)
    producer.flush()
    producer.commit()
    found = [(row.key, row.value, row.timestamp_ms, row.headers) for row in committed_rows(client, topic)]
    assert found == [
        (b"a", b"1", 5_000, (("trace", b"x"), ("trace", None))),
        (None, b"2", 4_000, ()),
        (b"a", None, 3_000, ()),
        (b"a", b"4", 1, ()),
    ]


def test_should_place_keys_as_java_clients_do(client, create_topic, unique):
    """Uses the murmur2 hashes of `21` and `foobar` from Kafka's own UtilsTest, made positive, modulo the partitions."""
    topic = create_topic(unique("out"), partitions=7)
    producer = a_producer(client, unique("app"))
    producer.begin()
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    producer.send_many(topic, [{"key": key, "value": key} for key in hashes])
    producer.flush()
    producer.commit()
    assert values(client, topic) == sorted(((h & 0x7FFFFFFF) % 7, key) for key, h in hashes.items())


def test_should_report_to_the_first_copy_that_it_was_fenced_and_show_none_of_its_records(client, create_topic, unique):
    topic = create_topic(unique("out"))
    first = a_producer(client, unique("app"))
    first.begin()
    first.send_many(topic, [{"key": b"k", "value": b"zombie"}])
    first.flush()
    second = a_producer(client, unique("app"))
    with pytest.raises(ProducerFenced, match="timed out, or another process"):
        first.commit()
    second.begin()
    second.send_many(topic, [{"key": b"k", "value": b"heir"}])
    second.flush()
    second.commit()
    assert [value for _, value in values(client, topic)] == [b"heir"]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_should_report_a_copy_as_fenced_when_that_happens_while_it_sends(client, create_topic, unique, one_by_one):
    """The client notices the fencing between two calls; the next call only reports a fatal error."""
    topic = create_topic(unique("out"))
    first = a_fenced_producer(client, unique("app"), topic)

    def send_on():
        if one_by_one:
            first.send_one(topic, b"k", b"zombie", ())
        else:
            first.send_many(topic, [{"key": b"k", "value": b"zombie"}])

    with pytest.raises(ProducerFenced, match="timed out, or another process"):
        # Never flushed: what was sent a moment ago is refused in the background.
        wait_until(send_on, 60, every_s=0.05)


def test_should_report_a_copy_as_fenced_when_that_happens_while_it_waits_for_acknowledgements(
    client, create_topic, unique
):
    """The fatal error and the reports of undelivered records arrive together."""
    topic, other = create_topic(unique("out")), create_topic(unique("other"))
    first = a_fenced_producer(client, unique("app"), topic)
    with pytest.raises(ProducerFenced, match="timed out, or another process"):
        # The client may know before all are sent.
        for _ in range(100):
            first.send_one(other, b"k", b"zombie", ())
        first.flush()


def with_a_short_transaction(client, name, topic):
    """A producer with one acknowledged record in a transaction of a second, which a busy broker may need for the record."""
    found = []

    def is_acknowledged():
        producer = TransactionalProducer(client, name, 1_000, 100_000)
        producer.init(60)
        producer.begin()
        producer.send_many(topic, [{"key": b"k", "value": b"v"}])
        with contextlib.suppress(BatchAborted, OutcomeUnknown, ProducerFenced):
            producer.flush()
            # Only the transaction is short: a busy broker may need longer than a second for a later answer.
            producer._timeout_s = 60
            found.append(producer)
        return found

    assert wait_until(is_acknowledged, 60)
    return found[0]


@pytest.mark.parametrize("next_call", ["commit", "send on", "offsets"])
def test_should_not_mistake_a_timed_out_transaction_for_a_second_copy(
    client, joined, admin, create_topic, unique, next_call
):
    """The coordinator raises the epoch when it ends such a transaction, and answers as if another producer had done so."""
    topic = create_topic(unique("out"), partitions=1)
    sleeper = with_a_short_transaction(client, unique("app"), topic)
    place, ends = TopicPartition(topic, 0), EndOffsets(admin, 60)
    assert wait_until(lambda: ends.stable([place])[place] == ends.of([place])[place], 60)
    with pytest.raises((ProducerFenced, BatchAborted)):
        if next_call == "send on":
            sleeper.send_many(topic, [{"key": b"k", "value": b"v"}])
            sleeper.flush()
        elif next_call == "offsets":
            (source, _) = sorted(joined.member.ownership.held())
            sleeper.send_offsets([ClientPartition(source.topic, 0, 42)], joined.metadata())
        sleeper.commit()
    assert values(client, topic) == []


class ForgetfulClient:
    """The client as it is when a delivery report has taken the fatal error away that it was about to raise."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def flush(self, timeout_s):
        with contextlib.suppress(KafkaException, SystemError):
            return self._client.flush(timeout_s)
        raise SystemError("returned NULL without setting an exception")


def test_should_report_a_copy_as_fenced_when_its_client_has_lost_the_error(client, create_topic, unique):
    topic, other = create_topic(unique("out")), create_topic(unique("other"))
    first = a_fenced_producer(client, unique("app"), topic)
    first._producer = ForgetfulClient(first._producer)
    first.send_one(other, b"k", b"zombie", ())
    with pytest.raises(ProducerFenced, match="timed out, or another process"):
        first.flush()


class HangingClient:
    """Calls of a transaction that never return, whatever time they were given (librdkafka issue 5456)."""

    def __getattr__(self, name):
        return lambda *_arguments: threading.Event().wait()


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("send_offsets_to_transaction", lambda producer: producer.send_offsets([], SimpleNamespace(opaque=b""))),
        ("commit_transaction", lambda producer: producer.commit()),
        ("abort_transaction", lambda producer: producer.abort()),
        ("init_transactions", lambda producer: producer.init(0.1)),
    ],
)
def test_should_not_wait_forever_for_a_client_that_does_not_return(monkeypatch, what, call):
    monkeypatch.setattr(producer, "_RETURNS_S", 0.1)
    monkeypatch.setattr(producer, "Producer", lambda _config: HangingClient())
    hanging = TransactionalProducer({}, "app-0", 100, 10)
    with pytest.raises(OutcomeUnknown, match=f"{what} has not returned after 0.2 s; the instance starts again"):
        call(hanging)


def test_should_end_when_a_topic_does_not_exist(client, unique):
    producer = TransactionalProducer(client, unique("app"), 3_000, 1000)
    producer.init(60)
    producer.begin()
    with pytest.raises((BatchAborted, OutcomeUnknown)):
        producer.send_many(unique("nowhere"), [{"key": b"k", "value": b"v"}])
        producer.flush()


def test_should_send_every_record_through_a_queue_smaller_than_the_batch(client, create_topic, unique):
    topic = create_topic(unique("out"), partitions=1)
    producer = TransactionalProducer(client, unique("app"), 20_000, 100)
    producer.init(60)
    producer.begin()
    producer.send_many(topic, [{"key": b"k", "value": b"%04d" % i} for i in range(1000)])
    producer.flush()
    producer.commit()
    assert [value for _, value in values(client, topic)] == [b"%04d" % i for i in range(1000)]


def test_should_commit_offsets_with_their_metadata_in_the_transaction(client, joined, unique):
    (partition, _) = sorted(joined.member.ownership.held())
    producer = a_producer(client, unique("app"))
    producer.begin()
    metadata = OffsetMetadata(3, StreamTimes(1_700_000_000_000, {"counts": 1_699_999_999_000}), "1")
    producer.send_offsets([ClientPartition(partition.topic, 0, 42, metadata.encode())], joined.metadata())
    producer.commit()
    found = joined.committed([partition])[partition]
    assert (found.offset, OffsetMetadata.decode(found.metadata)) == (42, metadata)


def test_should_not_take_the_offsets_before_a_transaction_for_committed_while_it_is_undecided(client, joined, unique):
    """See invariant: end of a restore. Old offsets beside a newer commit record would count its batch twice."""
    producer = a_producer(client, unique("app"))
    partition = sorted(joined.member.ownership.held())[0]
    for offset in (5, 9):
        producer.begin()
        producer.send_offsets([ClientPartition(partition.topic, partition.partition, offset)], joined.metadata())
        with pytest.raises(KafkaException) as undecided:
            committed_offsets(client, joined.group, [partition], 2)
        assert undecided.value.args[0].code() == KafkaError._TIMED_OUT
        producer.commit()
        assert joined.committed([partition])[partition].offset == offset


def test_should_be_refused_when_it_commits_with_the_previous_generation(client, joined, unique):
    (partition, _) = sorted(joined.member.ownership.held())
    now = joined.metadata()
    assert now.is_checked
    opaque = now.opaque.replace(
        now.generation.to_bytes(4, "little", signed=True), (now.generation - 1).to_bytes(4, "little", signed=True), 1
    )
    producer = a_producer(client, unique("app"))
    producer.begin()
    with pytest.raises(BatchAborted):
        producer.send_offsets([ClientPartition(partition.topic, 0, 42)], GroupMetadata.parse(opaque, now.member_id))
        producer.commit()
    assert joined.committed([partition]) == {}


def test_should_own_partitions_under_a_new_member_id_when_it_rejoins_after_a_removal(
    broker, client, create_topic, unique
):
    """`Member.metadata` relies on this: a removed member that rejoins gets another id, even as the same static member."""
    group, name, source = unique("group"), unique("member"), create_topic(unique("source"), partitions=1)
    partition = TopicPartition(source, 0)
    with joining(client, group, source, name) as joined:
        assert wait_until(lambda: joined.holds(partition), 60)
        member_id, epoch = joined.metadata().member_id, joined.member.ownership.epoch(partition)
        with joining(client, group, source, unique("other")) as other:
            assert wait_until(lambda: joined.metadata().generation > 1, 60)
            assert joined.metadata().member_id == member_id
            assert joined.member.ownership.epoch(partition) == epoch
            with joined.lock:
                remove_from_group(broker.bootstrap, group, name)
                assert wait_until(lambda: other.holds(partition), 60)
            assert wait_until(lambda: joined.has_another_id(member_id), 60)
        remove_from_group(broker.bootstrap, group, unique("other"))
        assert wait_until(lambda: (joined.member.ownership.epoch(partition) or epoch) > epoch, 60)


def test_should_learn_from_an_offset_that_no_member_reads_that_the_group_has_removed_it(
    broker, client, create_topic, unique
):
    """A commit of at_least_once asks in this way, so that the question changes no offset of a task."""
    group, name, source = unique("group"), unique("member"), create_topic(unique("source"), partitions=1)
    partition, unread = TopicPartition(source, 0), create_topic(unique("unread"), partitions=1)
    with joining(client, group, source, name) as joined:
        assert wait_until(lambda: joined.holds(partition), 60)
        with joined.lock:
            joined.member.commit([ClientPartition(unread, 0, 0)])
            assert joined.committed([partition]) == {}
            remove_from_group(broker.bootstrap, group, name)
            with pytest.raises(KafkaException) as refused:
                joined.member.commit([ClientPartition(unread, 0, 0)])
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID


def test_should_lose_its_partitions_when_it_is_removed_while_it_rejoins(broker, client, create_topic, unique):
    """The client then joins under another id without a revoke callback, although another may have held its partition."""
    group, name, source = unique("group"), unique("member"), create_topic(unique("source"), partitions=1)
    states, partition = [], TopicPartition(source, 0)
    watched = {
        **client,
        "statistics.interval.ms": 100,
        "stats_cb": lambda text: states.append(json.loads(text)["cgrp"]),
    }
    silent, newcomer = unique("silent"), unique("newcomer")
    with joining(watched, group, source, name) as joined:
        member = joined.member
        assert wait_until(lambda: joined.holds(partition), 60)
        epoch, generation = member.ownership.epoch(partition), joined.metadata().generation
        with joining(client, group, source, silent, polls=False):
            assert wait_until(
                lambda: joined.metadata().generation > generation and states[-1]["join_state"] == "steady", 30
            )
            with joining(client, group, source, newcomer):
                assert wait_until(lambda: states[-1]["join_state"] == "wait-join", 60)
                with joined.lock:
                    client_of = member._consumer
                    before = GroupMetadata.parse(client_of.consumer_group_metadata(), client_of.memberid())
                    remove_from_group(broker.bootstrap, group, name)
                    assert wait_until(lambda: not client_of.memberid(), 60)
                    remove_from_group(broker.bootstrap, group, silent)
                    assert member.ownership.epoch(partition) == epoch
                    assert wait_until(lambda: member.metadata().generation > before.generation, 60)
                    assert member.ownership.epoch(partition) is None
        remove_from_group(broker.bootstrap, group, newcomer)
        assert wait_until(lambda: (member.ownership.epoch(partition) or epoch) > epoch, 60)


def test_should_read_committed_offsets_without_hanging_while_the_member_polls(joined):
    assert joined.committed(sorted(joined.member.ownership.held())) == {}


def a_record(task: TaskId, batch: int) -> CommitRecord:
    return CommitRecord(
        kind=CommitKind.BATCH, application_id="a", topology_version="1", task=task, instance=0, batch=batch,
        commit_time_ms=batch, sources={"in": {task.partition: (batch, batch + 1)}}, stream_times=StreamTimes(5, {}), rows=1,
        late_rows=0, bad_rows=0, filtered_rows=0, sinks={"out": 1}, changelogs={}, ends_before={"out": {0: 7}},
    )  # fmt: skip


def test_should_find_the_last_commit_record_of_each_task_however_old_it_is(
    client, admin, create_topic, unique, monkeypatch
):
    app = unique("app")
    create_topic(commits_topic(app), partitions=2)
    producer = a_producer(client, unique("writer"))
    producer.begin()
    old, busy, other = TaskId(1, 0), TaskId(0, 0), TaskId(0, 1)
    sent = [a_record(old, 1), *(a_record(busy, n) for n in range(300)), a_record(other, 2)]
    for record in sent:
        message = {"key": str(record.task).encode(), "value": record.to_bytes()}
        producer.send_many(commits_topic(app), [message], partition=record.task.partition)
    producer.flush()
    producer.commit()
    tasks = [old, busy, other, TaskId(5, 1)]
    started = []

    def reader(*args):
        started.append(read_committed_consumer(*args))
        return started[-1]

    monkeypatch.setattr(committed_reader, "read_committed_consumer", reader)
    found = last_commit_records(client, EndOffsets(admin, 60), app, tasks, stalled_after_s=60)
    assert found == {old: sent[0], busy: sent[300], other: sent[301]}
    # 300 records of one task need a longer part, twice. Otherwise one client reads all partitions, because a client takes
    # longer to start than a few records to read.
    assert len(started) == 3
    del started[:]
    newest = {busy: sent[300], other: sent[301]}
    assert last_commit_records(client, EndOffsets(admin, 60), app, newest, stalled_after_s=60) == newest
    assert len(started) == 1


def test_should_not_ask_how_a_transaction_ended_that_only_its_dead_producer_has_left_open(
    client, settings, admin, create_topic, unique, monkeypatch
):
    """No leader has changed, so `init_transactions` ends it everywhere. Kafka's tool would take a second of each start."""
    topic, name = create_topic(unique("out"), partitions=2), unique("app")
    dead = a_producer(client, name)
    dead.begin()
    dead.send_many(topic, [{"key": b"k", "value": b"v"}], 0)
    dead.flush()
    monkeypatch.setattr(lost_markers, "left_by_aborted", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr(records_at, "_EPOCHS_S", 3600.0)
    places, ends = [TopicPartition(topic, n) for n in (0, 1)], EndOffsets(admin, 60)
    assert ends.stable(places)[places[0]] == 0
    LostMarkers(TransactionalProducer(client, name, 10_000, 100_000), admin, ends, settings, places).init(60)
    assert wait_until(lambda: ends.stable(places) == ends.of(places), 60)
    # The record and its marker: nothing was added.
    assert ends.of(places) == {places[0]: 2, places[1]: 0}


def test_should_add_nothing_where_an_aborted_transaction_has_its_marker(client, settings, admin, create_topic, unique):
    topic = create_topic(unique("out"), partitions=1)
    place, ends = TopicPartition(topic, 0), EndOffsets(admin, 60)
    one = a_producer(client, unique("app"))
    markers = LostMarkers(one, admin, ends, settings, [place])
    assert not markers.end_in(ends.with_epochs([place]))
    one.begin()
    one.send_many(topic, [{"key": b"k", "value": b"v"}], 0)
    one.flush()
    one.abort()
    assert wait_until(lambda: ends.stable([place]) == ends.of([place]), 60)
    # As if another leader had led the partition then.
    markers._began = {place: -2}
    assert not markers.end_in(ends.with_epochs([place]))
    assert ends.of([place]) == {place: 2}
