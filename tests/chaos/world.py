"""Three brokers behind proxies, two instances and a standby that are launched again whenever they end, and input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos.feeding import PARTITIONS, Feeding
from tests.chaos.proxy import Proxy, proxied
from tests.crash import disk
from tests.crash.bench import ROOT, plan_of
from tests.truth.topics import Place, committed_offsets, end_offsets

from tidemark.broker.topics import user_topics
from tidemark.errors import ExitCode
from tidemark.instance.run_file import read_run_file, run_file_path, standby_file_path
from tidemark.local import jars
from tidemark.local.broker import EmbeddedCluster
from tidemark.local.broker_config import Node
from tidemark.local.ports import LOOPBACK
from tidemark.local.processes import wait_until
from tidemark.settings import Settings

FOLDER = Path(__file__).resolve().parent / "topologies"
TOPOLOGY = "chaos"
INSTANCES = 2
LARGEST_RECORD = 4 << 20
_RELAUNCH_S = 1.0
_LAUNCH_S = 120
_SESSION_MS, _TRANSACTION_MS = 6_000, 10_000


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
        self.disk = disk_of_broker(folder)
        self._started = ExitStack()

    def __enter__(self) -> Brokers:
        with ExitStack() as stack:
            for started in (self.cluster, *self.proxies.values()):
                stack.enter_context(started)
            self._started = stack.pop_all()
        return self

    def __exit__(self, *ended: object) -> None:
        self._started.close()

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


@dataclass
class Supervised:
    """A process that is launched again one second after it has ended, unless it is to stay down."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    ends: list[int] = field(default_factory=list)
    is_wanted: bool = True
    _ended_at: float = 0.0

    def look(self) -> None:
        """Launch it where it is due."""
        if self.process is not None and self.process.poll() is not None:
            self.ends.append(self.process.returncode)
            self.process, self._ended_at = None, time.monotonic()
        if self.process is None and self.is_wanted and time.monotonic() - self._ended_at >= _RELAUNCH_S:
            with self.log.open("ab") as file:
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self.environment, cwd=ROOT,
                    start_new_session=True,
                )  # fmt: skip

    def send(self, number: signal.Signals) -> bool:
        """Signal the process alone; whether there is one."""
        if self.process is None or self.process.poll() is not None:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        return True

    def jvms(self) -> list[psutil.Process]:
        """The Java processes below it."""
        if self.process is None:
            return []
        with suppress(psutil.Error):
            below = psutil.Process(self.process.pid).children(recursive=True)
            return [child for child in below if "java" in child.name()]
        return []

    def end(self, timeout_s: float = 60) -> int | None:
        """SIGTERM, and SIGKILL after the time; it stays down."""
        self.is_wanted = False
        if not self.send(signal.SIGTERM) or self.process is None:
            return None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)


