"""The two sides: each is one process with its own input and output topics, watched from outside."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.sides import Command
from tests.system.peers import java
from tests.system.peers.cases import PARTITIONS, Case

from tidemark.kafka.properties import as_properties
from tidemark.settings import Settings, project_root

COMMIT_INTERVAL_MS = 200


class Side(Protocol):
    """One of the two. Topics of a case are named with `prefix` before them."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def prefix(self) -> str:
        """So that each side's input can be produced in step with what that side has committed."""

    def group(self, case: Case) -> str:
        """The consumer group whose committed offsets say how far it is."""

    def command(self, case: Case, bootstrap: str, folder: Path) -> Command:
        """The command for one run, with its state under `folder`."""


@dataclass(frozen=True)
class JavaSide:
    """Kafka Streams: `Peers.java`."""

    settings: Settings
    name: str = "java"
    prefix: str = "java-"

    def group(self, case: Case) -> str:
        """The application id."""
        return f"java-{case.application_id}"

    def command(self, case: Case, bootstrap: str, folder: Path) -> Command:
        """Compile if needed and write the configuration."""
        configuration = folder / "peer.properties"
        values = {
            "application.id": self.group(case),
            "bootstrap.servers": bootstrap,
            "state.dir": str(folder / "state"),
            "processing.guarantee": "exactly_once_v2",
            "num.stream.threads": "2",
            "commit.interval.ms": str(COMMIT_INTERVAL_MS),
            "auto.offset.reset": "earliest",
            # What the brokers have of the other topic is waited for in any case; this is for what they do not have yet.
            "max.task.idle.ms": "1000",
            # Rows without a partner are looked for at most once a second of the wall clock otherwise, the last ones never.
            "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": "0",
            **{f"peers.input.{role}": self.prefix + case.input(role) for role in case.roles},
            "peers.output": self.prefix + case.output,
            **{f"peers.output.{name}": self.prefix + case.topic(name) for name in case.extra_outputs},
        }
        configuration.write_text(as_properties(values), encoding="utf-8")
        return Command(java.program(self.settings, "Peers", case.name, configuration), {})


@dataclass(frozen=True)
class TidemarkSide:
    """One real instance of the case's topology in `tests/system/peers/topologies`."""

    settings: Settings
    max_batch_records: int
    name: str = "tidemark"
    prefix: str = ""

    def group(self, case: Case) -> str:
        """The application id."""
        return case.application_id

    def command(self, case: Case, bootstrap: str, folder: Path) -> Command:
        """The instance's command, its settings in the environment."""
        root = project_root()
        settings = Settings.load(
            bootstrap_servers=bootstrap,
            var_dir=folder / "var",
            state_dir=folder / "state",
            commit_interval_ms=COMMIT_INTERVAL_MS,
            max_batch_records=case.batch_records(self.max_batch_records),
            num_partitions=PARTITIONS,
            replication_factor=1,
            cache_dir=self.settings.cache_dir,
        )
        program = [sys.executable, str(root / "spark_jobs" / "stream_instance.py")]
        program += ["--topology", case.topology, "--instance", "0"]
        paths = os.pathsep.join([str(root / "include"), str(root)])
        return Command(
            program,
            {
                **settings.as_environment(),
                "PYTHONPATH": paths,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "TIDEMARK_TOPOLOGY_PATH": str(root / "tests" / "system" / "peers" / "topologies"),
            },
        )
