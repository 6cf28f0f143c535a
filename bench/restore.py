"""A lost state, brought back from each source, beside Kafka Streams with as large a changelog.

    python bench/restore.py --keys 1000000,10000000

Each restore is a real start of a real process, timed from its start to RUNNING. What the restore takes of that is the time
less that of a start with the state in place; of Tidemark, whose log says it, only the time in RESTORING is compared, as Spark's
own start differs from run to run. Input goes on arriving while nothing runs; at the end all outputs are compared with an
independent count.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

if __name__ == "__main__":
    # Run by its path, from any folder and without PYTHONPATH.
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root / "include"), str(root)]

import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console

from bench.cases import CASES, QUIET, WINDOW_MS, Case
from bench.errors import BenchFailed
from bench.events import base_ms
from bench.load import create_topics, produce
from bench.machine import ROOT, machine
from bench.outputs import verify
from bench.pages import publish
from bench.restore_report import markdown, picture, table
from bench.sides import Command, Started, StreamsSide, TidemarkSide, running
from bench.watch import CommittedOffsets, Usage, watch
from tidemark.errors import TidemarkError
from tidemark.instance.run_file import read_run_file, run_file_path, standby_file_path
from tidemark.local import jars, processes
from tidemark.local.broker import EmbeddedBroker
from tidemark.restore.fence import members
from tidemark.settings import Settings

_ARRIVING = 100_000
_RUNNING_S = 900.0
_TICK_S = 0.02
_OUTPUT_OF_STREAMS = "pulse-counts-streams"
_BROKER = {"group.initial.rebalance.delay.ms": "3000"}
console = Console()


@dataclass(frozen=True)
class Measured:
    """One start. `restore_s` is the part of `running_s` that the restore took; sizes are of the state folder.

    `size` is how many keys were asked for, `keys` how many there are, with those that have come since.
    """

    side: str
    source: str
    size: int
    keys: int
    running_s: float
    restore_s: float
    state_mb: float
    peak_gb: float

    @property
    def keys_per_s(self) -> float:
        """Rate of the restore itself."""
        return self.keys / self.restore_s if self.restore_s > 0 else 0.0


class Subject:
    """One application on the broker: its input so far, its state folder, its starts."""

    def __init__(
        self, side: TidemarkSide | StreamsSide, bootstrap: str, folder: Path, case: Case, start_ms: int
    ) -> None:
        self.side, self.bootstrap, self.folder, self.start_ms = side, bootstrap, folder, start_ms
        self.case = case
        self.state = folder / "state"
        self.starts = 0
        folder.mkdir(parents=True)

    def start(self, prepare: Callable[[], None] = lambda: None) -> tuple[float, float, Usage]:
        """Start, wait for RUNNING, work everything off, stop; seconds until RUNNING, and of those in RESTORING."""
        self.starts += 1
        self._left_alone()
        prepare()
        log = self.folder / f"start-{self.starts}.log"
        command = self.side.command(self.case, self.bootstrap, self.folder)
        with closing(CommittedOffsets(self.bootstrap, self.side.group)) as offsets, running(command, log) as started:
            seconds = self._until_running(started, log)
            run = watch(started.process, started.started, offsets, self.case.events, lambda _n: None)
        return seconds, _restoring_s(log), run.usage

    def _left_alone(self) -> None:
        """Until the group is empty: a member that is remembered would make one start wait and another not."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        settings = Settings.load(bootstrap_servers=self.bootstrap)
        deadline = time.monotonic() + _RUNNING_S
        while members(settings, admin, self.side.group):
            if time.monotonic() > deadline:
                raise BenchFailed(f"group {self.side.group} does not get empty")
            time.sleep(0.5)

    def _until_running(self, started: Started, log: Path) -> float:
        while True:
            elapsed = time.monotonic() - started.started
            if self._is_running(started.process.pid, log):
                return elapsed
            if started.process.poll() is not None or elapsed > _RUNNING_S:
                raise BenchFailed(f"{self.side.name} is not RUNNING after {elapsed:.0f} s; see {log}")
            time.sleep(_TICK_S)

    def _is_running(self, pid: int, log: Path) -> bool:
        if isinstance(self.side, StreamsSide):
            return "-> RUNNING" in log.read_text(errors="replace")
        said = read_run_file(run_file_path(self.folder / "var", self.side.group, 0)) or {}
        return said.get("pid") == pid and said.get("state") == "RUNNING"

    def lose(self) -> None:
        """The disk is gone."""
        shutil.rmtree(self.state)

    def tidemark(self, *arguments: str) -> Command:
        """A command of Tidemark's on this application."""
        made = self.side.command(self.case, self.bootstrap, self.folder)
        location = {"TIDEMARK_SAVEPOINT_LOCATION": str(self.folder / "savepoints")}
        return Command([sys.executable, "-m", "tidemark.cli.main", *arguments], {**made.environment, **location})

    def run(self, *arguments: str) -> None:
        """Run a command of Tidemark's to its end. Raises `BenchFailed` with what it said."""
        command = self.tidemark(*arguments)
        done = subprocess.run(
            command.arguments, env={**os.environ, **command.environment}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BenchFailed(f"tidemark {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")


class Restores:
    """All restores of one size on one broker."""

    def __init__(self, keys: int, folder: Path, settings: Settings) -> None:
        self.keys, self.folder, self.settings = keys, folder, settings
        self.results: list[Measured] = []
        self._in_place_s = 0.0

    def run(self) -> list[Measured]:
        """Blocks for minutes. Raises `BenchFailed` when an output is wrong or a side ends."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        whole = CASES["wide"].sized(self.keys)
        # Later events fall into later windows; room for one slice per start.
        start_ms = base_ms(int(time.time() * 1000), whole.sized(self.keys + 20 * _ARRIVING)) - WINDOW_MS
        jar_files = jars.ensure("kafka", self.settings)
        with EmbeddedBroker(self.folder / "broker", jar_files, overrides=_BROKER, heap="1g") as broker:
            create_topics(broker.bootstrap, _OUTPUT_OF_STREAMS)
            produce(broker.bootstrap, whole, start_ms)
            self._streams(broker.bootstrap, whole, start_ms)
            self._tidemark(broker.bootstrap, whole, start_ms)
        shutil.rmtree(self.folder)
        return self.results

    def _streams(self, bootstrap: str, whole: Case, start_ms: int) -> None:
        side = StreamsSide(self.settings, overrides={"bench.output": _OUTPUT_OF_STREAMS})
        subject = Subject(side, bootstrap, self.folder / "streams", whole, start_ms)
        self._said("kafka-streams", "making the state")
        subject.start()
        in_place, _, usage = subject.start()
        self._add(subject, "state in place", in_place, 0.0, usage)
        seconds, _, usage = subject.start(subject.lose)
        self._add(subject, "whole changelog", seconds, max(0.0, seconds - in_place), usage)

    def _tidemark(self, bootstrap: str, whole: Case, start_ms: int) -> None:
        location = {"savepoint_location": str(self.folder / "tidemark" / "savepoints")}
        side = TidemarkSide(self.settings, overrides=location)
        subject = Subject(side, bootstrap, self.folder / "tidemark", whole, start_ms)
        self._said("tidemark", "making the state")
        subject.start()
        running_s, self._in_place_s, usage = subject.start()
        self._add(subject, "state in place", running_s, self._in_place_s, usage)
        behind = self.folder / "behind"
        shutil.copytree(subject.state, behind)
        subject.run("savepoint", "take", "pulse_counting")
        self._arrive(subject)
        subject.start()
        self._arrive(subject)

        def set_back() -> None:
            subject.lose()
            shutil.copytree(behind, subject.state)

        self._add(subject, "local store + tail", *subject.start(set_back))
        self._arrive(subject)
        self._add(subject, "savepoint + tail", *subject.start(subject.lose))
        shutil.rmtree(self.folder / "tidemark" / "savepoints")
        self._arrive(subject)
        with _LevelStandby(subject):
            self._add(subject, "standby + tail", *subject.start(lambda: shutil.rmtree(subject.state / "0")))
        self._arrive(subject)
        shutil.rmtree(subject.state)
        self._add(subject, "whole changelog", *subject.start())
        started = time.monotonic()
        subject.run("restore", "run", "pulse_counting", "--from", "changelog", "--yes")
        seconds = time.monotonic() - started
        self._add(subject, "restore run, with verification", seconds, seconds + self._in_place_s, Usage())
        subject.start()
        verdict = verify(bootstrap, subject.case, start_ms)
        if not verdict.right:
            raise BenchFailed(f"after the restores {verdict.missing} counts are missing and {verdict.wrong} wrong")

    def _arrive(self, subject: Subject) -> None:
        """More input while nothing runs."""
        before = subject.case.events
        subject.case = subject.case.sized(before + _ARRIVING)
        produce(subject.bootstrap, subject.case, subject.start_ms, before)

    def _add(self, subject: Subject, source: str, seconds: float, restore_s: float, usage: Usage) -> None:
        restore_s = max(0.0, restore_s - self._in_place_s)
        size = sum(f.stat().st_size for f in subject.state.rglob("*") if f.is_file()) / 1e6
        measured = Measured(
            subject.side.name, source, self.keys, subject.case.events, round(seconds, 2), round(restore_s, 2),
            round(size, 1), round(usage.peak_rss_bytes / 1e9, 2),
        )  # fmt: skip
        self.results.append(measured)
        self._said(subject.side.name, f"{source}: RUNNING after {seconds:.1f} s, restore {measured.restore_s:.1f} s")

    def _said(self, side: str, what: str) -> None:
        console.print(f"{self.keys} keys, {side}: {what}", highlight=False)


def _restoring_s(log: Path) -> float:
    """Between the log's RESTORING and RUNNING; 0 where the log has none, as the peer's."""
    stamps = dict(
        re.findall(r"^(\S+ \S+) INFO .* state: .* to=(RESTORING|RUNNING)$", log.read_text(errors="replace"), re.M)
    )
    times = {state: stamp for stamp, state in stamps.items()}
    if len(times) < 2:
        return 0.0
    began, ended = (datetime.strptime(times[s], "%Y-%m-%d %H:%M:%S,%f") for s in ("RESTORING", "RUNNING"))  # noqa: DTZ007
    return (ended - began).total_seconds()


class _LevelStandby:
    """Context: a standby process that has caught up."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._running = running(subject.tidemark("standby", "pulse_counting"), subject.folder / "standby.log")

    def __enter__(self) -> None:
        started = self._running.__enter__()
        deadline = time.monotonic() + _RUNNING_S
        path = standby_file_path(self._subject.folder / "var", self._subject.side.group, 0)
        while (read_run_file(path) or {}).get("state") != "RUNNING":
            if started.process.poll() is not None or time.monotonic() > deadline:
                raise BenchFailed(f"the standby is not level; see {self._subject.folder / 'standby.log'}")
            time.sleep(0.2)

    def __exit__(self, *error: object) -> None:
        self._running.__exit__(*error)  # type: ignore[arg-type]


def main(
    keys: Annotated[str, typer.Option(help="window-keys, with commas")] = "1000000,10000000",
    write_docs: Annotated[bool, typer.Option(help="put table and plot into docs/restore.md")] = False,
) -> None:
    """Measure every source of state; exit code 1 when an output is wrong."""
    settings = Settings.load()
    folder = ROOT / "bench" / "results" / datetime.now(UTC).strftime("restore-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    results: list[Measured] = []
    os.environ[processes.MARK] = mark = uuid.uuid4().hex
    with processes.guarded(mark):
        for size in (int(text) for text in keys.split(",")):
            results += Restores(size, ROOT / "bench" / "build" / "restores" / str(size), settings).run()
            (folder / "results.json").write_text(json.dumps([asdict(r) for r in results], indent=1), encoding="utf-8")
    console.print(table(results))
    (folder / "summary.md").write_text(markdown(results, machine(settings)), encoding="utf-8")
    picture(folder / "restore.png", results)
    if write_docs:
        publish(ROOT / "docs" / "restore.md", folder / "summary.md", folder / "restore.png", "seconds of each restore")
    print(f"restore-bench: starts={len(results)} outputs_equal=true")


if __name__ == "__main__":
    try:
        typer.run(main)
    except TidemarkError as error:
        print(f"restore-bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
