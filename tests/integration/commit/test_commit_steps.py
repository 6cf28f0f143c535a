"""The seven steps against a real broker and a real member, without Spark."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType
from tests.support.group_requests import join_group
from tests.support.truth.topics import read_all

from tidemark.commit.commit import Committer, TasksRevoked
from tidemark.commit.history import last_commit_records
from tidemark.commit.producer import TransactionalProducer
from tidemark.commit.record import CommitKind
from tidemark.errors import BatchAborted, InstanceFenced, OutcomeUnknown
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.member import GroupMetadata, Member
from tidemark.kafka.offsets import EndOffsets, committed_offsets, describe_group
from tidemark.kafka.preflight import preflight
from tidemark.kafka.record_sizes import size_limits
from tidemark.kafka.topics import ensure_user_topics
from tidemark.names import TaskId, TopicPartition
from tidemark.processes import wait_until
from tidemark.stores.directory import InstanceDirectory
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Writes
from tidemark.stream_times import StreamTimes
from tidemark.tasks.task import Task
from tidemark.tasks.update import DeadLetter, Output, StoreUpdate, TaskUpdate
from tidemark.topology.builder import Topology

pytestmark = pytest.mark.broker

NOW = 1_700_000_000_000


class Rig:
    """One application with one open task, and everything its commits need."""

    def __init__(self, settings, admin, unique):
        topology = Topology(unique("app"))
        stream = topology.stream(unique("in"), schema="id STRING, at BIGINT", key="id", timestamp="at")
        stream.group_by_key().count(name="n", store="totals").to(unique("out"))
        self.plan = topology.plan()
        self.app = self.plan.application_id
        self.source, self.sink = self.plan.subtopologies[0].lead.topic, self.plan.subtopologies[0].sink_topics[0]
        self.changelog = TopicPartition(f"{self.app}-totals-changelog", 0)
        ensure_user_topics(self.plan, settings, admin)
        preflight(self.plan, settings, admin)
        self.client = librdkafka_config(settings)
        self.admin, self.ends = admin, EndOffsets(admin, 60)
        self.lock = threading.RLock()
        member = {**self.client, "group.id": self.app, "group.instance.id": f"{self.app}-0", "session.timeout.ms": 6000}
        self.member = Member(member, [self.source], self.lock, lambda: None)
        self.member.start()
        assert wait_until(lambda: len(self.member.ownership.held()) == 4, 60)
        limits = size_limits(self.plan, settings, admin)
        client = {**self.client, **limits.producer_config()}
        self.producer = TransactionalProducer(client, f"{self.app}-0", 10_000, 100_000)
        self.producer.init(60)
        self.points = []
        self.store = MemoryStore()
        self.directory = InstanceDirectory(settings.state_dir, self.app, 0)
        self.task = Task(
            application_id=self.app, topology_version="1", task_id=TaskId(0, 0),
            epoch=self.member.ownership.epoch(TopicPartition(self.source, 0)), subtopology=self.plan.subtopologies[0],
            stores={"totals": self.store}, directory=self.directory.open_task(TaskId(0, 0)), next_offsets={self.source: 0},
            stream_times=StreamTimes.none(), batch=0, sink_partitions={self.sink: 4}, wall_ms=NOW,
        )  # fmt: skip
        self.committer = Committer(
            application_id=self.app, topology_version="1", instance=0, producer=self.producer, member=self.member,
            ends=self.ends, sink_partitions=(TopicPartition(self.sink, 0),), lock=self.lock, clock=lambda: NOW,
            probe=self.points.append, limits=limits,
        )  # fmt: skip

    def update(self, n=1) -> TaskUpdate:
        value = b"\x03\x01" + NOW.to_bytes(8, "little") + n.to_bytes(8, "little")
        writes = (Writes(0, [b"a", b"b"], [value, value]),)
        letter = DeadLetter("unparsable", self.source, 0, 5, b"k", b"{", (("own", b"h"),))
        start = self.task.next_offsets[self.source]
        return TaskUpdate(
            task=TaskId(0, 0), batch=self.task.batch + 1,
            sources={self.source: (start, start + 10)}, stream_times=StreamTimes(NOW, {}),
            rows=9, late_rows=0, bad_rows=1, filtered_rows=0,
            stores=(StoreUpdate("totals", self.changelog.topic, writes),),
            outputs=(Output(self.sink, [{"key": b"a", "value": b"{}"}]),), dead_letters=(letter,), wall_ms=NOW,
        )  # fmt: skip

    def commit(self, update=None):
        self.committer.commit(CommitKind.BATCH, [(self.task, update or self.update())])

    def visible(self, topic) -> list[tuple]:
        """The records with headers that read_committed shows. Waits for the transaction's markers, which a commit does not."""
        rows = read_all(self.client["bootstrap.servers"], [topic])
        return [(row.key, row.value, row.headers) for found in rows.values() for row in found]

    def close(self):
        self.task.close()
        self.member.close()
        self.directory.close()


