"""Measures how far the copies of a standby lag while an instance works off a backlog: `python bench/standby_lag.py`.

The work is the case `hot`. Meanwhile the standby is asked twice a second for the age of its copies: the time since each of them
was last known to be complete. A copy that does not answer ages since its last answer. The oldest copy counts. Last line:

    standby-lag: p50_s=… worst_s=… goal=3.0 samples=… k_events_per_s=…
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    # So that it runs by its path, from any folder and without PYTHONPATH.
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root / "include"), str(root)]

import numpy as np
from rich.console import Console

from bench.case import Case
from bench.cases import CASES
from bench.events import base_ms
from bench.load import create_topics, new_broker, produce
from bench.machine import ROOT
from bench.program import run_program
from bench.rates import rates
from bench.sides import Command, TidemarkSide, running
from bench.watch import CommittedOffsets, watch
from tidemark.client import QueryFailed, StateClient
from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode
from tidemark.processes import wait_until
from tidemark.queries.access import read_token_file, token_file
from tidemark.settings import Settings
from tidemark.supervision.run_file import QUERY_URL, RunView, standby_file_path

GOAL_S = 3.0
_STORE = "pulse-counts"
_EVERY_S, _ANSWERS_S = 0.5, 60.0


@dataclass
class CopyAges:
    """When each copy of a standby was last known to be complete, by task.

    A copy that has not answered yet counts from the time at which the standby was first asked about it.
    """

    _complete_s: dict[str, float] = field(default_factory=dict)

    def oldest_s(self, found: Mapping[str, float | None], now_s: float) -> float | None:
        """Return the age of the oldest copy in seconds; None before the standby has told of any copy.

        `found` holds the ages of the copies that the standby tells of, None for one that did not answer. Copies that are not
        in it did not answer either.
        """
        for task, age_s in found.items():
            if age_s is not None:
                self._complete_s[task] = now_s - age_s
            else:
                self._complete_s.setdefault(task, now_s)
        return None if not self._complete_s else now_s - min(self._complete_s.values())


@dataclass
class Ages:
    """The ages of the oldest copy in seconds, asked again and again in a thread of its own."""

    var_dir: Path
    application_id: str
    seconds: list[float] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        """Ask until `done`, and note the age of the oldest copy each time, also when the standby does not answer."""
        copies = CopyAges()
        while not self.done.wait(_EVERY_S):
            found = self._found()
            oldest_s = copies.oldest_s(found, time.monotonic())
            if oldest_s is not None:
                self.seconds.append(oldest_s)

    def _found(self) -> dict[str, float | None]:
        """Ask the standby for the ages of its own copies; None for one that does not answer. Blocks."""
        run = RunView.read(standby_file_path(self.var_dir, self.application_id, 0))
        if run is None or not run.values.get(QUERY_URL):
            return {}
        token = next(iter(read_token_file(token_file(self.var_dir, self.application_id))))
        try:
            with StateClient(self.application_id, url=str(run.values[QUERY_URL]), token=token) as client:
                copies = client.store(_STORE).copies()
        except QueryFailed:
            return {}
        # The address of the process that answers is empty.
        own = [copy for copy in copies if not copy.url]
        return {copy.task: None if copy.position is None else copy.position.lag_ms / 1000 for copy in own}


def measure(case: Case, folder: Path, settings: Settings) -> tuple[list[float], float]:
    """Return the ages, and the steady rate of the stream in thousands of events per second. Blocks.

    `folder` is created, and removed again unless the run fails. Raises `BenchFailed`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    side = TidemarkSide(settings, overrides={"query_port": "0"})
    start_ms = base_ms(wall_clock_ms(), case)
    with new_broker(folder / "broker", settings) as broker:
        create_topics(broker.bootstrap, case.program)
        produce(broker.bootstrap, case, start_ms)
        os.sync()
        command = side.command(case, broker.bootstrap, folder)
        standby = Command(
            [sys.executable, "-m", "tidemark.cli.main", "standby", "run", "pulse_counting"], command.environment
        )
        ages = Ages(folder / "var", side.group(case))
        with (
            closing(CommittedOffsets(broker.bootstrap, side.group(case), case.program.sources)) as offsets,
            running(command, folder / "side.log") as started,
            running(standby, folder / "standby.log"),
        ):
            asking = threading.Thread(target=ages.ask)
            asking.start()
            try:
                run = watch([started], offsets, case.events, lambda _: None)
                # A short run may end before the standby has found its topics.
                wait_until(lambda: bool(ages.seconds), _ANSWERS_S)
            finally:
                ages.done.set()
                asking.join()
    shutil.rmtree(folder)
    steady = rates(run.samples, case.events, 2 * case.commit_interval_ms / 1000).steady or 0.0
    return ages.seconds, steady / 1000


def main() -> int:
    seconds, steady = measure(CASES["hot"], ROOT / "bench" / "build" / "standby-lag", Settings.load())
    if not seconds:
        Console(stderr=True).print("the standby had no copy while the stream ran")
        return ExitCode.FAILED
    print(
        f"standby-lag: p50_s={np.median(seconds):.1f} worst_s={max(seconds):.1f} goal={GOAL_S} samples={len(seconds)} "
        f"k_events_per_s={steady:.0f}"
    )
    return 0 if max(seconds) < GOAL_S else ExitCode.FAILED


if __name__ == "__main__":
    run_program("standby-lag", main)