class World:
    """What the faults act on."""

    def __init__(self, folder: Path, brokers: Brokers, seed: int, guarantee: str) -> None:
        self.folder = folder
        self.brokers = brokers
        os.environ["TEST_CHAOS_GUARANTEE"] = guarantee
        self.plan = plan_of(TOPOLOGY, FOLDER)
        self.application_id = self.plan.application_id
        self.var_dir = folder / "var"
        self.arm_file = folder / "arm.json"
        self.feeding = Feeding(brokers.direct, seed)
        self.instances = {number: self._instance(number) for number in range(INSTANCES)}
        self.standby = Supervised(
            "standby",
            [sys.executable, "-m", "tidemark.cli.main", "standby", TOPOLOGY],
            self.environment("standby"),
            folder / "standby.log",
        )
        self._guests: list[Supervised] = []
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._create_topics()

    def _create_topics(self) -> None:
        config = {"max.message.bytes": str(LARGEST_RECORD + (1 << 20))}
        topics = [
            NewTopic(topic, PARTITIONS, 3, config=config if topic == "chaos-events" else {})
            for topic in user_topics(self.plan)
        ]
        admin = self.admin
        for created in admin.create_topics(topics).values():
            created.result(30)

    @property
    def admin(self) -> AdminClient:
        """A client that knows nothing yet: one that has seen brokers die could wait for a dead coordinator for minutes."""
        return AdminClient({"bootstrap.servers": self.brokers.direct, "log_level": 0})

    def _instance(self, number: int, disk_name: str | None = None) -> Supervised:
        name = f"instance-{number}" if disk_name is None else f"instance-{number}-{disk_name}"
        job = str(ROOT / "spark_jobs" / "stream_instance.py")
        command = [sys.executable, job, "--topology", TOPOLOGY, "--instance", str(number)]
        environment = self.environment(disk_name or f"machine-{number}")
        return Supervised(name, command, environment, self.folder / f"{name}.log")

    def state_dir(self, machine: str) -> Path:
        """A machine's disk."""
        return self.folder / "disks" / machine

    def environment(self, machine: str) -> dict[str, str]:
        """What every process of the application is started with."""
        return {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'include'}:{ROOT}",
            "PYSPARK_PYTHON": sys.executable,
            "TIDEMARK_BOOTSTRAP_SERVERS": self.brokers.proxied,
            "TIDEMARK_VAR_DIR": str(self.var_dir),
            "TIDEMARK_STATE_DIR": str(self.state_dir(machine)),
            "TIDEMARK_SAVEPOINT_LOCATION": str(self.folder / "savepoints"),
            "TIDEMARK_COMMIT_INTERVAL_MS": "1000",
            "TIDEMARK_MAX_BATCH_RECORDS": "100000",
            "TIDEMARK_SESSION_TIMEOUT_MS": str(_SESSION_MS),
            "TIDEMARK_TRANSACTION_TIMEOUT_MS": str(_TRANSACTION_MS),
            "TIDEMARK_SPARK_DRIVER_MEMORY": "1g",
            # A driver lives for a minute or so here.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            "TIDEMARK_SPARK_MASTER": "local[2]",
            "TIDEMARK_TOPOLOGY_PATH": str(FOLDER),
            "TIDEMARK_PROBE": "tests.crash.probe:kill",
            "TEST_CRASH_ARM": str(self.arm_file),
        }

    def __enter__(self) -> World:
        self._watcher.start()
        self.wait_running()
        return self

    def __exit__(self, *ended: object) -> None:
        self.feeding.stop()
        self.end_all(timeout_s=5)
        self._watching.set()
        self._watcher.join(10)

    @property
    def lasting(self) -> list[Supervised]:
        """What is launched again whenever it ends."""
        return [*self.instances.values(), self.standby]

    def _watch(self) -> None:
        while not self._watching.wait(0.2):
            for one in self.lasting:
                one.look()

    def end_all(self, timeout_s: float = 60) -> list[int | None]:
        """End everything of the application, the standby last; nothing is launched again before `resume`."""
        for one in self.lasting:
            one.is_wanted = False
        return [one.end(timeout_s) for one in [*self._guests, *self.lasting]]

    def resume(self) -> None:
        """Launch everything again, and wait until it runs."""
        for one in self.lasting:
            one.is_wanted = True
        self.wait_running()

    @contextmanager
    def guest(self, number: int, machine: str) -> Iterator[Supervised]:
        """One more process of an instance on a machine of its own, until the end of the block."""
        guest = self._instance(number, machine)
        self._guests.append(guest)
        guest.look()
        try:
            yield guest
        finally:
            guest.end(20)
            self._guests.remove(guest)

    def wait_running(self, timeout_s: float = _LAUNCH_S) -> None:
        """Until both instances and the standby say so."""

        files = {run_file_path(self.var_dir, self.application_id, n): one for n, one in self.instances.items()}
        files[standby_file_path(self.var_dir, self.application_id, 0)] = self.standby

        def runs(file: Path, one: Supervised) -> bool:
            said = read_run_file(file) or {}
            return one.process is not None and said.get("pid") == one.process.pid and said.get("state") == "RUNNING"

        if not wait_until(lambda: all(runs(*each) for each in files.items()), timeout_s, 0.2):
            raise RuntimeError(f"not all of the application run after {timeout_s} s")

    @property
    def places(self) -> list[Place]:
        """Every partition that a task reads, those between sub-topologies too."""
        topics = [topic for s in self.plan.subtopologies for topic in s.source_topics]
        return [(topic, p) for topic in topics for p in range(PARTITIONS)]

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """Of what is committed in each partition."""
        return end_offsets(self.brokers.direct, places, "read_committed")

    def behind(self, ends: dict[Place, int]) -> int:
        """How many offsets before these ends the group still stands."""
        found = committed_offsets(self.brokers.direct, self.application_id, list(ends))
        return sum(max(0, end - (found.get(place) or 0)) for place, end in ends.items())

    def lag(self) -> int:
        """How many offsets the group stands before the ends of now, in all partitions that a task reads."""
        return self.behind(self.ends(self.places))

    def ends_of_instances(self) -> Counter[int]:
        """How often an instance ended with which code; a signal's is negative."""
        return Counter(code for one in self.instances.values() for code in one.ends)

    def refusals(self) -> list[str]:
        """Ends that nobody launches again. One that was fenced is: the operator finds that the other copy is gone."""
        ends, final = self.ends_of_instances(), (ExitCode.FAILED, ExitCode.USAGE, ExitCode.REFUSED)
        return [f"an instance ended with {int(code)}, {ends[code]} times" for code in final if ends[code]]


def disk_of_broker(folder: Path) -> Path:
    """The folder of the one node that may have a disk of its own."""
    return folder / "node-1"


@contextmanager
def disks_of_their_own(folder: Path, is_wanted: bool) -> Iterator[bool]:
    """A disk that can be full under one machine's state, under `var` and under one broker; False where there is none."""
    if not (is_wanted and disk.may_mount()):
        yield False
        return
    places = [folder / "disks" / "machine-0", folder / "var", disk_of_broker(folder / "brokers")]
    with disk.mounted(places[0]), disk.mounted(places[1]), disk.mounted(places[2]):
        yield True
