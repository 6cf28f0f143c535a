"""Measures the restore of a lost state from each source, and that of Kafka Streams with a changelog of the same size.

    python bench/restore.py --keys 1000000,10000000

Each restore is a real start of a real process, timed from its start to RUNNING. The time of the restore is that time minus
the time of a start with the state in place. For Tidemark only the time in RESTORING is compared, which its log has, because
Spark's own start differs from run to run. More input arrives while nothing runs. At the end all outputs are compared with an
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
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

if __name__ == "__main__":
    # So that it runs by its path, from any folder and without PYTHONPATH.
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root / "include"), str(root)]

import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console

from bench.case import QUIET, WINDOW_MS, Case
from bench.cases import CASES
from bench.errors import BenchFailed
from bench.events import base_ms
from bench.load import create_topics, new_broker, produce
from bench.machine import ROOT, machine
from bench.outputs import verify
from bench.pages import publish
from bench.program import run_program
from bench.restore_report import markdown, picture, table
from bench.sides import Command, Started, StreamsSide, TidemarkSide, running
from bench.watch import CommittedOffsets, Usage, watch
from tidemark.kafka.group import members
from tidemark.settings import Settings
from tidemark.supervision.run_file import read_run_file, run_file_path, standby_file_path

_ARRIVING = 100_000
_RUNNING_S = 900.0
_TICK_S = 0.02
_OUTPUT_OF_STREAMS = "pulse-counts-streams"
console = Console()


@dataclass(frozen=True)
class Measured:
    """The measurements of one start. `restore_s` is the part of `running_s` that the restore took.

    `size` is the requested number of keys; `keys` is the actual number, with those that have arrived since. `state_mb` is the
    size of the state folder.
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
        """The rate of the restore alone."""
        return self.keys / self.restore_s if self.restore_s > 0 else 0.0


