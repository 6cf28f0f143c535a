"""`make drill`: the drill DAG on a running application, healthy, with a changelog that a stranger wrote to, and without
evidence: empty, idle, and with changelogs whose beginnings were purged.

    python -m tests.system.drill.run [--seed N]

Real broker, real Spark, patients' heartbeats arriving all the time. Each kind of damage is done alone, found, and mended.
Last line `drill: empty=unproven healthy=pass altered=caught missing=caught extra=caught idle=unproven purged=unproven`; exit 1
when it is another.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console
from tests.support.log_ends import ends_of_logs
from tests.support.purging import purge
from tests.support.truth.compare import CHANGELOG_VALUE, WINDOW_START
from tests.support.truth.topics import Row, read_all
from tests.system.crash.bench import ROOT, Bench

from tidemark import processes
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.devstack import airflow_parts
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.names import changelog_topic
from tidemark.operations.context import OperationContext
from tidemark.operations.drill_history.table import PastDrill, past_drills
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.verdict import Verdict

STORE = "pulse-counts"
EXPECTED = {
    "empty": "unproven",
    "healthy": "pass",
    "altered": "caught",
    "missing": "caught",
    "extra": "caught",
    "idle": "unproven",
    "purged": "unproven",
}
_SHORT_S = 10
"""To wait for batches that do not come."""
_RUN_DAG = """
import sys
from airflow.dag_processing.dagbag import DagBag
conf = {"topologies": [sys.argv[1]], "follow_batches": 3, "follow_timeout_s": int(sys.argv[3])}
run = DagBag(sys.argv[2]).dags["restore_drill"].test(run_conf=conf)
print("STATE", run.state)
"""


class _Bench(Bench):
    """Its instance lives for minutes."""

    def environment(self, disk: str = "state") -> dict[str, str]:
        return {**super().environment(disk), "TIDEMARK_SPARK_DRIVER_MEMORY": "1g"}


@dataclass(frozen=True)
class Damage:
    """What a stranger writes for a window that no batch writes any more, and what mends it."""

    kind: str
    key: bytes
    value: bytes | None
    mended: bytes | None
    partition: int

    @property
    def name(self) -> str:
        """The patient's, as a drill names the key."""
        return self.key[: -WINDOW_START.size].decode()


class Drilled:
    """A running application whose DAG is run again and again."""

    def __init__(self, bench: Bench, settings: Settings, environment: dict[str, str]) -> None:
        self._bench = bench
        self._settings = settings
        self._environment = environment
        self._context = OperationContext.of(bench.plan, settings, [], wall_clock_ms)
        self._changelog = changelog_topic(bench.application_id, STORE)

    def drill(self, follow_timeout_s: int = 120) -> tuple[str, PastDrill]:
        """Run the DAG; the run's state, and what the history says of the drill."""
        done = subprocess.run(
            [sys.executable, "-c", _RUN_DAG, self._bench.topology, str(ROOT / "dags"), str(follow_timeout_s)],
            env=self._environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        (self._bench.folder / "dag.log").write_text(done.stdout + done.stderr)
        states = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("STATE ")]
        if not states:
            raise RuntimeError(f"the DAG did not run: {done.stderr[-2000:]}")
        facts = FactsDatabase(self._settings)
        try:
            return states[0], next(past_drills(facts, self._bench.application_id))
        finally:
            facts.close()

    def damages(self) -> list[Damage]:
        """One of each kind, in the oldest windows, which are closed."""
        rows: dict[bytes, Row] = {}
        for read in read_all(self._bench.bootstrap, [self._changelog]).values():
            rows |= {row.key: row for row in read if row.key is not None}
        oldest = sorted(rows.values(), key=lambda row: row.key[-WINDOW_START.size :])
        altered, missing, extra = oldest[:3]
        version, valid, newest_ms, count = CHANGELOG_VALUE.unpack(altered.value)
        more = CHANGELOG_VALUE.pack(version, valid, newest_ms, count + 1)
        return [
            Damage("altered", altered.key, more, altered.value, altered.partition),
            Damage("missing", missing.key, None, missing.value, missing.partition),
            Damage("extra", b"stranger" + extra.key[-WINDOW_START.size :], extra.value, None, extra.partition),
        ]  # fmt: skip

    def write(self, damage: Damage, value: bytes | None) -> None:
        """As a stranger would; returns when every task has committed behind it."""
        producer = Producer({"bootstrap.servers": self._bench.bootstrap})
        producer.produce(self._changelog, value, damage.key, partition=damage.partition)
        if producer.flush(20):
            raise RuntimeError("the stranger's record was not acknowledged")
        before = self._batches()
        if not wait_until(
            lambda: all(now >= before[task] + 2 for task, now in self._batches().items()), 60, every_s=0.5
        ):
            raise RuntimeError("the application commits nothing")

    def purge(self) -> None:
        """Delete everything that all changelogs hold, as a person does by mistake."""
        context = self._context
        places = [
            context.evidence.witnesses.changelog_of(task, spec)
            for task in context.evidence.tasks()
            for spec in context.evidence.buildable(task).values()
        ]
        purge(context.clients.admin, self._settings, context.clients.ends.of(places))

    def _batches(self) -> dict[object, int]:
        found = {task: found.record for task, found in self._context.evidence.facts().items()}
        holder = next(s.index for s in self._bench.plan.subtopologies if any(spec.name == STORE for spec in s.stores))
        return {task: r.batch for task, r in found.items() if r is not None and task.subtopology == holder}


