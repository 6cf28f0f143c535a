"""`crash_nodes` under the crash scenarios: every kind of stateful node, compared with a replay of its commit records."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from rocksdict import AccessType, Options, Rdict
from tests.support.truth.replay import compare_replay, replay
from tests.system.crash.bench import NO_SETTINGS, PARTITIONS, Bench

from tidemark.names import TaskId
from tidemark.supervision.run_file import read_run_file, run_file_path

FOLDER = Path(__file__).resolve().parent / "topologies"
_IDS = 30
_STEP_MS = 15
_LATE_SHARE = 0.02
_BAD_SHARE = 0.005


class NodesFeeder:
    """Records for both sources, some late, some bad; event time goes on from call to call."""

    def __init__(self, bootstrap: str, chance: random.Random) -> None:
        self._bootstrap = bootstrap
        self._chance = chance
        self.now_ms = int(time.time() * 1000) - 7_200_000

    def feed(self, records: int) -> None:
        """Produce and wait for the acknowledgement of all."""
        chance = self._chance
        producer = Producer({"bootstrap.servers": self._bootstrap, "partitioner": "murmur2_random", "linger.ms": 20})
        for _ in range(records):
            self.now_ms += _STEP_MS
            key = f"k{chance.randrange(_IDS):03d}"
            late_ms = chance.randrange(60_000) if chance.random() < _LATE_SHARE else 0
            body = {"id": key, "ts": self.now_ms - late_ms}
            if chance.random() < 0.3:
                topic, body["w"] = "nodes-others", chance.randrange(100)
            else:
                topic, body["v"] = "nodes-events", chance.randrange(100)
                body["kind"] = None if chance.random() < 0.05 else f"kind-{chance.randrange(7)}"
            if chance.random() < _BAD_SHARE:
                body["id"] = "of another key"
            value = b"{broken" if chance.random() < _BAD_SHARE else json.dumps(body).encode()
            producer.produce(topic, value, key.encode())
            producer.poll(0)
        if producer.flush(120):
            raise RuntimeError("the feeder's records were not acknowledged")


class NodesBench(Bench):
    """The same scenarios, another application. `spark` replays what it has committed."""

    topology = "crash_nodes"
    topology_path = FOLDER
    batch_records = 4_000

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        seed: int,
        spark: SparkSession,
        partitions: int = PARTITIONS,
        settings: Mapping[str, str] = NO_SETTINGS,
    ) -> None:
        self._spark = spark
        super().__init__(bootstrap, folder, seed, partitions, settings)

    def make_feeder(self, seed: int) -> NodesFeeder:  # type: ignore[override]
        return NodesFeeder(self.bootstrap, random.Random(seed))

    def differences(self, holders: dict[int, str] | None = None) -> tuple[int, int, int, list[str]]:
        replayed = replay(self.bootstrap, self.plan, self._spark, self.past)
        found = compare_replay(self.bootstrap, self.plan, replayed, self.past, self.claim, self.generations)
        seen: set[TaskId] = set()
        for instance, disk in ({0: "state"} if holders is None else holders).items():
            said = read_run_file(run_file_path(self.var_dir, self.application_id, instance)) or {}
            leads = {s.lead.topic: s.index for s in self.plan.subtopologies}
            for place in said.get("partitions", []):
                topic, _, number = place.rstrip("]").rpartition("[")
                task = TaskId(leads[topic], int(number))
                seen.add(task)
                folder = self.state_dir(disk) / str(instance) / self.application_id / str(task) / "rocksdb"
                for store in self.plan.subtopologies[task.subtopology].stores:
                    wanted = replayed.stores.get((task, store.name), {})
                    there = contents(folder / store.name)
                    if there != wanted:
                        keys = sorted(key for key in there.keys() | wanted.keys() if there.get(key) != wanted.get(key))
                        found.note(f"store {store.name} of {task}: {len(keys)} keys differ, the first {keys[0]!r}")
        if len(seen) != self.tasks:
            found.note(f"stores: only {sorted(map(str, seen))} are open")
        return found.lost, found.duplicated, found.wrong, found.report[:20]


def contents(folder: Path) -> dict[bytes, bytes]:
    """All keys of a store that another process may have open."""
    options = Options(raw_mode=True)
    families = dict.fromkeys(Rdict.list_cf(str(folder), options), options)
    store = Rdict(str(folder), options, families, access_type=AccessType.read_only(False))
    try:
        return {
            key: value for name in families if name != "default" for key, value in store.get_column_family(name).items()
        }
    finally:
        store.close()
