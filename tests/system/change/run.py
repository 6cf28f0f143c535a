"""`make change`: real instances go from 4 to 8 to 3 tasks, then to another version, while input arrives.

Each command is killed (SIGKILL) at every point that it passes, and run again. At the end everything is counted in Python.
Last line `change: steps=3 kills=… records=… lost=0 duplicated=0 wrong=0`; exit 1 when any is off.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from tests.support.log_ends import ends_of_logs
from tests.support.truth.topics import committed_offsets, end_offsets, read_all
from tests.system.crash.bench import Bench

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.kafka.topics import partition_counts
from tidemark.processes import wait_until
from tidemark.registry.reader import resolved_plan
from tidemark.settings import Settings

STEPS = (
    ("rescale", "--tasks", "8"),
    ("rescale", "--tasks", "3"),
    ("upgrade", "--rename", "users=people", "--add", "people.newest"),
)
POINTS = {
    "rescale": ("topics-made", "old-state-built", "copying", "copied", "switch-before-commit", "sent-on"),
    "upgrade": ("topics-made", "old-state-built", "copying", "copied", "switch-before-commit"),
}
COMMITTED = ("switch-committed", "folders-forgotten")
"""Where a command is killed, in this order: one that does not pass its point runs to its end."""
_RECORDS = 4000
_MINUTE_MS = 60_000


class ChangeBench(Bench):
    """`rescaled_clicks` on four partitions; `expected` holds what each sink must end with, by key and window.

    `newest` is the time of each user's last click, epoch milliseconds, which the upgraded version emits, too.
    """

    topology = "rescaled_clicks"
    topology_path = Path(__file__).parent / "topologies"

    def __init__(self, bootstrap: str, folder: Path, seed: int) -> None:
        super().__init__(bootstrap, folder, seed)
        self._chance = random.Random(seed)
        self._now_ms = int(time.time() * 1000) - 3_600_000
        self.expected: dict[str, Counter[tuple[str, int | None]]] = {
            name: Counter() for name in ("rescaled-users", "rescaled-minutes", "rescaled-pages")
        }
        self.newest: dict[str, int] = {}
        self.records = self.kills = 0
        self.settings = Settings.load(
            bootstrap_servers=bootstrap, var_dir=self.var_dir, state_dir=self.state_dir(),
            session_timeout_ms=6000, transaction_timeout_ms=6000,
        )  # fmt: skip

    def feed(self, records: int) -> None:
        """Produce and remember."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random", "linger.ms": 20})
        for _ in range(records):
            self._now_ms += 50
            user, page = f"u{self._chance.randrange(300)}", f"p{self._chance.randrange(40)}"
            body = {"user_id": user, "page": page, "ts": self._now_ms}
            producer.produce("rescaled-in", json.dumps(body).encode(), user.encode())
            self.expected["rescaled-users"][user, None] += 1
            self.expected["rescaled-minutes"][user, self._now_ms // _MINUTE_MS * _MINUTE_MS] += 1
            self.expected["rescaled-pages"][page, None] += 1
            self.newest[user] = self._now_ms
        if producer.flush(30):
            raise RuntimeError("the feeder's records were not acknowledged")
        self.records += records

    def wait_all_read(self, timeout_s: float = 120) -> None:
        """Until every topic that the application reads now is read to its end."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        plan, counts = resolved_plan(self.plan, self.settings, admin), partition_counts(admin, self.settings)
        places = [(t, n) for s in plan.subtopologies for t in s.source_topics for n in range(counts[t])]

        def read() -> bool:
            found = committed_offsets(self.bootstrap, self.application_id, places)
            ends = end_offsets(self.bootstrap, places, "read_committed")
            return all(found.get(place) == ends[place] for place in places)

        # Twice: what is read of the first may be sent on to the others.
        if not all(wait_until(read, timeout_s, every_s=0.2) for _ in range(2)):
            raise RuntimeError(f"not everything is committed after {timeout_s} s")

    def change(self, command: str, *options: str) -> None:
        """Run a command to its end, killed before at each of the points that it passes; records arrive meanwhile."""
        if command == "upgrade":
            self.topology = "upgraded_clicks"
            self.plan = self.load()
        feeding = threading.Thread(target=self.feed, args=(_RECORDS // 4,))
        feeding.start()
        for point in (*POINTS[command], *COMMITTED):
            self.arm(point, skip=self._chance.randrange(2) if point == "copying" else 0)
            code = self._run(command, *options)
            self.kills += code == -signal.SIGKILL
            if code not in (0, -signal.SIGKILL):
                raise RuntimeError(f"{command} ended with {code}")
        feeding.join()
        self.arm_file.unlink(missing_ok=True)
        if code := self._run(command, *options):
            raise RuntimeError(f"{command} ended with {code}")

    def _run(self, command: str, *options: str) -> int:
        with (self.folder / f"{command}.log").open("ab") as log:
            arguments = [sys.executable, "-m", "tidemark.cli.main", command, "run", self.topology, *options, "--yes"]
            done = subprocess.run(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(), check=False
            )
        return done.returncode

    def differences(self) -> tuple[int, int, int]:
        """Counts that never came, came twice, or are others than these."""
        lost = duplicated = wrong = 0
        newest: dict[str, int] = {}
        for topic, expected in self.expected.items():
            emitted: Counter[tuple[str, int | None, int]] = Counter()
            last: dict[tuple[str, int | None], int] = {}
            for rows in read_all(self.bootstrap, [topic]).values():
                for row in rows:
                    value = json.loads(row.value)
                    key = (row.key.decode(), value.get("window_start"))
                    emitted[*key, value["n"]] += 1
                    last[key] = max(last.get(key, 0), value["n"])
                    if "newest" in value:
                        newest[row.key.decode()] = value["newest"]
            duplicated += sum(times - 1 for times in emitted.values())
            lost += len(expected.keys() - last.keys())
            wrong += sum(expected[key] != n for key, n in last.items())
        # Every user has clicked since the upgrade.
        return lost, duplicated, wrong + sum(newest.get(user) != at for user, at in self.newest.items())


def main() -> int:
    """Make every change in turn; 1 when a count is off."""
    console, seed = Console(highlight=False), int(time.time())
    console.print(f"change: seed={seed}")
    mark = f"change-{uuid.uuid4()}"
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-change-") as folder:
        os.environ[processes.MARK] = mark
        with EmbeddedBroker(Path(folder) / "broker", jars.ensure("kafka", Settings.load())) as broker:
            bench = ChangeBench(broker.bootstrap, Path(folder) / "app", seed)
            try:
                with ends_of_logs(console, bench.folder):
                    _feed_and_stop(bench, console)
                    for step in STEPS:
                        started, kills = time.monotonic(), bench.kills
                        bench.change(*step)
                        took = time.monotonic() - started
                        if bench.kills == kills:
                            raise RuntimeError(
                                f"{' '.join(step)} passed none of the points at which it is to be killed"
                            )
                        console.print(f"{' '.join(step)}: done in {took:.1f} s, after {bench.kills - kills} kills")
                        _feed_and_stop(bench, console)
                    running = bench.launch()
                    bench.wait_state(running, "RUNNING")
                    bench.wait_all_read()
                    bench.stop(running)
                    lost, duplicated, wrong = bench.differences()
            finally:
                bench.close()
    print(
        f"change: steps={len(STEPS)} kills={bench.kills} records={bench.records} lost={lost} duplicated={duplicated} "
        f"wrong={wrong}"
    )
    return 1 if lost or duplicated or wrong else 0


def _feed_and_stop(bench: ChangeBench, console: Console) -> None:
    """An instance reads all of a first part, and is stopped in the middle of a second."""
    running = bench.launch()
    bench.wait_state(running, "RUNNING")
    bench.feed(_RECORDS)
    bench.wait_all_read()
    bench.feed(_RECORDS)
    bench.stop(running)
    console.print(f"{bench.records} records so far")


if __name__ == "__main__":
    sys.exit(main())
