"""Real Kafka brokers on loopback, without Docker or an installation: KRaft nodes from the verified jars.

`EmbeddedBroker` is one node, `EmbeddedCluster` several. Both keep data, settings and logs in the folder they are
given, keep their ports over a stop and a start, and leave nothing running after `stop()`. To end them also if their
starter is killed, start them inside `processes.guarded`.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark import processes
from tidemark.devstack import ports
from tidemark.devstack.broker_config import Node, server_properties
from tidemark.errors import PreflightFailed
from tidemark.kafka import class_data, java
from tidemark.kafka.cluster import brokers_answer
from tidemark.kafka.properties import as_properties, log4j_properties

START_TIMEOUT_S = 120.0


def new_cluster_id() -> str:
    """Return a random id in Kafka's format: 16 bytes, base64 for URLs."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def answers(bootstrap: str, nodes: int = 1, timeout_s: float = 1.0, cluster_id: str | None = None) -> bool:
    """Return whether at least `nodes` brokers are known at an address that needs no login. Blocks for at most `timeout_s`.

    With `cluster_id`, only a broker of that cluster counts.
    """
    return brokers_answer({"bootstrap.servers": bootstrap}, timeout_s, nodes, cluster_id)


def cluster_id_of(folder: Path) -> str:
    """Return the id of the cluster whose data an embedded broker keeps in `folder`; an empty text if it has no data."""
    file = folder / "data" / "meta.properties"
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id=")), "")


class EmbeddedBroker:
    """One KRaft node, by default a cluster of its own.

    `port` 0 takes a free one. `overrides` win over `broker_config.server_properties`. `environment` is added to that of
    the process. As a context manager it starts, and stops at the end of the block.
    """

    def __init__(
        self,
        folder: Path,
        jars: Sequence[Path],
        port: int = 0,
        *,
        overrides: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        heap: str = "512m",
        node: Node | None = None,
    ) -> None:
        chosen = port or ports.free_port()
        self.node = node or Node(
            node_id=1,
            port=chosen,
            voters={1: ports.free_port({chosen})},
            cluster_id=new_cluster_id(),
            overrides=dict(overrides or {}),
        )
        self.folder = folder
        self.log = folder / "server.log"
        self.identity: processes.Identity | None = None
        self._jars = list(jars)
        self._environment = dict(environment or {})
        self._heap = heap

    @property
    def bootstrap(self) -> str:
        """Return the address for clients."""
        return self.node.bootstrap

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start the node and wait until it answers; keeps the data of an earlier run. Blocks.

        Raises `PreflightFailed` with the reason in its log if it does not answer.
        """
        self.launch()
        self.wait_ready(timeout_s=timeout_s)
        return self

    def launch(self) -> None:
        """Start the process without waiting for it; formats the data folder the first time, which blocks for about 2 s."""
        settings = self._configure()
        # A broker that was killed leaves unpacked libraries there.
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(settings)
        self.identity = processes.start(
            self._java(self._heap, "kafka.Kafka", settings),
            self.folder / "console.log",
            {**os.environ, **self._environment},
            self.folder,
        )

    def wait_ready(self, nodes: int = 1, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until this node answers and knows `nodes` brokers. Raises `PreflightFailed` as `start` does. Blocks."""
        ready = False

        def is_decided() -> bool:
            nonlocal ready
            ready = self.is_ready(nodes)
            return ready or not self.is_alive()

        processes.wait_until(is_decided, timeout_s)
        # A node that was ready is not asked again, because a busy one may be slow for a moment.
        if not ready and not self.is_ready(nodes, timeout_s=5.0):
            self.kill()
            raise PreflightFailed(
                f"the broker in {self.folder} did not answer at {self.bootstrap}: "
                f"{self._last_words()} (log: {self.log})"
            )

    def is_ready(self, nodes: int = 1, timeout_s: float = 1.0) -> bool:
        """Return whether its process runs, answers and knows `nodes` brokers. Blocks for at most `timeout_s`.

        The broker of another cluster that listens on its port does not count.
        """
        return self.is_alive() and answers(self.bootstrap, nodes, timeout_s, cluster_id_of(self.folder))

    def is_alive(self) -> bool:
        """Return whether its process runs."""
        return self.identity is not None and self.identity.is_alive()

    def stop(self, timeout_s: float = 20.0) -> bool:
        """End it with SIGTERM, as an operator would, and with SIGKILL after `timeout_s`. Blocks.

        Returns whether it has ended without SIGKILL.
        """
        return self.identity is None or processes.stop(self.identity, timeout_s)

    def kill(self) -> None:
        """End it with SIGKILL, as the loss of a machine would. Blocks until the process is gone."""
        if self.identity:
            processes.stop(self.identity, timeout_s=0.0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _configure(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "server.properties"
        settings.write_text(as_properties(server_properties(self.node, self.folder / "data")))
        (self.folder / "log4j2.properties").write_text(log4j_properties(self.log))
        return settings

    def _format(self, settings: Path) -> None:
        # With `=`, as an id may begin with a dash.
        # The tool accepts half-formatted folders, so a first start that was interrupted can begin again.
        arguments = ("format", "--ignore-formatted", f"--cluster-id={self.node.cluster_id}", "-c", str(settings))
        command = self._java("128m", "kafka.tools.StorageTool", *arguments)
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode != 0:
            raise PreflightFailed(
                f"failed to format the broker's folder {self.folder}: {_telling_line(said.stderr + said.stdout)}"
            )

    @property
    def _temporary(self) -> Path:
        return self.folder / "tmp"

    def _java(self, heap: str, main: str, *arguments: str | Path) -> list[str | Path]:
        return [
            java.find().executable, f"-Xmx{heap}", "-Djava.awt.headless=true", f"-Djava.io.tmpdir={self._temporary}",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            *class_data.java_options(class_data.kafka_archive(self._jars)),
            "-cp", os.pathsep.join(str(jar) for jar in self._jars), main, *arguments,
        ]  # fmt: skip

    def _last_words(self) -> str:
        logs = (self.log, self.folder / "console.log")
        return _telling_line("\n".join(log.read_text(errors="replace") for log in logs if log.exists()))


def _telling_line(text: str) -> str:
    """Return the line with the reason: the last cause in a Java trace, else the last line."""
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "..."))
    ]
    telling = [line for line in lines if "Exception" in line or " ERROR " in line or " FATAL " in line]
    return (telling or lines or ["no output"])[-1]


