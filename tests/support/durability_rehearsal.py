"""Applications of different durability on three brokers, records written as instances write them, and what is left of them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.truth.topics import read_all

from tidemark.checks.durability_sampling import check_durability
from tidemark.commit.producer import BatchProducer, IdempotentProducer, TransactionalProducer
from tidemark.devstack.broker import EmbeddedCluster
from tidemark.errors import BatchAborted, BrokersAway, PreflightFailed, TidemarkError
from tidemark.kafka.cluster import PartitionFacts, describe_replicas
from tidemark.kafka.preflight import preflight
from tidemark.kafka.topics import internal_topics
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.topology.builder import Topology
from tidemark.topology.plan import Acks, Guarantee, TopologyPlan
from tidemark.verdict import Finding

EACH = 40
"""Records of one stage of a rehearsal."""
_TIMEOUT_MS = 3000
_WAIT_S = 120
LEADER, FOLLOWERS = 1, (2, 3)


@dataclass(frozen=True)
class Profile:
    """The guarantee and acks of an application, and the replicas and `min.insync.replicas` of its topics."""

    guarantee: str
    acks: str
    replicas: int
    min_in_sync: int

    def __str__(self) -> str:
        return f"`{self.guarantee}`, `acks={self.acks}`, {self.replicas}, {self.min_in_sync}"


@dataclass
class Lane:
    """One topic of an application, written to by the product's own producer.

    `acknowledged` are the values that it was told are written. `producer` None: to be made again, as after every error but
    `BatchAborted`.
    """

    topic: str
    make_producer: Callable[[], BatchProducer]
    acknowledged: set[bytes] = field(default_factory=set)
    producer: BatchProducer | None = None

    def write(self, stage: str) -> None:
        """One batch. What it is told was not written does not count: an instance would write it again."""
        values = stage_values(stage)
        if self.producer is None or values <= self.acknowledged:
            return
        try:
            self.producer.begin()
            self.producer.send_many(self.topic, [{"key": b"k", "value": value} for value in values], partition=0)
            self.producer.flush()
            self.producer.commit()
        except BatchAborted:
            return
        except TidemarkError:
            self.producer = None
            return
        self.acknowledged |= values

    def has_written(self, stage: str) -> bool:
        """Write with a producer that is fit to, and say whether it is acknowledged."""
        self.producer = self.producer or self.make_producer()
        self.write(stage)
        return stage_values(stage) <= self.acknowledged


def stage_values(stage: str) -> set[bytes]:
    """The values of the records that one stage writes."""
    return {f"{stage}-{number}".encode() for number in range(EACH)}


@dataclass
class App:
    """An application of one profile: its outputs and its changelog, led by broker 1."""

    profile: Profile
    plan: TopologyPlan
    settings: Settings
    out: Lane
    changelog: Lane

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Both."""
        return self.out, self.changelog

    def findings(self) -> dict[str, Finding]:
        """Run the durability check, and give its findings by subject."""
        return {finding.subject: finding for finding in check_durability(self.plan, self.settings)}


def _topology(name: str, profile: Profile) -> Topology:
    topology = Topology(name, guarantee=profile.guarantee, acks=profile.acks)
    records = topology.stream(f"{name}-in", schema="id STRING")
    records.group_by_key().count(name="n", store="n").to(f"{name}-out")
    return topology


