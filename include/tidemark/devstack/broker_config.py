"""The settings of an embedded broker: a pure function from a node's place in its cluster to `server.properties`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.local.ports import LOOPBACK


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


def as_properties(entries: Mapping[str, str]) -> str:
    """Return the entries in Java's `.properties` format, in ASCII: Java reads the file as Latin-1."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in entries.items())


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\")
    plain = "".join(c if " " <= c <= "~" else _units(c) for c in text)
    return "\\" + plain if plain.startswith(" ") else plain


def _units(character: str) -> str:
    """Return a character as Java's UTF-16 units."""
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def log4j_properties(log: Path, level: str = "WARN") -> str:
    """Return Log4j 2 properties: everything from `level` up goes to one file that rolls over at 20 MB."""
    return as_properties(
        {
            "status": "error",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": str(log),
            "appender.file.filePattern": f"{log}.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d{ISO8601} %p %c{1} %m%n",
            "appender.file.policies.type": "Policies",
            "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size.size": "20MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": "2",
            "rootLogger.level": level,
            "rootLogger.appenderRef.file.ref": "file",
        }
    )
