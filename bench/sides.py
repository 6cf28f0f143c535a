"""The two sides of the comparison: each is one command, started with an empty state folder and watched from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench import java_program, peer
from bench.case import AT_LEAST_ONCE, CONSUMER, OURS, PARTITIONS, PEER, Case
from bench.errors import BenchFailed
from tidemark.kafka import jars, java
from tidemark.settings import Settings, project_root
from tidemark.supervision.run_file import RunView, run_file_path
from tidemark.supervision.state import InstanceState

_STOP_S = 40.0


@dataclass(frozen=True)
class Command:
    """A command, and the variables that are added to the environment of this process."""

    arguments: list[str]
    environment: dict[str, str]


def has_written(log: Path, text: str) -> bool:
    """Return whether the log of a process contains a text."""
    return text in log.read_text(encoding="utf-8", errors="replace")


class Side(Protocol):
    """One of the two programs that are compared."""

    @property
    def name(self) -> str:
        """The name in tables and plots."""

    def group(self, case: Case) -> str:
        """Return the consumer group. Its committed offsets show the progress."""

    def command(self, case: Case, bootstrap: str, folder: Path, instance: int = 0) -> Command:
        """Return the command of one instance for one run, with its state under `folder`."""

    def is_running(
        self, case: Case, folder: Path, log: Path, process: subprocess.Popen[bytes], instance: int = 0
    ) -> bool:
        """Return whether `process`, this instance with `folder` and `log`, says that it is in state RUNNING."""


@dataclass(frozen=True)
class StreamsSide:
    """Kafka Streams with exactly_once_v2. RocksDB and the record cache have their defaults.

    Each instance serves its store with `query_threads` on a port that its log names, or not at all if that is 0.
    """

    settings: Settings
    heap: str = "2g"
    threads: int = 2
    overrides: dict[str, str] = field(default_factory=dict)
    query_threads: int = 0
    name: str = PEER

    def group(self, case: Case) -> str:
        """Return the application id, which is the same for every program."""
        return peer.APPLICATION_ID

    def command(self, case: Case, bootstrap: str, folder: Path, instance: int = 0) -> Command:
        """Return the command, after compiling the program if needed and writing its configuration."""
        if case.program.peer is None:
            raise BenchFailed(f"there is no program of {case.name} for Kafka Streams")
        libraries = jars.ensure("bench", self.settings)
        classes = peer.compile_peer(libraries)
        queries = {}
        if self.query_threads:
            queries = {"bench.query.threads": str(self.query_threads)}
        configuration = folder / f"peer-{instance}.properties"
        state_dir, values = folder / "state" / str(instance), {**queries, **self.overrides}
        configuration.write_text(
            peer.properties(case, bootstrap, state_dir, instance, self.threads, values), encoding="utf-8"
        )
        path = java_program.classpath([classes, *libraries])
        # The JDK's server sends the head and the body of an answer apart, and TCP would delay the body by up to 40 ms.
        without_delay = "-Dsun.net.httpserver.nodelay=true"
        program = [str(java.find().executable), f"-Xmx{self.heap}", without_delay, "-cp", path, case.program.peer]
        return Command([*program, str(configuration)], {})

    def is_running(
        self, case: Case, folder: Path, log: Path, process: subprocess.Popen[bytes], instance: int = 0
    ) -> bool:
        """Return whether the state listener has reported RUNNING."""
        return has_written(log, "-> RUNNING")


def raw_consumer(settings: Settings, heap: str) -> StreamsSide:
    """Return Java's consumer alone, which writes nothing."""
    return StreamsSide(settings, heap, name=CONSUMER)


@dataclass(frozen=True)
class TidemarkSide:
    """Real instances of a topology in `bench/topologies`. Each driver starts its own JVM, without spark-submit.

    `topology`, unless None, runs instead of the program's. It must have the same application id.
    """

    settings: Settings
    heap: str = "2g"
    overrides: dict[str, str] = field(default_factory=dict)
    name: str = OURS
    topology: str | None = None

    def group(self, case: Case) -> str:
        """Return the application id of the topology."""
        return case.program.application_id

    def command(self, case: Case, bootstrap: str, folder: Path, instance: int = 0) -> Command:
        """Return an instance's command, with its settings in the environment."""
        root = project_root()
        settings = Settings.load(
            bootstrap_servers=bootstrap,
            var_dir=folder / "var",
            state_dir=folder / "state",
            commit_interval_ms=case.commit_interval_ms,
            max_batch_records=case.max_batch_records,
            spark_driver_memory=self.heap,
            num_partitions=PARTITIONS,
            replication_factor=1,
            cache_dir=self.settings.cache_dir,
            **self.overrides,
        )
        program = [sys.executable, str(root / "spark_jobs" / "stream_instance.py")]
        program += ["--topology", self.topology or case.program.topology, "--instance", str(instance)]
        paths = os.pathsep.join([str(root / "include"), str(root)])
        return Command(
            program,
            {
                **settings.as_environment(),
                "PYTHONPATH": paths,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "TIDEMARK_TOPOLOGY_PATH": str(root / "bench" / "topologies"),
            },
        )

    def is_running(
        self, case: Case, folder: Path, log: Path, process: subprocess.Popen[bytes], instance: int = 0
    ) -> bool:
        """Return whether the run file of this very process says so."""
        run = RunView.read(run_file_path(folder / "var", self.group(case), instance))
        return run is not None and run.process.pid == process.pid and run.state == InstanceState.RUNNING


def at_least_once(settings: Settings, heap: str, overrides: dict[str, str]) -> TidemarkSide:
    """Return Tidemark counting without exactly-once, to compare ourselves with."""
    return TidemarkSide(settings, heap, overrides, AT_LEAST_ONCE, "pulse_counting_at_least_once")


@dataclass(frozen=True)
class Started:
    """A running side. `started` is `time.monotonic()` at the start of the process."""

    process: subprocess.Popen[bytes]
    started: float


@contextmanager
def running(command: Command, log: Path) -> Iterator[Started]:
    """Start `command` in its own session, and stop exactly that session at the end of the block."""
    with log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            command.arguments,
            env={**os.environ, **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Started(process, started)
        finally:
            _stop(process)


@contextmanager
def all_running(commands: Sequence[Command], logs: Sequence[Path]) -> Iterator[list[Started]]:
    """Start each command as `running` does, and stop all of them at the end of the block."""
    with ExitStack() as opened:
        yield [opened.enter_context(running(command, log)) for command, log in zip(commands, logs, strict=True)]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process, which ends its children in order. Then kill what is left of its session."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
