"""Brokers that live as long as the tests that use them: formatted by copying, and killed in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemark.devstack.broker import EmbeddedBroker, EmbeddedCluster, new_cluster_id

Brokers = TypeVar("Brokers", EmbeddedBroker, EmbeddedCluster)

_META, _BOOTSTRAP = "meta.properties", "bootstrap.checkpoint"
_formatted: dict[str, bytes] = {}
"""What Kafka's tool has written for the first broker of this process."""
_KEEP_ALL = {"log.retention.ms": "-1"}
"""Tests use fixed timestamps, and Kafka deletes what is older than seven days within five minutes."""
SINGLE_BROKER: Mapping[str, str] = {
    "metadata.max.idle.interval.ms": "0",
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "9000",
}
"""Settings of a broker that is never killed and has no other beside it: while it is idle, it uses half as much of a core.

By default it writes a record twice a second to show other brokers that its log is alive. Brokers of tests send heartbeats as
often, so that one that was killed is soon admitted again.
"""


@contextmanager
def brief(brokers: Brokers) -> Iterator[Brokers]:
    """Start the brokers, and kill them at the end of the block.

    Kafka's tool, which takes a JVM of its own, formats the folder of the first broker, and the others get a copy with their own
    ids. They keep records of any age, unless a topic says otherwise. An orderly stop takes seconds, for which nobody needs what
    the brokers hold.
    """
    nodes = [brokers] if isinstance(brokers, EmbeddedBroker) else list(map(brokers.node, brokers.node_ids))
    for node in nodes:
        node.node = replace(node.node, overrides={**_KEEP_ALL, **node.node.overrides})
        _format(node)
    with brokers:
        _keep(nodes[0].folder / "data")
        try:
            yield brokers
        finally:
            for node in nodes:
                node.kill()


def delete_topics(broker: EmbeddedBroker, more_than: int) -> None:
    """Delete all topics but Kafka's own if there are more than so many. Blocks."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    names = [name for name in admin.list_topics(timeout=60).topics if not name.startswith("__")]
    if len(names) > more_than:
        for deleted in admin.delete_topics(names, operation_timeout=30).values():
            with suppress(KafkaException):  # Its test may have just deleted it.
                deleted.result(60)


class KeptCluster:
    """A cluster that is started when it is first needed, and again after its end. As a context manager it ends then, too."""

    def __init__(self, starting: Callable[[], AbstractContextManager[EmbeddedCluster]]) -> None:
        self._starting = starting
        self._started = ExitStack()
        self._cluster: EmbeddedCluster | None = None

    def __enter__(self) -> KeptCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def running(self) -> EmbeddedCluster:
        """All of its nodes, those that a test has killed as well."""
        if self._cluster is None:
            self._cluster = self._started.enter_context(self._starting())
        return self._cluster.start()

    def end(self) -> None:
        """Kill it; its data is not kept."""
        self._cluster = None
        self._started.close()


def _keep(data: Path) -> None:
    for name in () if _formatted else (_META, _BOOTSTRAP):
        _formatted[name] = (data / name).read_bytes()


def _format(broker: EmbeddedBroker) -> None:
    data = broker.folder / "data"
    if not _formatted or data.exists():
        return
    node = broker.node
    own = {"cluster.id": node.cluster_id, "node.id": str(node.node_id), "directory.id": new_cluster_id()}
    known = dict(line.split("=", 1) for line in _formatted[_META].decode().splitlines() if not line.startswith("#"))
    if not own.keys() <= known.keys():
        raise RuntimeError(f"{_META} has {sorted(known)}, and should have {sorted(own)}")
    data.mkdir(parents=True)
    (data / _BOOTSTRAP).write_bytes(_formatted[_BOOTSTRAP])
    (data / _META).write_text("".join(f"{name}={value}\n" for name, value in {**known, **own}.items()))
