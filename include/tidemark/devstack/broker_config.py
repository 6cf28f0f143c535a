"""The settings of an embedded broker: a pure function from a node's place in its cluster to `server.properties`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.devstack.ports import LOOPBACK


@dataclass(frozen=True)
class Node:
    """One KRaft node, broker and controller in one. `voters` maps every node's id to its controller port."""

    node_id: int
    port: int
    voters: Mapping[int, int]
    cluster_id: str
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """Return the address for clients."""
        return f"{LOOPBACK}:{self.port}"


def server_properties(node: Node, data: Path) -> dict[str, str]:
    """Return the settings of a development broker on loopback; the node's overrides win."""
    nodes = len(node.voters)
    replicas = str(min(3, nodes))
    in_sync = "2" if nodes >= 3 else "1"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(f"{n}@{LOOPBACK}:{port}" for n, port in sorted(node.voters.items())),
        "listeners": f"PLAINTEXT://{node.bootstrap},CONTROLLER://{LOOPBACK}:{node.voters[node.node_id]}",
        "advertised.listeners": f"PLAINTEXT://{node.bootstrap}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        # Topics are created only on purpose; a misspelt name must be an error.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        # Lower than the default of 6 s, so that a test may let a member expire sooner.
        "group.min.session.timeout.ms": "1000",
        # A killed broker is not admitted again before the session of its earlier life has ended (default 9 s).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # An open transaction of a dead producer holds readers back until its timeout plus this.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # The default of 128 MiB is a quarter of this broker's heap.
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "controlled.shutdown.max.retries": "1",
    } | dict(node.overrides)
