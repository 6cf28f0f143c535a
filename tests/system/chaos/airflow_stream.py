"""A second, small stream, which a real Airflow launches and watches as its users run one: a few elements a second."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.airflow.real_airflow import RealAirflow, real_airflow
from tests.support.truth.topics import Place, Row, committed_offsets, end_offsets, read_all
from tests.system.chaos.checks import check_elements
from tests.system.chaos.feeding import PARTITIONS
from tests.system.chaos.findings import Findings

from tidemark import processes
from tidemark.devstack import airflow_parts
from tidemark.kafka import jars
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey
from tidemark.supervision.liveness import observe

APPLICATION = "chaos-small"
DAG_ID = "stream__chaos_small"
_IN, _OUT, _COUNTS = "chaos-small-in", "chaos-small-out", "chaos-small-counts"
_TOPOLOGIES = Path(__file__).resolve().parent / "topologies"
_KEYS = 20
_EVERY_S, _EACH_TIME = 0.25, 5
_RUNNING_S = 240
# Chaos ends the driver more often than a stream may be launched again by itself.
_DAGS = """
from tidemark.supervision.restart_policy import RestartBudget
from tidemark.topology_loader import load
from tidemark_airflow.dag import stream_dag
from tidemark_airflow.pausing import pauses_dag

dag = stream_dag("chaos_small", load("chaos_small"), budget=RestartBudget(max_restarts=10_000, backoff_max_s=5))
pauses = pauses_dag(lambda: {dag.dag_id: "chaos-small"})
"""


class AirflowStream:
    """Runs while its block runs. `bootstrap` is for whoever is no part of it, `proxied` what its instance is told."""

    def __init__(self, folder: Path, bootstrap: str, proxied: str) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._settings = Settings.load(
            bootstrap_servers=proxied, var_dir=folder / "var", state_dir=folder / "state",
            savepoint_location=str(folder / "savepoints"), commit_interval_ms=5000, session_timeout_ms=6000,
            transaction_timeout_ms=10_000, spark_master="local[1]", spark_shuffle_partitions=1, spark_driver_memory="512m",
        )  # fmt: skip
        self._files = InstanceFiles(self._settings.var_dir, InstanceKey(APPLICATION, 0))
        self._stop = threading.Event()
        self._feeder = threading.Thread(target=self._feed, name="small feeder", daemon=True)
        self._started = ExitStack()
        self.parts: Iterator[str] = itertools.cycle(airflow_parts.PARTS)
        """Airflow's, in turn."""
        self.places: list[Place] = [(_IN, number) for number in range(PARTITIONS)]

    def __enter__(self) -> AirflowStream:
        dags = self._folder / "dags"
        dags.mkdir(parents=True)
        (dags / "streams.py").write_text(_DAGS)
        os.environ["TIDEMARK_TOPOLOGY_PATH"] = str(_TOPOLOGIES)
        self._create_topics()
        jars.ensure("spark", Settings.load())
        with ExitStack() as stack:
            self.airflow: RealAirflow = stack.enter_context(
                real_airflow(self._settings, dags, f"{os.environ[processes.MARK]}-airflow")
            )
            self.airflow.api.wait_for_dag(DAG_ID, 120)
            self.airflow.api.unpause(DAG_ID)
            self._feeder.start()
            self._wait_running()
            self._started = stack.pop_all()
        return self

    def __exit__(self, *ended: object) -> None:
        self.stop_feeding()
        self._started.close()

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        topics = [NewTopic(topic, PARTITIONS, 3) for topic in (_IN, _OUT, _COUNTS)]
        for created in admin.create_topics(topics).values():
            created.result(30)

    def _feed(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap, "partitioner": "murmur2_random", "acks": "all",
                "enable.idempotence": True, "message.timeout.ms": 0, "log_level": 0,
            }
        )  # fmt: skip
        chance, element = random.Random(1), 0
        while not self._stop.wait(_EVERY_S):
            for _ in range(_EACH_TIME):
                element += 1
                key = f"s{chance.randrange(_KEYS):02d}"
                producer.produce(_IN, json.dumps({"id": key, "n": element}).encode(), key.encode())
            producer.poll(0)
        producer.flush(300)

    def stop_feeding(self) -> None:
        """Once more is a no-op."""
        self._stop.set()
        if self._feeder.is_alive():
            self._feeder.join(300)

    def ends(self) -> dict[Place, int]:
        """Of its input."""
        return end_offsets(self._bootstrap, self.places, "read_committed")

    def behind(self, ends: dict[Place, int]) -> int:
        """How many offsets before these ends the group still stands."""
        found = committed_offsets(self._bootstrap, APPLICATION, list(ends))
        return sum(max(0, end - max(0, found[place])) for place, end in ends.items())

    def kill_driver(self) -> bool:
        """SIGKILL; whether it runs."""
        run = observe(self._files).run
        with suppress(psutil.Error):
            if run is not None:
                psutil.Process(run.process.pid).kill()
                return True
        return False

    @contextmanager
    def part_killed(self, part: str) -> Iterator[None]:
        """Kill one of Airflow's processes, with all that it has started, and start it again at the end of the block."""
        self.airflow.kill(part)
        try:
            yield
        finally:
            self.airflow.start(part)

    def _wait_running(self) -> None:
        def runs() -> bool:
            run = observe(self._files).run
            return run is not None and run.state == "RUNNING"

        if not wait_until(runs, _RUNNING_S, 0.5):
            raise RuntimeError(f"Airflow has not brought the small stream to run within {_RUNNING_S} s")


def check_small(bootstrap: str, found: Findings) -> None:
    """Each element once and in its order; each count once, and at last that of all elements."""
    check_elements(bootstrap, _IN, _OUT, found)
    rows = read_all(bootstrap, [_IN, _COUNTS])
    given = Counter(json.loads(row.value or b"{}")["id"] for row in _of(rows, _IN))
    bodies = [json.loads(row.value or b"{}") for row in _of(rows, _COUNTS)]
    counts = [(body["id"], body["count"]) for body in bodies]
    found.compare_least(_COUNTS, given, counts)
    times = Counter(counts)
    found.add("duplicated", times.total() - len(times), f"{_COUNTS}: {times.most_common(3)}")


def _of(rows: Mapping[Place, list[Row]], topic: str) -> list[Row]:
    return [row for place, own in sorted(rows.items()) if place[0] == topic for row in own]
