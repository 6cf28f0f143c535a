"""Two instances and a standby that are launched again whenever they end, their brokers, and their input."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.truth.topics import Past, Place, committed_offsets, end_offsets
from tests.system.chaos.airflow_stream import AirflowStream
from tests.system.chaos.brokers import LARGEST_RECORD, Brokers
from tests.system.chaos.feeding import PARTITIONS, Feeding
from tests.system.chaos.held import HeldCommit
from tests.system.chaos.supervised import Supervised
from tests.system.crash.bench import ROOT, plan_of

from tidemark.errors import ExitCode
from tidemark.kafka.group import members
from tidemark.kafka.topics import user_topics
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.run_file import read_run_file, run_file_path, standby_file_path

FOLDER = Path(__file__).resolve().parent / "topologies"
TOPOLOGY = "chaos"
INSTANCES = 2
_LAUNCH_S = 300
_IN_PLACE_S = 60
_SESSION_MS, _TRANSACTION_MS = 6_000, 10_000


class World:
    """What the faults act on."""

    def __init__(self, folder: Path, brokers: Brokers, seed: int, guarantee: str, commit_interval_ms: int) -> None:
        self.folder = folder
        self.brokers = brokers
        self._commit_interval_ms = commit_interval_ms
        os.environ["TEST_CHAOS_GUARANTEE"] = guarantee
        self.plan = plan_of(TOPOLOGY, FOLDER)
        self.application_id = self.plan.application_id
        self.var_dir = folder / "var"
        self.arm_file = folder / "arm.json"
        self.feeding = Feeding(brokers.direct, seed)
        self.instances = {number: self._instance(number) for number in range(INSTANCES)}
        self.standby = Supervised(
            "standby",
            [sys.executable, "-m", "tidemark.cli.main", "standby", "run", TOPOLOGY],
            self.environment("standby"),
            folder / "standby.log",
        )
        self.held: HeldCommit | None = None
        # What the topics held before somebody deleted it, and the elements of the queue among it that nobody had read.
        self.past = Past()
        self.excused: set[int] = set()
        self.repairs: Counter[str] = Counter()
        self.airflow: AirflowStream | None = None
        self._guests: list[Supervised] = []
        self._ends_of_guests: Counter[int] = Counter()
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
    def bootstrap(self) -> str:
        """The brokers' own addresses, for whoever is no part of the application."""
        return self.brokers.direct

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
            "TIDEMARK_COMMIT_INTERVAL_MS": str(self._commit_interval_ms),
            "TIDEMARK_MAX_BATCH_RECORDS": "100000",
            "TIDEMARK_SESSION_TIMEOUT_MS": str(_SESSION_MS),
            "TIDEMARK_TRANSACTION_TIMEOUT_MS": str(_TRANSACTION_MS),
            "TIDEMARK_SPARK_DRIVER_MEMORY": "1g",
            # A driver lives for a minute or so here.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            "TIDEMARK_SPARK_MASTER": "local[2]",
            "TIDEMARK_TOPOLOGY_PATH": str(FOLDER),
            "TIDEMARK_PROBE": "tests.system.crash.probe:kill",
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

    def launch(self) -> None:
        """Launch everything again, whether it will run or not."""
        for one in self.lasting:
            one.is_wanted = True

    def resume(self, timeout_s: float = _LAUNCH_S) -> None:
        """Launch everything again, and wait until it runs."""
        self.launch()
        self.wait_running(timeout_s)

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
            self._ends_of_guests.update(guest.ends)
            self._guests.remove(guest)

    def in_place(self, when: Callable[[], bool] | None = None) -> None:
        """A fault has been brought about: a commit that is held goes on and meets it, once `when` holds if it is given."""
        if self.held is not None:
            if when is not None:
                wait_until(when, _IN_PLACE_S, 0.2)
            self.held.let_go()

    def runs(self, number: int, process: subprocess.Popen[bytes] | None) -> bool:
        """Whether the instance of that number is this process, and says that it runs."""
        return process is not None and _says(run_file_path(self.var_dir, self.application_id, number), process)

    def members(self) -> int:
        """How many members the application's group has."""
        return len(members(Settings.load(bootstrap_servers=self.brokers.direct), self.admin, self.application_id))

    def wait_running(self, timeout_s: float = _LAUNCH_S) -> None:
        """Until both instances and the standby say so."""

        def all_run() -> bool:
            standby, file = self.standby.process, standby_file_path(self.var_dir, self.application_id, 0)
            follows = standby is not None and _says(file, standby)
            return follows and all(self.runs(number, one.process) for number, one in self.instances.items())

        if not wait_until(all_run, timeout_s, 0.2):
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

    def progress_report(self) -> str:
        """Return which partitions the group has not read to their end, and how the processes have ended so far."""
        ends = self.ends(self.places)
        found = committed_offsets(self.brokers.direct, self.application_id, list(ends))
        unread = [
            f"{t}[{p}] at {found.get((t, p))} of {end}" for (t, p), end in ends.items() if found.get((t, p)) != end
        ]
        ended = [f"{one.name} ended with {one.ends}" for one in self.lasting if one.ends]
        return ", ".join([*unread, *ended])

    def committed_from_now(self) -> Callable[[], bool]:
        """Whether all that is in the topics now is committed, to be asked later; of the stream in Airflow as well."""
        ends, airflow = self.ends(self.places), self.airflow
        small = {} if airflow is None else airflow.ends()
        return lambda: self.behind(ends) == 0 and (airflow is None or airflow.behind(small) == 0)

    def ends_by_role(self) -> dict[str, Counter[int]]:
        """How often instances, guests and the standby ended with which code; a signal's is negative."""
        return {
            "instances": Counter(code for one in self.instances.values() for code in one.ends),
            "guests": self._ends_of_guests,
            "the standby": Counter(self.standby.ends),
        }

    def refusals(self) -> list[str]:
        """Ends that nobody launches again. One that was fenced is: the operator finds that the other copy is gone."""
        final = (ExitCode.FAILED, ExitCode.USAGE, ExitCode.REFUSED)
        return [
            f"{name} ended with {int(code)}, {ends[code]} times"
            for name, ends in self.ends_by_role().items()
            for code in final
            if ends[code]
        ]


def _says(file: Path, process: subprocess.Popen[bytes]) -> bool:
    """Whether the process itself says in its run file that it runs."""
    said = read_run_file(file) or {}
    return said.get("pid") == process.pid and said.get("state") == "RUNNING"
