"""An application without Spark: its topics on a real broker, and transactions written by hand as an instance writes them."""

from __future__ import annotations

from collections import defaultdict

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from rocksdict import Cache
from tests.support.truth.topics import read_all

from tidemark.clock import wall_clock_ms
from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitKind, commit_record
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import topic_ids
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.preflight import preflight
from tidemark.kafka.topic_config import changelog_policies
from tidemark.kafka.topics import ensure_user_topics, partition_counts
from tidemark.names import DESCRIPTION_KEY, TaskId, TopicPartition, commits_topic, topology_topic
from tidemark.processes import wait_until
from tidemark.recovery.facts import Witnesses
from tidemark.registry.reader import describe_resolved
from tidemark.registry.topic_identities import topics_in_use
from tidemark.restore.store_builder import StoreOpener
from tidemark.standby.copies import standby_name
from tidemark.standby.follower import Follower
from tidemark.standby.plan import plan_standby
from tidemark.stores.directory import InstanceDirectory
from tidemark.stores.layout import WINDOW_START_BYTES
from tidemark.stream_times import NO_STREAM_TIME, StreamTimes
from tidemark.tasks.task import changelog_of


def count(n: int) -> bytes:
    """A stored value of `count()`."""
    return b"\x03\x01" + (1).to_bytes(8, "little") + n.to_bytes(8, "little")


def in_window(key: bytes, start_ms: int) -> bytes:
    """A key of a window store."""
    return key + start_ms.to_bytes(WINDOW_START_BYTES, "big")


