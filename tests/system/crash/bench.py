"""A broker, an application and its instances, for tests that kill: feed, arm, launch, wait, compare."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rocksdict import AccessType, Options, Rdict
from tests.support.jvms import INTERPRETED
from tests.support.log_ends import ends_of_logs
from tests.support.truth.compare import CHANGELOG_VALUE, WINDOW_START, Claim, Comparison, compare
from tests.support.truth.recompute import PATIENT_MONITORING, Truth, recompute
from tests.support.truth.topics import Past, committed_offsets, end_offsets
from tests.system.crash import probe

import topologies
from tidemark.kafka.topics import user_topics
from tidemark.processes import wait_until
from tidemark.supervision.run_file import read_run_file, run_file_path
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS = 4
PATIENTS = 60
NO_SETTINGS: Mapping[str, str] = {}
CHEAP = {"TIDEMARK_SPARK_SHUFFLE_PARTITIONS": "1", "TIDEMARK_SPARK_EXTRA_CONF": json.dumps(INTERPRETED)}
"""Settings for batches of few records. The harnesses of `make` do without, and run Spark as a user does."""
RULES = PATIENT_MONITORING
_BAD = (b"{broken", b'{"patient_id": 7', b'{"patient_id": null, "beat_ms": 1, "ibi_ms": 1, "recording": "r"}',
        b'{"patient_id": "p0001", "beat_ms": -5, "ibi_ms": 1, "recording": "r"}',
        b'{"patient_id": "of another key", "beat_ms": 1, "ibi_ms": 1, "recording": "r"}')  # fmt: skip
_EVENT_STEP_MS = 40
_LATE_SHARE = 0.02
_BAD_SHARE = 0.01
_FEED_RECORDS = 100
_FEED_EVERY_S = 0.5


@dataclass
class Feeder:
    """Heartbeat-shaped records with late and bad ones among them; event time goes on from call to call."""

    bootstrap: str
    random: random.Random
    # Two hours back, so that no healthy record is ahead of its Kafka timestamp.
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000) - 7_200_000)

    def feed(self, records: int) -> None:
        """Produce and wait for the acknowledgement of all."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random", "linger.ms": 20})
        for _ in range(records):
            self.now_ms += _EVENT_STEP_MS
            patient = f"p{self.random.randrange(PATIENTS):04d}"
            if self.random.random() < _BAD_SHARE:
                value = self.random.choice(_BAD)
            else:
                late_ms = self.random.randrange(180_000) if self.random.random() < _LATE_SHARE else 0
                body = {"patient_id": patient, "beat_ms": self.now_ms - late_ms, "ibi_ms": 800, "recording": "made"}
                value = json.dumps(body).encode()
            producer.produce(RULES.source_topic, value, patient.encode())
            producer.poll(0)
        if producer.flush(120):
            raise RuntimeError("the feeder's records were not acknowledged")

    @contextmanager
    def feeding(self, records: int = _FEED_RECORDS) -> Iterator[None]:
        """Records arrive until the end of the block, so many twice a second."""
        stop = threading.Event()

        def feed() -> None:
            while not stop.wait(_FEED_EVERY_S):
                self.feed(records)

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)


def plan_of(topology: str, folder: Path | None) -> TopologyPlan:
    """A topology's plan; `folder` is searched for it only here, as no other test must find what is there."""
    searched = list(topologies.__path__)
    topologies.__path__ += [str(folder)] if folder else []
    try:
        return load(topology).plan()
    finally:
        topologies.__path__[:] = searched


