"""Three brokers, each behind a proxy, and the disks that can be full."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.brokers import brief
from tests.system.chaos.proxy import Proxy, proxied
from tests.system.crash import disk

from tidemark.devstack.broker import EmbeddedCluster
from tidemark.devstack.broker_config import Node
from tidemark.devstack.ports import LOOPBACK
from tidemark.kafka import jars
from tidemark.settings import Settings

LARGEST_RECORD = 4 << 20


class Brokers:
    """Three nodes; clients of `proxied` go through one proxy per node, those of `direct` do not."""

    def __init__(self, folder: Path) -> None:
        self._front: dict[int, int] = {}
        self._behind: dict[int, int] = {}

        def overrides(node: Node, free_port: Callable[[], int]) -> dict[str, str]:
            self._front[node.node_id], self._behind[node.node_id] = free_port(), free_port()
            return proxied(node, self._behind[node.node_id], self._front[node.node_id]) | {
                "message.max.bytes": str(LARGEST_RECORD + (1 << 20)),
                "replica.fetch.max.bytes": str(LARGEST_RECORD + (1 << 20)),
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
                "log.segment.bytes": str(256 << 20),
            }

        self.cluster = EmbeddedCluster(folder, jars.ensure("kafka", Settings.load()), overrides=overrides, heap="640m")
        self.proxies = {node: Proxy(self._front[node], self._behind[node]) for node in self.cluster.node_ids}
        self.direct = self.cluster.bootstrap
        self.proxied = ",".join(f"{LOOPBACK}:{port}" for port in self._front.values())
        self._folder = folder
        self._started = ExitStack()

    def __enter__(self) -> Brokers:
        with ExitStack() as stack:
            for started in (brief(self.cluster), *self.proxies.values()):
                stack.enter_context(started)
            self._started = stack.pop_all()
        return self

    def __exit__(self, *ended: object) -> None:
        self._started.close()

    def disk(self, node: int) -> Path:
        """A node's folder."""
        return _disk_of(self._folder, node)

    def alive(self) -> list[int]:
        """The nodes whose processes run."""
        return [node for node in self.cluster.node_ids if self.cluster.node(node).is_alive()]

    @contextmanager
    def stopped(self, node: int) -> Iterator[None]:
        """SIGSTOP until the end of the block."""
        identity = self.cluster.node(node).identity
        assert identity is not None
        os.kill(identity.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(identity.pid, signal.SIGCONT)


def _disk_of(folder: Path, node: int) -> Path:
    return folder / f"node-{node}"


@contextmanager
def disks_of_their_own(folder: Path, is_wanted: bool, nodes: Iterable[int]) -> Iterator[bool]:
    """A disk that can be full under one machine's state, under `var` and under these brokers; False where there is none."""
    if not (is_wanted and disk.may_mount()):
        yield False
        return
    brokers = [_disk_of(folder / "brokers", node) for node in nodes]
    with ExitStack() as stack:
        for place in (folder / "disks" / "machine-0", folder / "var", *brokers):
            stack.enter_context(disk.mounted(place))
        yield True