def outcome(damage: Damage, state: str, found: PastDrill) -> str:
    """`caught` when the run failed, and the drill counted this one key and named it."""
    whole = [s for s in found.report["stores"] if s["way"] == "whole changelog"]
    counted = {kind: sum(store[kind] for store in whole) for kind in ("altered", "missing", "extra")}
    wanted = {kind: int(kind == damage.kind) for kind in counted}
    summary = [line for store in whole for line in store["first"]]
    named = len(summary) == 1 and summary[0].startswith(f"{damage.kind} {damage.name} of ")
    caught = state == "failed" and found.verdict is Verdict.FAILED and counted == wanted and named
    return "caught" if caught else "MISSED"


def unproven(state: str, found: PastDrill, is_so: bool) -> str:
    """`unproven` when the run did not fail, nothing passed, nothing differed, and it was for the reason that was meant."""
    differing = sum(store["differing"] for store in found.report["stores"])
    skipped = state == "success" and found.verdict is Verdict.NOT_ENOUGH_EVIDENCE and not differing
    return "unproven" if skipped and is_so else "WRONG"


def of_changelogs(found: PastDrill, figure: str) -> int:
    """A figure of all stores by the whole changelog."""
    return sum(store[figure] for store in found.report["stores"] if store["way"] == "whole changelog")


def show(console: Console, state: str, found: PastDrill, seconds: float) -> None:
    """The figures as they were measured."""
    report = found.report
    console.print(f"    run {state}, verdict {found.verdict}, {found.keys} keys, {found.bytes} bytes, {seconds:.0f} s")
    for way in report["ways"]:
        console.print(
            f"    {way['way']}: RTO {way['rto_s']:.2f} s, RPO {way['rpo_offsets']} offsets, {way['rpo_s']:.1f} s"
        )
    compared, left_out, differing = (of_changelogs(found, f) for f in ("compared", "left_out", "differing"))
    console.print(f"    by whole changelog: {compared} keys compared, {left_out} left out, {differing} differ")
    for store in report["stores"]:
        for line in store["first"]:
            console.print(
                f"    {store['task']}/{store['store']} by {store['way']}: {line}", markup=False, soft_wrap=True
            )


def drilled(bench: Bench, settings: Settings, console: Console) -> dict[str, str]:
    """What came of each drill."""
    environment = {
        **airflow_parts.environment(settings, os.environ[processes.MARK], 8090),
        **{name: value for name, value in bench.environment().items() if name.startswith("TIDEMARK_")},
    }
    airflow_parts.prepare(settings, environment)
    running = bench.launch()
    bench.wait_state(running, "RUNNING")
    found: dict[str, str] = {}
    one = Drilled(bench, settings, environment)

    def drill(what: str, follow_timeout_s: int = 120) -> tuple[str, PastDrill]:
        console.print(f"[{len(found) + 1}/{len(EXPECTED)}] {what} …")
        started = time.monotonic()
        state, past = one.drill(follow_timeout_s)
        show(console, state, past, time.monotonic() - started)
        return state, past

    state, past = drill("an application that has had no input", _SHORT_S)
    found["empty"] = unproven(state, past, of_changelogs(past, "compared") == 0)
    bench.feeder.feed(bench.batch_records)
    bench.wait_drained()
    with bench.feeder.feeding():
        state, past = drill("a healthy application")
        found["healthy"] = "pass" if (state, past.verdict) == ("success", Verdict.OK) else "FAIL"
        for damage in one.damages():
            one.write(damage, damage.value)
            state, past = drill(f"one {damage.kind} record in the changelog")
            found[damage.kind] = outcome(damage, state, past)
            one.write(damage, damage.mended)
    bench.wait_drained()
    state, past = drill("an idle application", _SHORT_S)
    found["idle"] = unproven(state, past, past.report["followed_batches"] < past.report["follow_batches"])
    one.purge()
    with bench.feeder.feeding():
        state, past = drill("changelogs whose beginnings were purged, while input arrives")
    followed = past.report["followed_batches"] >= past.report["follow_batches"]
    found["purged"] = unproven(state, past, followed and of_changelogs(past, "deleted") > 0)
    bench.stop(running)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    console = Console(highlight=False)
    console.print(f"drill: seed={options.seed}")
    mark = f"drill-{uuid.uuid4()}"
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-drill-") as name:
        os.environ[processes.MARK] = mark
        with EmbeddedBroker(Path(name) / "broker", jars.ensure("kafka", Settings.load())) as broker:
            bench = _Bench(broker.bootstrap, Path(name) / "bench", options.seed, partitions=2)
            settings = Settings.load(
                bootstrap_servers=broker.bootstrap, var_dir=bench.var_dir, state_dir=bench.state_dir(),
                savepoint_location=str(bench.folder / "savepoints"),
            )  # fmt: skip
            try:
                with ends_of_logs(console, bench.folder, lines=40):
                    found = drilled(bench, settings, console)
            finally:
                bench.close()
    print("drill: " + " ".join(f"{what}={came}" for what, came in found.items()))
    return 0 if found == EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())
