"""One broker behind a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import brief
from tests.system.chaos.proxy import Proxy, proxied

from tidemark.devstack import ports
from tidemark.devstack.broker import EmbeddedBroker, new_cluster_id
from tidemark.devstack.broker_config import Node


@pytest.fixture(scope="module")
def proxied_broker(
    mark: str, kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EmbeddedBroker, Proxy]]:
    """A broker, whose clients at `127.0.0.1:<proxy.port>` speak to the proxy alone."""
    taken: set[int] = set()
    for _ in range(4):
        taken.add(ports.free_port(taken))
    own, controller, behind, front = sorted(taken)
    bare = Node(1, own, {1: controller}, new_cluster_id())
    node = Node(1, own, bare.voters, bare.cluster_id, proxied(bare, behind, front))
    with (
        brief(EmbeddedBroker(tmp_path_factory.mktemp("proxied"), kafka_jars, node=node)) as broker,
        Proxy(front, behind) as proxy,
    ):
        yield broker, proxy