class EmbeddedCluster:
    """Several nodes, each broker and controller. Internal topics have three replicas if there are three nodes.

    `overrides` are the same for all nodes, or a function of a node and of a function that returns ports unused here.
    """

    def __init__(
        self,
        folder: Path,
        jars: Sequence[Path],
        nodes: int = 3,
        *,
        overrides: Mapping[str, str] | Callable[[Node, Callable[[], int]], Mapping[str, str]] | None = None,
        environment: Mapping[str, str] | None = None,
        heap: str = "320m",
    ) -> None:
        taken: set[int] = set()

        def free_port() -> int:
            taken.add(port := ports.free_port(taken))
            return port

        chosen = sorted(free_port() for _ in range(2 * nodes))
        voters = {node_id: chosen[nodes + node_id - 1] for node_id in range(1, nodes + 1)}
        cluster_id = new_cluster_id()
        self._brokers: dict[int, EmbeddedBroker] = {}
        for node_id in voters:
            node = Node(node_id, chosen[node_id - 1], voters, cluster_id)
            node = replace(node, overrides=overrides(node, free_port) if callable(overrides) else dict(overrides or {}))
            self._brokers[node_id] = EmbeddedBroker(
                folder / f"node-{node_id}", jars, environment=environment, heap=heap, node=node
            )

    @property
    def bootstrap(self) -> str:
        """Return the addresses of all nodes."""
        return ",".join(broker.bootstrap for broker in self._brokers.values())

    @property
    def node_ids(self) -> list[int]:
        """Return the ids, 1 to n."""
        return list(self._brokers)

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start the stopped nodes in parallel, and wait until each knows all. Blocks; raises `PreflightFailed`."""
        with ThreadPoolExecutor(len(self._brokers)) as pool:
            list(pool.map(lambda broker: broker.is_alive() or broker.launch(), self._brokers.values()))
        self.wait_ready(timeout_s)
        return self

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every node knows all. Raises `PreflightFailed` for a node that has ended or does not answer. Blocks."""
        nodes = list(self._brokers.values())
        count, ready = len(nodes), False

        def is_decided() -> bool:
            nonlocal ready
            ready = all(node.is_ready(count) for node in nodes)
            return ready or any(not node.is_alive() for node in nodes)

        processes.wait_until(is_decided, timeout_s)
        if not ready:
            for node in sorted(nodes, key=EmbeddedBroker.is_alive):
                node.wait_ready(count, timeout_s=0)

    def node(self, node_id: int) -> EmbeddedBroker:
        """Return one node."""
        return self._brokers[node_id]

    def stop_node(self, node_id: int) -> None:
        """End one node with SIGTERM, as an operator would."""
        self._brokers[node_id].stop()

    def kill_node(self, node_id: int) -> None:
        """End one node with SIGKILL, as the loss of a machine would."""
        self._brokers[node_id].kill()

    def start_node(self, node_id: int) -> None:
        """Start one node again with its ports and data, and wait until it answers."""
        self._brokers[node_id].start()

    def stop(self) -> None:
        """End all nodes in parallel."""
        # For an orderly stop a node waits for a quorum, which the last nodes no longer have: so the timeout is short.
        with ThreadPoolExecutor(len(self._brokers)) as pool:
            list(pool.map(lambda broker: broker.stop(timeout_s=10.0), self._brokers.values()))

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