class Application:
    """One sub-topology over one source of `partitions`."""

    def __init__(self, plan, settings, admin: AdminClient, partitions: int = 2, create_sources: bool = True):
        self.plan, self.settings, self.admin, self.partitions = plan, settings, admin, partitions
        self.id = plan.application_id
        self.source = plan.subtopologies[0].lead.topic
        if create_sources:
            ensure_user_topics(plan, settings.model_copy(update={"num_partitions": partitions}), admin)
        preflight(plan, settings, admin)
        self.client = librdkafka_config(settings)
        self.ends = EndOffsets(admin, 60)
        self.offsets = dict.fromkeys(range(partitions), 0)
        self.batches = defaultdict(int)
        self._begun: list[TopicPartition] = []
        self._producer = Producer({**self.client, "transactional.id": f"{self.id}-writer"})
        self._producer.init_transactions(60)
        self._others = Producer(self.client)

    def changelog(self, store: str, partition: int = 0) -> TopicPartition:
        """The changelog partition of a store."""
        spec = next(spec for spec in self.plan.stores if spec.name == store)
        return TopicPartition(changelog_of(self.id, spec), partition)

    def write(self, records, place: TopicPartition):
        """Records of somebody else, (key, value), without a transaction."""
        for key, value in records:
            self._others.produce(place.topic, key=key, value=value, partition=place.partition)
        assert self._others.flush(60) == 0

    def write_at(self, records, place: TopicPartition, timestamp_ms: int):
        """The same, as written at that time."""
        for key, value in records:
            self._others.produce(place.topic, key=key, value=value, partition=place.partition, timestamp=timestamp_ms)
        assert self._others.flush(60) == 0

    def begin(self, writes, stream_time_ms=NO_STREAM_TIME):
        """Open a transaction with changelog records, {store: {partition: [(key, value)]}}, and each task's commit record."""
        self._producer.begin_transaction()
        touched = sorted({partition for by_partition in writes.values() for partition in by_partition})
        self._begun = [self.changelog(store, p) for store, by_partition in writes.items() for p in by_partition]
        self._begun += [TopicPartition(commits_topic(self.id), partition) for partition in touched]
        for store, by_partition in writes.items():
            for partition, records in by_partition.items():
                for key, value in records:
                    self._producer.produce(self.changelog(store).topic, key=key, value=value, partition=partition)
        self._record(touched, stream_time_ms)
        self._producer.flush(60)

    def _times(self, stream_time_ms):
        return StreamTimes(stream_time_ms, {store.name: stream_time_ms for store in self.plan.stores})

    def _record(self, touched, stream_time_ms):
        # As every first commit does.
        if not self.batches:
            ids = topic_ids(self.admin, list(topics_in_use(self.plan)), self.settings)
            found = describe_resolved(self.plan, None, partition_counts(self.admin, self.settings), ids, {})
            self._producer.produce(topology_topic(self.id), key=DESCRIPTION_KEY, value=found.to_bytes(), partition=0)
        for partition in touched:
            self.batches[partition] += 1
            record = commit_record(
                CommitKind.BATCH, self.id, self.plan.version, TaskId(0, partition), self.batches[partition], wall_clock_ms(),
                spans={self.source: (0, self.offsets[partition])}, stream_times=self._times(stream_time_ms),
                changelogs={}, ends_before={},
            )  # fmt: skip
            key = str(record.task).encode()
            self._producer.produce(commits_topic(self.id), key=key, value=record.to_bytes(), partition=partition)
        times, version = self._times(stream_time_ms), self.plan.version
        metadata = {p: OffsetMetadata(self.batches[p], times, version).encode() for p in touched}
        group = Consumer({**self.client, "group.id": self.id})
        self._producer.send_offsets_to_transaction(
            [ClientPartition(self.source, p, self.offsets[p], metadata[p]) for p in touched],
            group.consumer_group_metadata(),
            60,
        )
        group.close()

    def end(self, commits=True):
        """Commit or abort what was begun, and wait for the markers, for which the client does not wait."""
        if commits:
            self._producer.commit_transaction(60)
        else:
            self._producer.abort_transaction(60)
        assert wait_until(lambda: self.ends.stable(self._begun) == self.ends.of(self._begun), 60), "no markers"

    def commit(self, writes, stream_time_ms=NO_STREAM_TIME):
        """One whole transaction."""
        self.begin(writes, stream_time_ms)
        self.end()

    def rows(self, store: str, partition: int = 0):
        """Committed records of a changelog partition."""
        place = self.changelog(store, partition)
        return read_all(self.settings.bootstrap_servers, [place.topic])[(place.topic, place.partition)]

    def fold(self, store: str, partition: int = 0, before_offset: int = 1 << 62) -> dict[bytes, bytes]:
        """What a store must hold when its changelog was read up to `before_offset`."""
        state = {row.key: row.value for row in self.rows(store, partition) if row.offset < before_offset}
        return {key: value for key, value in state.items() if value is not None}

    def follower(self, number: int = 0, clock=wall_clock_ms) -> tuple[Follower, InstanceDirectory]:
        """A standby that moves only when it is told to."""
        plan, policies = self.plan, changelog_policies(self.plan)
        witnesses = Witnesses(plan, self.settings, self.client, self.ends, policies, clock)
        standby = plan_standby(self.plan, partition_counts(self.admin, self.settings))
        directory = InstanceDirectory(self.settings.state_dir, self.id, standby_name(number))
        return Follower(witnesses, standby, directory, StoreOpener(self.settings, Cache(1 << 20), clock)), directory

    def follow(self, follower: Follower, timeout_s: float = 60.0) -> None:
        """Step until every copy has reached what is committed now."""
        ends = self.ends.of([store.job.changelog for store in follower.stores])
        follow_until(follower, lambda: all(s.next_offset >= ends[s.job.changelog] for s in follower.stores), timeout_s)


def follow_until(follower: Follower, condition, timeout_s: float = 60.0) -> None:
    """Step until the condition holds."""

    def stepped() -> bool:
        follower.step()
        return condition()

    assert wait_until(stepped, timeout_s, every_s=0.0), [(s.name, s.next_offset, s.bounds) for s in follower.stores]


def contents(store) -> dict[bytes, bytes]:
    """Everything in a store."""
    return {key: value for segment in store.segments() for key, value in store.items(segment)}