@pytest.fixture
def rig(settings, admin, unique):
    made = Rig(settings, admin, unique)
    yield made
    made.close()


def test_should_go_through_the_steps_in_the_order_of_the_protocol(rig):
    rig.commit()
    steps = [point for point in rig.points if "middle" not in point]
    assert steps == [
        "1-begin", "2-outputs", "3-changelogs", "4-commit-records", "5-offsets", "6-commit", "7-one-store", "7-stores",
    ]  # fmt: skip


def test_should_make_the_whole_batch_visible_at_once_and_record_it(rig):
    rig.commit()
    assert rig.visible(rig.sink) == [(b"a", b"{}", ())]
    ((key, value, headers),) = rig.visible(f"{rig.app}-dlq")
    assert (key, value) == (b"k", b"{")
    assert dict(headers) == {
        "own": b"h", "tidemark.reason": b"unparsable", "tidemark.topic": rig.source.encode(),
        "tidemark.partition": b"0", "tidemark.offset": b"5",
    }  # fmt: skip
    assert [k for k, _, _ in rig.visible(rig.changelog.topic)] == [b"a", b"b"]
    record = last_commit_records(rig.client, rig.ends, rig.app, [TaskId(0, 0)], stalled_after_s=60)[TaskId(0, 0)]
    assert record.sources == {rig.source: {0: (0, 10)}}
    assert record.sinks == {rig.sink: 1, f"{rig.app}-dlq": 1}
    assert record.changelogs == {rig.changelog.topic: 2}
    assert record.ends_before == {rig.sink: {0: 0}, rig.changelog.topic: {0: 0}}
    place = TopicPartition(rig.source, 0)
    assert committed_offsets(rig.client, rig.app, [place], 20)[place].offset == 10
    assert (rig.task.next_offsets, rig.task.batch) == ({rig.source: 10}, 1)


def test_should_commit_a_bad_record_that_is_too_large_for_the_dead_letters(rig):
    (letter,) = rig.update().dead_letters
    value = b"{" * 1_080_000
    rig.commit(replace(rig.update(), dead_letters=(replace(letter, value=value),)))
    ((key, kept, headers),) = rig.visible(f"{rig.app}-dlq")
    assert (key, kept) == (b"k", value[: len(kept)])
    assert len(kept) > 1_000_000
    assert dict(headers)["tidemark.value.bytes"] == b"1080000"
    assert dict(headers)["tidemark.offset"] == b"5"


def test_should_never_store_a_changelog_offset_that_is_too_high_in_the_checkpoint(rig):
    rig.commit()
    rig.commit(rig.update(2))
    checkpoint = rig.store.checkpoint
    end = rig.ends.of([rig.changelog])[rig.changelog]
    # Two records, perhaps a marker, two records; the second transaction's own marker comes later.
    assert 4 <= checkpoint.changelog_offset <= min(end, 5)
    assert checkpoint.source_offsets == {rig.source: 20}


def test_should_commit_nothing_for_a_task_that_was_revoked_before(rig):
    rig.member.ownership.revoked([rig.task.lead])
    with pytest.raises(TasksRevoked):
        rig.commit()
    assert rig.points == []
    assert rig.visible(rig.sink) == []


def test_should_commit_nothing_when_a_task_was_revoked_and_assigned_again(rig):
    """The instance owns the task again, but it has not owned it without a break since the restore."""
    rig.member.ownership.revoked([rig.task.lead])
    rig.member.ownership.assigned([rig.task.lead])
    with pytest.raises(TasksRevoked):
        rig.commit()


def test_should_abort_and_leave_nothing_when_a_task_is_lost_during_the_commit(rig):
    def lose(point):
        if point == "4-commit-records":
            rig.member.ownership.revoked([rig.task.lead])

    object.__setattr__(rig.committer, "probe", lose)
    with pytest.raises(TasksRevoked):
        rig.commit()
    assert rig.visible(rig.sink) == rig.visible(rig.changelog.topic) == rig.visible(f"{rig.app}-commits") == []
    assert committed_offsets(rig.client, rig.app, [rig.task.lead], 20) == {}
    assert (rig.store.checkpoint, rig.task.next_offsets) == (None, {rig.source: 0})


def test_should_abort_when_there_is_no_generation_and_continue_when_there_is_one_again(rig, monkeypatch):
    real = rig.member.metadata
    monkeypatch.setattr(rig.member, "metadata", lambda: GroupMetadata(b"", -1, ""))
    with pytest.raises(BatchAborted, match="no valid generation"):
        rig.commit()
    assert rig.visible(rig.sink) == []
    monkeypatch.setattr(rig.member, "metadata", real)
    rig.commit()
    assert len(rig.visible(rig.sink)) == 1


