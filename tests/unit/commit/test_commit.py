"""The order in which a commit sends its records and waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidemark.commit.commit import Committer
from tidemark.commit.producer import IdempotentProducer
from tidemark.commit.record import CommitKind
from tidemark.errors import BatchAborted, OutcomeUnknown
from tidemark.kafka.offsets import PartitionEnd
from tidemark.names import TaskId, TopicPartition
from tidemark.stores.protocol import Writes
from tidemark.stream_times import StreamTimes
from tidemark.tasks.update import DeadLetter, Output, StoreUpdate, TaskUpdate
from tidemark.topology.plan import Guarantee

NOW = 1_700_000_000_000
CHANGELOG = TopicPartition("app-totals-changelog", 0)
TOPOLOGY = TopicPartition("app-topology", 0)


@dataclass
class RecordingProducer:
    """Writes down what a commit asks of it. The flush with the number `fails_at` is not acknowledged.

    `refused_from` is the number of the first commit of offsets that the group refuses.
    """

    fails_at: int | None = None
    refused_from: int | None = None
    sent_offsets: list[tuple[str, int, int]] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)

    def begin(self):
        self.journal.append("begin")

    def send_many(self, topic, messages, partition=None):
        self.journal.append(topic)

    def send_one(self, topic, key, value, headers):
        self.journal.append(topic)

    def flush(self):
        self.journal.append("flush")
        if self.journal.count("flush") == self.fails_at:
            raise BatchAborted("1 records were not acknowledged")

    def send_offsets(self, offsets, group):
        self.journal.append("offsets")
        self.sent_offsets += [(each.topic, each.partition, each.offset) for each in offsets]
        if self.refused_from is not None and self.journal.count("offsets") >= self.refused_from:
            raise BatchAborted("illegal generation")

    def commit(self):
        self.journal.append("commit")


class OwnedTask:
    id = TaskId(0, 0)
    lead = TopicPartition("in", 0)
    epoch = 1
    changelogs: ClassVar = [CHANGELOG]
    changelog_offsets: ClassVar = {CHANGELOG: 0}

    def apply(self, update, changelog_ends, commit_time_ms):
        pass


class GroupMember:
    """A member that owns everything."""

    is_checked = True

    @property
    def ownership(self):
        return self

    def epoch(self, partition):
        return 1

    def metadata(self):
        return self


class Ends:
    """Offsets that grow by two records with each question."""

    def __init__(self):
        self.offset = 0

    def of(self, partitions):
        self.offset += 2
        return dict.fromkeys(partitions, self.offset)

    def with_epochs(self, partitions):
        ends = {partition: PartitionEnd(self.offset, 1) for partition in partitions}
        return ends | {TOPOLOGY: PartitionEnd(40, 1)} if TOPOLOGY in ends else ends


def committed(
    guarantee: Guarantee,
    producer: RecordingProducer,
    probe: Callable[[str], None] = lambda _: None,
    lock: threading.RLock | None = None,
    description: bytes | None = None,
) -> list[str]:
    """Commit one batch and return what was asked of the producer, also if the batch is aborted."""
    committer = Committer(
        application_id="app", topology_version="1", instance=0, producer=producer, member=GroupMember(), ends=Ends(),
        sink_partitions=(), lock=lock or threading.RLock(), clock=lambda: NOW, probe=probe, guarantee=guarantee,
        description=description,
    )  # fmt: skip
    update = TaskUpdate(
        task=TaskId(0, 0), batch=1, sources={"in": (0, 10)}, stream_times=StreamTimes(NOW, {}),
        rows=9, late_rows=0, bad_rows=1, filtered_rows=0,
        stores=(StoreUpdate("totals", CHANGELOG.topic, (Writes(0, [b"a", b"b"], [b"1", b"2"]),)),),
        outputs=(Output("out", [{"key": b"a", "value": b"{}"}]),),
        dead_letters=(DeadLetter("unparsable", "in", 0, 5, b"k", b"{", ()),), wall_ms=NOW,
    )  # fmt: skip
    try:
        committer.commit(CommitKind.BATCH, [(OwnedTask(), update)])
    except BatchAborted:
        producer.journal.append("aborted")
    return producer.journal


BEGIN = ["begin", "out", "app-dlq"]
END = ["app-commits", "flush", "offsets", "commit"]


@pytest.mark.parametrize(
    ("guarantee", "steps"),
    [
        (Guarantee.EXACTLY_ONCE, [*BEGIN, CHANGELOG.topic, *END]),
        # Nothing else keeps a commit record from being written before what it counts.
        (Guarantee.AT_LEAST_ONCE, [*BEGIN, "offsets", CHANGELOG.topic, "flush", "offsets", *END]),
    ],
)
def test_should_wait_for_all_writes_before_a_commit_record_that_is_visible_at_once(guarantee, steps):
    assert committed(guarantee, RecordingProducer()) == steps


def test_should_send_no_commit_record_of_at_least_once_when_a_write_is_not_acknowledged():
    journal = committed(Guarantee.AT_LEAST_ONCE, RecordingProducer(fails_at=1))
    assert journal == [*BEGIN, "offsets", CHANGELOG.topic, "flush", "aborted"]


@pytest.mark.parametrize(
    ("refused_from", "steps"),
    [
        (1, [*BEGIN, "offsets", "aborted"]),
        (2, [*BEGIN, "offsets", CHANGELOG.topic, "flush", "offsets", "aborted"]),
    ],
)
def test_should_write_no_state_of_at_least_once_after_the_group_has_replaced_a_member_that_was_stopped(
    refused_from, steps
):
    """The task's next owner may have written newer values by then, and old ones behind them would win a restore."""
    assert committed(Guarantee.AT_LEAST_ONCE, RecordingProducer(refused_from=refused_from)) == steps


