"""Measures a topology with its own broker, one real instance, and generated records.

Bytes are what the broker has on disk for a topic, without replicas: they include batch headers and transaction markers.
The rate is that of a second load, when Spark has compiled its code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.devstack.synthetic_records import Record, made_records, made_sources
from tidemark.errors import OutcomeUnknown
from tidemark.kafka import jars
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.lag import lag_of
from tidemark.kafka.topics import TopicSpec, create_topics, partition_counts, user_topics
from tidemark.names import changelog_topic
from tidemark.settings import Settings, project_root
from tidemark.supervision.run_file import read_run_file, run_file_path
from tidemark.supervision.state import InstanceState
from tidemark.topology.plan import TopologyPlan

_SCRIPT = Path("spark_jobs") / "measured_instance.py"
_WARM_UP_SHARE = 0.2
_PARTITIONS = 2
_START_TIMEOUT_S = 120.0
_DRAIN_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class MeasuredLoad:
    """`records` records for each source, generated from the seed, the last of them at `end_ms` of event time."""

    records: int
    seed: int
    end_ms: int


@dataclass(frozen=True)
class Measured:
    """One run. `records` of all sources were processed in `seconds`; the bytes are those of the whole load."""

    records: int
    seconds: float
    repartition_bytes: int
    changelog_bytes: int

    @property
    def records_per_second(self) -> float:
        """Return the rate of all sources, in the second part of the load."""
        return self.records / self.seconds


def measure(name: str, plan: TopologyPlan, *, optimised: bool, load: MeasuredLoad, folder: Path) -> Measured:
    """Run the topology over the load. Blocks; leaves no process running.

    Raises `OutcomeUnknown` with the instance's last output if it ends or takes too long.
    """
    mark = f"measure-{uuid.uuid4()}"
    known = Settings.load()
    environment = {processes.MARK: mark}
    with (
        processes.guarded(mark),
        EmbeddedBroker(folder / "broker", jars.ensure("kafka", known), environment=environment) as broker,
    ):
        settings = known.model_copy(
            update={
                "bootstrap_servers": broker.bootstrap,
                "security_protocol": "PLAINTEXT",
                "var_dir": folder / "var",
                "state_dir": folder / "state",
                "replication_factor": -1,
                "commit_interval_ms": 100,
                # Nothing that was written may be deleted before it was measured.
                "repartition_purge_interval_ms": 86_400_000,
            }
        )
        admin = AdminClient(librdkafka_config(settings))
        _create_topics(plan, settings, admin)
        warm_up, timed = _parts(plan, load)
        with _instance(name, optimised, settings, folder, mark) as process:
            run = _Run(plan, settings, admin, process, folder)
            run.wait_running()
            run.process(warm_up)
            seconds = run.process(timed)
        data = folder / "broker" / "data"
        logged = [store for store in plan.stores if store.has_changelog]
        return Measured(
            sum(len(records) for records in timed.values()),
            seconds,
            _bytes_of(data, plan.repartition_topics),
            _bytes_of(data, [changelog_topic(plan.application_id, store.name) for store in logged]),
        )


_Records = dict[str, list[Record]]


def _parts(plan: TopologyPlan, load: MeasuredLoad) -> tuple[_Records, _Records]:
    made = {
        topic: list(made_records(source, load.records, load.seed, load.end_ms))
        for topic, source in made_sources(plan).items()
    }
    cut = max(1, int(load.records * _WARM_UP_SHARE))
    return {t: records[:cut] for t, records in made.items()}, {t: records[cut:] for t, records in made.items()}


def _create_topics(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> None:
    tables = {source.topic for s in plan.subtopologies for source in s.sources if source.is_table}
    specs = [
        TopicSpec(topic, _PARTITIONS, {"cleanup.policy": "compact"} if topic in tables else {})
        for topic in user_topics(plan)
    ]
    create_topics(admin, specs, settings)


@contextmanager
def _instance(
    name: str, optimised: bool, settings: Settings, folder: Path, mark: str
) -> Iterator[subprocess.Popen[bytes]]:
    root = project_root()
    environment = {
        **os.environ,
        **settings.as_environment(),
        processes.MARK: mark,
        "PYTHONPATH": os.pathsep.join([str(root / "include"), str(root)]),
    }
    command = [sys.executable, root / _SCRIPT, "--optimised", "yes" if optimised else "no", "--topology", name]
    with (folder / "instance.log").open("wb") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=root,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class _Run:
    """One running instance."""

    plan: TopologyPlan
    settings: Settings
    admin: AdminClient
    instance: subprocess.Popen[bytes]
    folder: Path

    def wait_running(self) -> None:
        path = run_file_path(self.settings.var_dir, self.plan.application_id, 0)

        def runs() -> bool:
            self._refuse_dead()
            return (read_run_file(path) or {}).get("state") == InstanceState.RUNNING

        self._wait(processes.wait_until(runs, _START_TIMEOUT_S, every_s=0.1), "is not running")

    def process(self, records: _Records) -> float:
        """Send the records and wait until all are committed, in all sub-topologies; return how many seconds that took."""
        partitions = partition_counts(self.admin, self.settings)
        producer = Producer({**librdkafka_config(self.settings), "partitioner": "murmur2_random", "linger.ms": 5})
        started = time.monotonic()
        for topic, rows in records.items():
            for key, value in rows:
                while True:
                    try:
                        producer.produce(topic, value, key)
                        break
                    except BufferError:
                        producer.poll(0.1)
                producer.poll(0)
        producer.flush()
        seen: list[int] = []
        drained_at: list[float] = []

        def drained() -> bool:
            self._refuse_dead()
            now = time.monotonic()
            found = lag_of(self.plan, partitions, self.admin, self.settings)
            done = all(row.lag_offsets == 0 for row in found)
            # A commit may have added outputs to a topic downstream, which was counted before: so the ends must not change.
            ends = sum(row.end_offset for row in found)
            if not done or seen[-1:] != [ends]:
                drained_at.clear()
            if done:
                drained_at.append(now)
            seen.append(ends)
            return len(drained_at) > 1

        self._wait(processes.wait_until(drained, _DRAIN_TIMEOUT_S), "has not processed everything")
        return max(drained_at[0] - started, 1e-3)

    def _refuse_dead(self) -> None:
        if self.instance.poll() is not None:
            self._wait(False, f"ended with {self.instance.returncode}")

    def _wait(self, reached: bool, complaint: str) -> None:
        if not reached:
            said = [line for line in (self.folder / "instance.log").read_text(errors="replace").splitlines() if line]
            raise OutcomeUnknown(
                f"the measured instance of {self.plan.application_id} {complaint}; its last output: "
                f"{said[-1] if said else 'none'}"
            )


def _bytes_of(data: Path, topics: Iterable[str]) -> int:
    """Return the size of these topics in a node's log folders, without indexes."""
    return sum(
        segment.stat().st_size
        for topic in topics
        for p in range(_PARTITIONS)
        for segment in data.glob(f"{topic}-{p}/*.log")
    )