class RemovedClient:
    """A client that the group has removed: it has joined again, and has not called back yet."""

    def __init__(self, consumer):
        self._consumer = consumer

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def memberid(self):
        return "the id after it was removed"


def test_should_discard_a_batch_when_the_member_was_removed_from_the_group_and_joined_again(rig, monkeypatch):
    """Found by a chaos run: an instance that was paused for 54 s committed a batch that another had committed meanwhile.

    Its client had rejoined, so the coordinator accepted its generation; the callback that revokes the partition came later.
    """
    epoch = rig.member.ownership.epoch(rig.task.lead)
    with rig.lock:
        monkeypatch.setattr(rig.member, "_consumer", RemovedClient(rig.member._consumer))
        with pytest.raises(TasksRevoked):
            rig.commit()
        assert rig.visible(rig.sink) == rig.visible(rig.changelog.topic) == rig.visible(f"{rig.app}-commits") == []
        assert committed_offsets(rig.client, rig.app, [rig.task.lead], 20) == {}
        # The group may leave the partition with it, and call back with nothing new.
        rig.member._assigned(rig.member._consumer, [])
        assert rig.member.ownership.epoch(rig.task.lead) > epoch
        with pytest.raises(TasksRevoked):
            rig.commit()


def replace_before_step_5(rig, settings, monkeypatch):
    """Another request to join for the same instance reaches the coordinator after the batch's group metadata was read."""
    send_offsets = rig.producer.send_offsets
    coordinator = describe_group(settings, rig.admin, rig.app).coordinator

    def replaced(offsets, group):
        address = f"{coordinator.host}:{coordinator.port}"
        join_group(address, rig.app, f"{rig.app}-0", [rig.source])
        send_offsets(offsets, group)

    monkeypatch.setattr(rig.producer, "send_offsets", replaced)


def test_should_end_when_another_member_has_taken_its_place_at_step_5(rig, settings, monkeypatch):
    replace_before_step_5(rig, settings, monkeypatch)
    with rig.lock, pytest.raises(InstanceFenced):
        rig.commit()
    assert rig.visible(rig.sink) == []


def test_should_discard_a_batch_when_the_member_itself_has_rejoined_at_step_5(rig, settings, monkeypatch):
    """The client rejoins in its own thread; the coordinator then answers the old member id as if there were another copy."""
    replace_before_step_5(rig, settings, monkeypatch)
    replaced = rig.producer.send_offsets

    def rejoined(offsets, group):
        monkeypatch.setattr(rig.member, "_consumer", RemovedClient(rig.member._consumer))
        replaced(offsets, group)

    monkeypatch.setattr(rig.producer, "send_offsets", rejoined)
    with rig.lock, pytest.raises(TasksRevoked):
        rig.commit()
    assert rig.member.ownership.held() == {}
    assert rig.visible(rig.sink) == []


def test_should_abort_when_a_changelog_did_not_receive_every_record(rig, monkeypatch):
    send = rig.producer.send_many

    def lossy(topic, messages, partition=None):
        send(topic, messages[:-1] if topic == rig.changelog.topic else messages, partition)

    monkeypatch.setattr(rig.producer, "send_many", lossy)
    with pytest.raises(BatchAborted, match="did not receive all 2 records"):
        rig.commit()
    assert rig.visible(rig.sink) == []


def test_should_write_commit_records_that_compaction_keeps_for_the_audit(rig, admin, settings):
    resource = ConfigResource(ResourceType.TOPIC, f"{rig.app}-commits")
    config = admin.describe_configs([resource])[resource].result()
    assert config["cleanup.policy"].value == "compact"
    assert config["min.compaction.lag.ms"].value == str(settings.commit_record_retention_ms) == "604800000"
    rig.commit()
    ((key, value, _),) = rig.visible(f"{rig.app}-commits")
    assert (key, json.loads(value)["kind"]) == (b"0_0", "batch")


def test_should_write_nothing_to_a_changelog_that_has_lost_what_its_store_has(rig):
    rig.commit()
    offset = rig.store.checkpoint.changelog_offset
    topic = rig.changelog.topic
    rig.admin.delete_topics([topic])[topic].result(60)

    def is_there_and_empty():
        rig.admin.create_topics([NewTopic(topic, 4, 1)])[topic].exception(60)
        try:
            return rig.ends.of([rig.changelog]) == {rig.changelog: 0}
        except OutcomeUnknown:
            return False

    assert wait_until(is_there_and_empty, 60)
    rig.points.clear()
    with pytest.raises(OutcomeUnknown, match=f"ends at 0, but its store has what was written up to {offset}"):
        rig.commit()
    assert rig.points == []