class Bench:
    """One application on one broker. Every instance is a real process with real Spark."""

    topology = "patient_monitoring"
    topology_path: Path | None = None
    batch_records = 8_000
    """How many records a scenario feeds at once: several batches."""
    restore_process_offsets = 1
    """Every changelog is loaded by a process, unless a scenario wants another."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        seed: int,
        partitions: int = PARTITIONS,
        settings: Mapping[str, str] = NO_SETTINGS,
    ) -> None:
        """`settings` are added to the environment of every process of the application."""
        self.bootstrap = bootstrap
        self.partitions = partitions
        self._settings = settings
        self.plan = self.load()
        self.application_id = self.plan.application_id
        self.folder = folder
        self.var_dir = folder / "var"
        self.arm_file = folder / "arm.json"
        self.feeder = self.make_feeder(seed)
        folder.mkdir(parents=True, exist_ok=True)
        self._running: list[subprocess.Popen[bytes]] = []
        # What a scenario has deleted, or has made the application begin again from; see `tests.support.truth`.
        self.past = Past()
        self.claim = Claim.EVERY_UPDATE
        self.generations: dict[str, int] = {}
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.create_topics(user_topics(self.plan))

    def create_topics(self, names: Iterable[str]) -> None:
        """With as many partitions as there are tasks in a sub-topology."""
        topics = [NewTopic(topic, self.partitions, 1) for topic in names]
        for created in self.admin.create_topics(topics).values():
            created.result()

    def load(self) -> TopologyPlan:
        """The application's plan."""
        return plan_of(self.topology, self.topology_path)

    @property
    def tasks(self) -> int:
        """Of all sub-topologies together."""
        return self.partitions * len(self.plan.subtopologies)

    def make_feeder(self, seed: int) -> Feeder:
        """What makes its input."""
        return Feeder(self.bootstrap, random.Random(seed))

    def state_dir(self, name: str = "state") -> Path:
        """A machine's disk: instances that share it can take each other's tasks over."""
        return self.folder / name

    def environment(self, disk: str = "state") -> dict[str, str]:
        """What every process of the application is started with."""
        return {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'include'}:{ROOT}",
            "PYSPARK_PYTHON": sys.executable,
            "TIDEMARK_BOOTSTRAP_SERVERS": self.bootstrap,
            "TIDEMARK_VAR_DIR": str(self.var_dir),
            "TIDEMARK_STATE_DIR": str(self.state_dir(disk)),
            "TIDEMARK_SAVEPOINT_LOCATION": str(self.folder / "savepoints"),
            "TIDEMARK_COMMIT_INTERVAL_MS": "200",
            "TIDEMARK_MAX_BATCH_RECORDS": "3000",
            "TIDEMARK_SESSION_TIMEOUT_MS": "6000",
            "TIDEMARK_TRANSACTION_TIMEOUT_MS": "6000",
            "TIDEMARK_SPARK_DRIVER_MEMORY": "512m",
            # An instance lives for seconds here, too short for the second compiler to pay.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            "TIDEMARK_TOPOLOGY_PATH": str(self.topology_path or ""),
            "TIDEMARK_REPARTITION_PURGE_INTERVAL_MS": "86400000",
            "TIDEMARK_RESTORE_PROCESS_OFFSETS": str(self.restore_process_offsets),
            "TIDEMARK_PROBE": "tests.system.crash.probe:kill",
            "TEST_CRASH_ARM": str(self.arm_file),
            **self._settings,
        }

    def launch(self, instance: int = 0, disk: str = "state", log: str | None = None) -> subprocess.Popen[bytes]:
        """Start one instance in a session of its own."""
        with (self.folder / (log or f"instance-{instance}.log")).open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, ROOT / "spark_jobs" / "stream_instance.py",
                 "--topology", self.topology, "--instance", str(instance)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self.environment(disk), start_new_session=True,
            )  # fmt: skip
        self._running.append(process)
        return process

    def arm(self, point: str, skip: int = 0, how: str = "SIGKILL", full: Path | None = None) -> None:
        """The next process that passes `point` for the `skip`-th time is hit, or finds no room in `full` from then on."""
        probe.arm(self.arm_file, point, skip, how, full)

    def wait_state(
        self, process: subprocess.Popen[bytes], state: str, instance: int = 0, timeout_s: float = 300
    ) -> None:
        """Until this very process says that it is in `state`."""

        def reached() -> bool:
            said = read_run_file(run_file_path(self.var_dir, self.application_id, instance)) or {}
            if process.poll() is not None:
                raise RuntimeError(f"instance {instance} ended with {process.returncode} before it was {state}")
            return said.get("pid") == process.pid and said.get("state") == state

        if not wait_until(reached, timeout_s):
            raise RuntimeError(f"instance {instance} is not {state} after {timeout_s} s")

    @property
    def source_places(self) -> list[tuple[str, int]]:
        """Every partition that a task reads, those between sub-topologies too."""
        topics = [topic for s in self.plan.subtopologies for topic in s.source_topics]
        return [(topic, p) for topic in topics for p in range(self.partitions)]

    def wait_drained(self, timeout_s: float = 300) -> None:
        """Until the group's committed offsets are the source's ends. Shows the ends of all logs if that does not come."""

        def drained() -> bool:
            codes = [process.poll() for process in self._running]
            if None not in codes:
                raise RuntimeError(f"no instance runs any more; they ended with {codes}")
            return self.is_drained()

        with ends_of_logs(Console(), self.folder, lines=40):
            if not wait_until(drained, timeout_s, every_s=0.2):
                raise RuntimeError(f"not everything is committed after {timeout_s} s")

    def is_drained(self) -> bool:
        """Whether the group's committed offsets are the sources' ends (see `end_offsets`)."""
        places = self.source_places
        # The ends last: what is committed of the first topics can no longer add to those between sub-topologies.
        found = committed_offsets(self.bootstrap, self.application_id, places)
        ends = end_offsets(self.bootstrap, places, "read_uncommitted")
        return all(found.get(place) == ends[place] for place in places)

    def wait_ended(self, process: subprocess.Popen[bytes], timeout_s: float = 300) -> int:
        """The exit code (negative for a signal)."""
        code = process.wait(timeout_s)
        self._running.remove(process)
        return code

    @property
    def has_running(self) -> bool:
        """Whether an instance runs."""
        return any(process.poll() is None for process in self._running)

    def kill(self, process: subprocess.Popen[bytes]) -> int:
        """SIGKILL, now, and its exit code: that of the signal, unless it had ended before."""
        process.kill()
        return self.wait_ended(process)

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """SIGTERM, and its exit code."""
        process.terminate()
        return self.wait_ended(process)

    def end_all(self) -> None:
        """Kill what still runs, and the JVMs with it."""
        self.arm_file.unlink(missing_ok=True)
        for process in list(self._running):
            process.send_signal(signal.SIGCONT)
            self.kill(process)

    def close(self) -> None:
        """End everything and take the folder away."""
        self.end_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def differences(self, holders: dict[int, str] | None = None) -> tuple[int, int, int, list[str]]:
        """Lost, duplicated and wrong things, and what to say of them: all against a recomputation.

        `holders` names the disk of each running instance, whose stores are compared; default: instance 0 on `state`.
        """
        _, found = self.compare(holders)
        return found.missing, found.duplicated, found.wrong, found.report()

    def compare(self, holders: dict[int, str] | None = None) -> tuple[Truth, Comparison]:
        """Topics, offsets and stores against a count in plain Python."""
        rules = replace(RULES, generation=self.generations.get(RULES.store, 0))
        truth = recompute(self.bootstrap, rules, past=self.past)
        comparison = compare(self.bootstrap, truth, rules, past=self.past, claim=self.claim)
        comparison.faults += self.store_faults(truth, {0: "state"} if holders is None else holders)
        return truth, comparison

    def store_faults(self, truth: Truth, holders: dict[int, str]) -> list[str]:
        """Each task's store, read while its owner is idle, against the recomputed counts."""
        faults: list[str] = []
        seen: set[int] = set()
        for instance, disk in holders.items():
            said = read_run_file(run_file_path(self.var_dir, self.application_id, instance)) or {}
            for place in said.get("partitions", []):
                partition = int(place.rpartition("[")[2].rstrip("]"))
                seen.add(partition)
                folder = self.state_dir(disk) / str(instance) / self.application_id / f"0_{partition}"
                faults += _compare_store(folder / "rocksdb" / RULES.store, partition, truth)
        if seen != set(range(self.partitions)):
            faults.append(f"stores: partitions {sorted(seen)} are open, not all {self.partitions}")
        return faults


