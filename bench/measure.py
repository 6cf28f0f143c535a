"""One run of the benchmark: a new broker, the complete input, one side, and a verdict on its output."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.case import CONSUMER, Case
from bench.errors import BenchFailed
from bench.load import create_topics, new_broker, produce
from bench.outputs import Verdict, verify
from bench.rates import Rates, Sample, rates
from bench.sides import Side, Started, all_running
from bench.watch import CommittedOffsets, Usage, watch
from tidemark.processes import wait_until
from tidemark.settings import Settings

_LOG_TAIL_LINES = 15
_SHORTEST_INTERVALS = 2
_RUNNING_S = 120.0


@dataclass(frozen=True)
class Result:
    """The result of one run. `restart_s` is the time from a second start, with all state in place, to RUNNING.

    `verdict` is None for a side that writes nothing.
    """

    case: str
    side: str
    alternation: int
    rates: Rates
    restart_s: float
    verdict: Verdict | None
    usage: Usage
    samples: list[Sample]


@dataclass(frozen=True)
class Progress:
    """Callbacks that show the progress of a run to a person."""

    phase: Callable[[str], None]
    committed: Callable[[int], None]


def measure(
    side: Side, case: Case, start_ms: int, alternation: int, folder: Path, settings: Settings, progress: Progress
) -> Result:
    """Measure `side` on `case`. `folder` is created, and removed again unless the run fails.

    Blocks until the output is verified. Raises `BenchFailed`, which names the run and has the end of the side's log.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with new_broker(folder / "broker", settings) as broker:
        progress.phase("producing")
        create_topics(broker.bootstrap, case.program)
        produce(broker.bootstrap, case, start_ms)
        # Otherwise the broker would write its dirty pages to disk while the side runs.
        os.sync()
        commands = [side.command(case, broker.bootstrap, folder, number) for number in range(case.instances)]
        progress.phase("running")
        logs = [folder / f"side-{number}.log" for number in range(case.instances)]
        try:
            with (
                closing(CommittedOffsets(broker.bootstrap, side.group(case), case.program.sources)) as offsets,
                all_running(commands, logs) as started,
            ):
                run = watch(started, offsets, case.events, progress.committed)
            progress.phase("starting again")
            logs = [folder / f"again-{number}.log" for number in range(case.instances)]
            with all_running(commands, logs) as started:
                restart_s = _seconds_until_running(side, case, folder, logs, started)
        except BenchFailed as failure:
            ends = "\n".join(f"end of {log}:\n{_tail(log)}" for log in logs)
            raise BenchFailed(f"{side.name} on {case.name}: {failure}; {ends}") from None
        progress.phase("verifying")
        verdict = None if side.name == CONSUMER else verify(broker.bootstrap, case, start_ms, case.program.sink)
    if verdict is None or verdict.right:
        shutil.rmtree(folder)
    measured = rates(run.samples, case.events, _SHORTEST_INTERVALS * case.commit_interval_ms / 1000)
    return Result(case.name, side.name, alternation, measured, restart_s, verdict, run.usage, run.samples)


def _seconds_until_running(
    side: Side, case: Case, folder: Path, logs: Sequence[Path], started: Sequence[Started]
) -> float:
    """Raises `BenchFailed` if one of them has ended, or not all are running after two minutes."""

    def are_running() -> bool:
        return all(
            side.is_running(case, folder, log, each.process, number)
            for number, (log, each) in enumerate(zip(logs, started, strict=True))
        )

    def has_ended() -> bool:
        return any(each.process.poll() is not None for each in started)

    wait_until(lambda: has_ended() or are_running(), _RUNNING_S, every_s=0.05)
    seconds = time.monotonic() - started[0].started
    if not are_running():
        raise BenchFailed(f"started again, it is not RUNNING after {seconds:.0f} s")
    return seconds


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:])