def _is_stopped(pid: int) -> bool:
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def refusal(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> str:
    """Why the application may not start; empty where it may. The broker that is asked may not have heard of a change yet."""
    try:
        preflight(plan, settings, admin)
    except PreflightFailed as error:
        return str(error)
    return ""


class Rehearsal:
    """The applications of one accident, their topics new, so that broker 1 leads all."""

    def __init__(self, cluster: EmbeddedCluster, var_dir: Path, name: str, profiles: Sequence[Profile]) -> None:
        self._cluster = cluster
        # Broker 2 is the one that is away for long: a client that begins with it waits.
        self._bootstrap = ",".join(cluster.node(node).bootstrap for node in (1, 3))
        self._admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        self._pool = ThreadPoolExecutor(2 * len(profiles))
        names = [f"{name}-{number}" for number in range(len(profiles))]
        self.apps = [self._make(var_dir, *each) for each in zip(names, profiles, strict=True)]
        self._settings = self.apps[0].settings
        topics = describe_replicas(self._admin, self._settings)[1]
        self._topics = [topic for topic in topics if topic.startswith(f"{name}-")]
        self.wait_whole()
        self.wait_for(lambda p: p.leader == LEADER)

    def _make(self, var_dir: Path, name: str, profile: Profile) -> App:
        settings = Settings.load(
            bootstrap_servers=self._bootstrap, var_dir=var_dir, state_dir=var_dir, num_partitions=1,
            replication_factor=profile.replicas,
        )  # fmt: skip
        plan = _topology(name, profile).plan()
        config = {topic: {} for topic in (f"{name}-in", f"{name}-out")}
        config |= {spec.name: dict(spec.config) for spec in internal_topics(plan, settings, {f"{name}-in": 1})}
        placed = [list(range(1, profile.replicas + 1))]
        in_sync = {"min.insync.replicas": str(profile.min_in_sync)}
        wanted = [
            NewTopic(topic, 1, replica_assignment=placed, config={**own, **in_sync}) for topic, own in config.items()
        ]
        for future in self._admin.create_topics(wanted).values():
            future.result(_WAIT_S)
        assert wait_until(lambda: not refusal(plan, settings, self._admin), _WAIT_S)
        topics = (f"{name}-out", f"{name}-n-changelog")
        lanes = [Lane(topic, partial(self._producer, plan, topic)) for topic in topics]
        return App(profile, plan, settings, *lanes)

    def _producer(self, plan: TopologyPlan, topic: str) -> BatchProducer:
        client = {"bootstrap.servers": self._bootstrap, "log_level": 0}
        if plan.guarantee is Guarantee.EXACTLY_ONCE:
            # A transaction of its own for each, so that each topic shows by itself what was acknowledged.
            producer: BatchProducer = TransactionalProducer(client, f"{topic}-0", _TIMEOUT_MS, 1000)
        else:
            outputs = plan.output_topics
            producer = IdempotentProducer(client, topic, _TIMEOUT_MS, 1000, lambda _: None, plan.acks, outputs)
        producer.init(_WAIT_S)
        return producer

    def _partitions(self) -> list[PartitionFacts]:
        found = describe_replicas(self._admin, self._settings)[1]
        return [found[topic][0] for topic in self._topics]

    def verdicts(self) -> list[dict[str, Finding]]:
        """What the check says of each application."""
        return list(self._pool.map(App.findings, self.apps))

    def write(self, stage: str) -> None:
        """One batch to each topic, side by side."""
        list(self._pool.map(lambda lane: lane.write(stage), self._lanes))

    def answer_fetches(self) -> None:
        """Let the leader answer what its frozen followers have asked for, so that they get nothing of what is written next."""
        bait = f"{self.apps[0].plan.application_id}-in"
        client = {"bootstrap.servers": self._bootstrap, "log_level": 0}
        producer = IdempotentProducer(client, bait, 5 * _TIMEOUT_MS, 10, lambda _: None, Acks.LEADER, [bait])
        producer.send_many(bait, [{"key": b"k", "value": b"{}"}], partition=0)
        producer.flush()

    def write_all(self, stage: str) -> None:
        """The same, until all of it is acknowledged."""
        assert wait_until(lambda: all(self._pool.map(lambda lane: lane.has_written(stage), self._lanes)), _WAIT_S)

    def wait_replicated(self, stage: str) -> None:
        """Until readers see a stage, which is when every replica in sync has it."""
        values = stage_values(stage)
        assert wait_until(lambda: all(values <= found for found in self.present().values()), _WAIT_S)

    @property
    def _lanes(self) -> list[Lane]:
        return [lane for app in self.apps for lane in app.lanes]

    def present(self) -> dict[str, set[bytes | None]]:
        """The values that each topic holds, by what its leader shows readers."""
        topics = [lane.topic for lane in self._lanes]
        found = read_all(self._bootstrap, topics)
        return {topic: {row.value for row in found[(topic, 0)]} for topic in topics}

    def wait_for(self, holds: Callable[[PartitionFacts], bool]) -> None:
        """Until it holds for every partition, as brokers see it that answer."""

        def all_hold() -> bool:
            try:
                return all(map(holds, self._partitions()))
            except BrokersAway:
                return False

        assert wait_until(all_hold, _WAIT_S)

    def wait_whole(self) -> None:
        """Until every topic has its leader and all of its replicas in sync."""
        self.wait_for(lambda p: p.leader is not None and p.in_sync == p.replicas)

    def signal(self, number: signal.Signals, *nodes: int) -> None:
        """Freeze brokers, or let them go on."""
        for node in nodes:
            identity = self._cluster.node(node).identity
            assert identity is not None
            os.kill(identity.pid, number)
            if number is signal.SIGSTOP:
                # Each thread stops when it is scheduled next; until then it may still answer.
                assert wait_until(lambda pid=identity.pid: _is_stopped(pid), _WAIT_S)

    def kill(self, node: int) -> None:
        """End a broker, which has been frozen, so that it does nothing more."""
        self.signal(signal.SIGSTOP, node)
        self._cluster.kill_node(node)

    def lose_disk(self, node: int) -> None:
        """What a killed broker held of these topics."""
        for topic in self._topics:
            for part in (self._cluster.node(node).folder / "data").glob(f"{topic}-[0-9]*"):
                shutil.rmtree(part)

    def close(self) -> None:
        """Ends its threads."""
        self._pool.shutdown()