def _compare_store(folder: Path, partition: int, truth: Truth) -> list[str]:
    options = Options(raw_mode=True)
    families = dict.fromkeys(Rdict.list_cf(str(folder), options), options)
    store = Rdict(str(folder), options, families, access_type=AccessType.read_only(False))
    found: dict[tuple[str, int], int] = {}
    try:
        checkpoint = json.loads(store[b"checkpoint"])
        for name in families:
            if name == "default":
                continue
            for key, value in store.get_column_family(name).items():
                window = (key[: -WINDOW_START.size].decode(), WINDOW_START.unpack(key[-WINDOW_START.size :])[0])
                found[window] = CHANGELOG_VALUE.unpack(value)[3]
    finally:
        store.close()
    faults = []
    wanted = {w: count for w, count in truth.counts.items() if truth.homes[w] == partition}
    for window in wanted.keys() | found.keys():
        if wanted.get(window) != found.get(window):
            faults.append(f"store 0_{partition}: {window} is {found.get(window)}, should be {wanted.get(window)}")
    task = truth.tasks[partition]
    if checkpoint["source_offsets"][RULES.source_topic] != task.next_offset:
        faults.append(
            f"store 0_{partition}: checkpoint at {checkpoint['source_offsets']}, committed {task.next_offset}"
        )
    return faults