@pytest.mark.parametrize(("description", "asked_with"), [(None, 40), (b"{}", 41)])
def test_should_ask_the_group_with_no_offset_of_a_task(description, asked_with):
    """If the member joins again before it sends them, the next owner may have committed later ones.

    It is the end of a topic that no task reads, also after the batch has written to it, so that the group has no lag there.
    """
    producer = RecordingProducer()
    committed(Guarantee.AT_LEAST_ONCE, producer, description=description)
    assert producer.sent_offsets == [("app-topology", 0, asked_with)] * 2 + [("in", 0, 10)]


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (KafkaError.ILLEGAL_GENERATION, BatchAborted),
        (KafkaError.UNKNOWN_MEMBER_ID, BatchAborted),
        (KafkaError.REBALANCE_IN_PROGRESS, BatchAborted),
        (KafkaError._TIMED_OUT, OutcomeUnknown),
    ],
)
def test_should_try_a_batch_again_only_when_the_group_has_surely_not_taken_its_offsets(code, raised):
    def refuse(offsets):
        raise KafkaException(KafkaError(code))

    producer = IdempotentProducer({"bootstrap.servers": "localhost:1"}, "app-0", 1000, 100, refuse)
    with pytest.raises(raised):
        producer.send_offsets([], GroupMember())


def test_should_keep_every_other_thread_from_changing_what_it_owns_until_its_stores_are_written():
    """See invariant: ownership at commit. A task that is given away between two steps would be committed by two instances."""
    lock = threading.RLock()
    free: dict[str, bool] = {}

    def try_from_another_thread(point: str) -> None:
        def try_it() -> None:
            free[point] = lock.acquire(blocking=False)
            if free[point]:
                lock.release()

        other = threading.Thread(target=try_it)
        other.start()
        other.join()

    committed(Guarantee.EXACTLY_ONCE, RecordingProducer(), try_from_another_thread, lock)
    assert {
        "1-begin",
        "2-outputs",
        "3-changelogs",
        "4-commit-records",
        "5-offsets",
        "6-commit",
        "7-stores",
    } <= free.keys()
    assert not any(free.values())
    try_from_another_thread("afterwards")
    assert free["afterwards"]