class Subject:
    """An application on the broker, with its input so far, its state folder and the number of its starts."""

    def __init__(
        self, side: TidemarkSide | StreamsSide, bootstrap: str, folder: Path, case: Case, start_ms: int
    ) -> None:
        self.side, self.bootstrap, self.folder, self.start_ms = side, bootstrap, folder, start_ms
        self.case = case
        self.state = folder / "state"
        self.starts = 0
        folder.mkdir(parents=True)

    def start(self, prepare: Callable[[], None] = lambda: None) -> tuple[float, float, Usage]:
        """Start the application, wait for RUNNING, let it process all input, and stop it.

        Returns the seconds until RUNNING, how many of them were in RESTORING, and the resources used.
        """
        self.starts += 1
        self._left_alone()
        prepare()
        log = self.folder / f"start-{self.starts}.log"
        command = self.side.command(self.case, self.bootstrap, self.folder)
        with (
            closing(CommittedOffsets(self.bootstrap, self.side.group(self.case), self.case.program.sources)) as offsets,
            running(command, log) as started,
        ):
            seconds = self._until_running(started, log)
            run = watch([started], offsets, self.case.events, lambda _n: None)
        return seconds, _restoring_s(log), run.usage

    def _left_alone(self) -> None:
        """Wait until the group is empty: a start waits for the session of an old member, which would distort the time."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        settings = Settings.load(bootstrap_servers=self.bootstrap)
        deadline = time.monotonic() + _RUNNING_S
        while members(settings, admin, self.side.group(self.case)):
            if time.monotonic() > deadline:
                raise BenchFailed(f"group {self.side.group(self.case)} still has members")
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
        said = read_run_file(run_file_path(self.folder / "var", self.side.group(self.case), 0)) or {}
        return said.get("pid") == pid and said.get("state") == "RUNNING"

    def lose(self) -> None:
        """Remove the state, as if the disk were lost."""
        shutil.rmtree(self.state)

    def tidemark(self, *arguments: str) -> Command:
        """Return a `tidemark` command that uses this application's settings."""
        made = self.side.command(self.case, self.bootstrap, self.folder)
        location = {"TIDEMARK_SAVEPOINT_LOCATION": str(self.folder / "savepoints")}
        return Command([sys.executable, "-m", "tidemark.cli.main", *arguments], {**made.environment, **location})

    def run(self, *arguments: str) -> None:
        """Run a `tidemark` command until it ends. Raises `BenchFailed` with its output."""
        command = self.tidemark(*arguments)
        done = subprocess.run(
            command.arguments, env={**os.environ, **command.environment}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BenchFailed(f"tidemark {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")


class Restores:
    """Measures all restores of one size on one broker."""

    def __init__(self, keys: int, folder: Path, settings: Settings) -> None:
        self.keys, self.folder, self.settings = keys, folder, settings
        self.results: list[Measured] = []
        self._in_place_s = 0.0

    def run(self) -> list[Measured]:
        """Run all restores. Blocks for minutes. Raises `BenchFailed` if an output is wrong or a side ends."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        whole = CASES["wide"].sized(self.keys)
        # Events that arrive later fall into later windows, so there must be time for one slice of them per start.
        start_ms = base_ms(int(time.time() * 1000), whole.sized(self.keys + 20 * _ARRIVING)) - WINDOW_MS
        with new_broker(self.folder / "broker", self.settings) as broker:
            create_topics(broker.bootstrap, whole.program, _OUTPUT_OF_STREAMS)
            produce(broker.bootstrap, whole, start_ms)
            self._streams(broker.bootstrap, whole, start_ms)
            self._tidemark(broker.bootstrap, whole, start_ms)
        shutil.rmtree(self.folder)
        return self.results

    def _streams(self, bootstrap: str, whole: Case, start_ms: int) -> None:
        side = StreamsSide(self.settings, overrides={"bench.output": _OUTPUT_OF_STREAMS})
        subject = Subject(side, bootstrap, self.folder / "streams", whole, start_ms)
        self._said("kafka-streams", "building the state")
        subject.start()
        in_place, _, usage = subject.start()
        self._add(subject, "state in place", in_place, 0.0, usage)
        seconds, _, usage = subject.start(subject.lose)
        self._add(subject, "whole changelog", seconds, max(0.0, seconds - in_place), usage)
        _require_right(bootstrap, whole, start_ms, _OUTPUT_OF_STREAMS)

    def _tidemark(self, bootstrap: str, whole: Case, start_ms: int) -> None:
        location = {"savepoint_location": str(self.folder / "tidemark" / "savepoints")}
        side = TidemarkSide(self.settings, overrides=location)
        subject = Subject(side, bootstrap, self.folder / "tidemark", whole, start_ms)
        self._said("tidemark", "building the state")
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
        _require_right(bootstrap, subject.case, start_ms, subject.case.program.sink)

    def _arrive(self, subject: Subject) -> None:
        """Produce more input while nothing runs."""
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


def _require_right(bootstrap: str, case: Case, start_ms: int, sink: str) -> None:
    """Raise `BenchFailed` unless a topic has exactly the counts of the case."""
    verdict = verify(bootstrap, case, start_ms, sink)
    if not verdict.right:
        raise BenchFailed(
            f"{sink}: after the restores {verdict.missing} counts are missing, {verdict.wrong} are wrong, and "
            f"{verdict.unexpected} are of no event"
        )


def _restoring_s(log: Path) -> float:
    """Return the seconds between RESTORING and RUNNING in a log, or 0 if it does not have both (as that of the peer)."""
    stamps = dict(
        re.findall(r"^(\S+ \S+) INFO .* state: .* to=(RESTORING|RUNNING)$", log.read_text(errors="replace"), re.M)
    )
    times = {state: stamp for stamp, state in stamps.items()}
    if len(times) < 2:
        return 0.0
    began, ended = (datetime.strptime(times[s], "%Y-%m-%d %H:%M:%S,%f") for s in ("RESTORING", "RUNNING"))  # noqa: DTZ007
    return (ended - began).total_seconds()


class _LevelStandby:
    """A context in which a standby process runs that has caught up."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._running = running(subject.tidemark("standby", "run", "pulse_counting"), subject.folder / "standby.log")

    def __enter__(self) -> None:
        started = self._running.__enter__()
        deadline = time.monotonic() + _RUNNING_S
        path = standby_file_path(self._subject.folder / "var", self._subject.side.group(self._subject.case), 0)
        while (read_run_file(path) or {}).get("state") != "RUNNING":
            if started.process.poll() is not None or time.monotonic() > deadline:
                raise BenchFailed(f"the standby has not caught up; see {self._subject.folder / 'standby.log'}")
            time.sleep(0.2)

    def __exit__(self, *error: object) -> None:
        self._running.__exit__(*error)  # type: ignore[arg-type]


def main(
    keys: Annotated[str, typer.Option(help="numbers of window-keys, separated by commas")] = "1000000,10000000",
    write_docs: Annotated[bool, typer.Option(help="write table and plot to docs/restore.md")] = False,
) -> None:
    """Measure a restore from every source of state. The exit code is 1 if an output is wrong."""
    settings = Settings.load()
    folder = ROOT / "bench" / "results" / datetime.now(UTC).strftime("restore-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    results: list[Measured] = []
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
    run_program("restore-bench", lambda: typer.run(main))
