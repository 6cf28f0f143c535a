"""Two machines with a disk each: an instance on the first, a standby and another instance on the second."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.truth.topics import committed_offsets, end_offsets
from tests.system.crash.bench import ROOT, RULES, Bench
from tests.system.failover.asking import asking, urls
from tests.system.failover.cases import Case, Loss, Outcome

from tidemark.errors import ExitCode
from tidemark.processes import wait_until
from tidemark.supervision.run_file import RunView, run_file_path, standby_file_path
from tidemark.supervision.state import InstanceState

FIRST, SECOND = "machine-0", "machine-1"
_READY_S = 180.0
_BACK_S = 180.0
_LOOK_S = 0.02


class NotBack(Exception):
    """A condition of a case was not met in time, or a process that it needs has ended."""


class Ward(Bench):
    """Runs the application with the session timeout, commit interval and compiler that a user gets by default."""

    restore_process_offsets = 300_000

    def environment(self, disk: str = FIRST) -> dict[str, str]:
        hurried = {
            "COMMIT_INTERVAL_MS",
            "MAX_BATCH_RECORDS",
            "SESSION_TIMEOUT_MS",
            "TRANSACTION_TIMEOUT_MS",
            "SPARK_DRIVER_MEMORY",
        }
        without = {"JDK_JAVA_OPTIONS", *(f"TIDEMARK_{name}" for name in hurried)}
        found = {name: value for name, value in super().environment(disk).items() if name not in without}
        # Tests of other things switch queries off.
        return {**found, "TIDEMARK_QUERY_PORT": "0"}

    @contextmanager
    def standing_by(self) -> Iterator[None]:
        """Run a standby on the second machine; the block begins when its copies are up to date."""
        with (self.folder / "standby.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidemark.cli.main", "standby", "run", self.topology, "--number", "0"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(SECOND), cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        try:
            path = standby_file_path(self.var_dir, self.application_id, 0)

            def is_level() -> bool:
                run = _run_of(path, process)
                return run is not None and run.state == InstanceState.RUNNING

            _await(is_level, _READY_S, "the standby is not level")
            yield
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)

    def places(self) -> list[tuple[str, int]]:
        """Return the partitions whose offsets show how far the counts are."""
        return [(RULES.source_topic, partition) for partition in range(self.partitions)]


class Play:
    """Runs the instances of one case, and starts one again that asks for it, as the DAG does."""

    def __init__(self, ward: Ward, case: Case) -> None:
        self.ward = ward
        self.case = case
        self.disks = {0: FIRST, 1: SECOND} if case.has_other else {0: FIRST}
        self.running = {number: ward.launch(number, disk) for number, disk in self.disks.items()}
        self.everything = {f"{topic}[{partition}]" for topic, partition in ward.places()}

    def held(self, numbers: Iterable[int]) -> set[str]:
        """Return the partitions of these instances if each of them is RUNNING, else an empty set."""
        held: set[str] = set()
        for number in numbers:
            process = self.running[number]
            if process.poll() == ExitCode.RETRY:
                self.ward.wait_ended(process)
                process = self.running[number] = self.ward.launch(number, self.disks[number])
            run = _run_of(run_file_path(self.ward.var_dir, self.ward.application_id, number), process)
            if run is None or run.state != InstanceState.RUNNING:
                return set()
            held |= set(run.values.get("partitions") or ())
        return held

    def all_run(self) -> bool:
        """Return whether every task is in an instance that runs."""
        return self.held(list(self.running)) == self.everything

    def lose(self) -> tuple[float, float]:
        """Lose instance 0, bring its tasks back, and return the seconds until they run, and commit."""
        ward, lost = self.ward, self.held([0])
        if not lost:
            raise NotBack("instance 0 has no task to lose")
        began = time.monotonic()
        process = self.running.pop(0)
        if self.case.loss is Loss.MACHINE:
            # Its JVM is lost, too, and the folder at once, whatever is still being written there.
            os.killpg(process.pid, signal.SIGKILL)
            ward.state_dir(FIRST).rename(ward.state_dir(f"lost-{time.monotonic_ns()}"))
            self.disks[0] = SECOND
        ward.kill(process)
        # The instance that is lost may have committed what came until now.
        ends = end_offsets(ward.bootstrap, ward.places(), "read_committed")
        if self.case.loss is Loss.PROCESS or not self.case.has_other:
            self.running[0] = ward.launch(0, self.disks[0])
        marks = {place: end for place, end in ends.items() if f"{place[0]}[{place[1]}]" in lost}

        def is_committed() -> bool:
            found = committed_offsets(ward.bootstrap, ward.application_id, marks)
            return all(found[place] > end for place, end in marks.items())

        _await(self.all_run, _BACK_S, "the lost tasks are not running again")
        running_s = time.monotonic() - began
        _await(is_committed, _BACK_S, "the lost tasks commit nothing")
        return running_s, time.monotonic() - began


def play(ward: Ward, case: Case) -> Outcome:
    """Play a case, from two empty machines to the comparison. Raises `NotBack`."""
    for disk in (FIRST, SECOND):
        shutil.rmtree(ward.state_dir(disk), ignore_errors=True)
    one = Play(ward, case)
    with ExitStack() as opened:
        _await(one.all_run, _READY_S, "the tasks are not all running")
        _await(lambda: bool(one.held([0])), _READY_S, "instance 0 has no task")
        ward.wait_drained()
        if case.has_standby:
            opened.enter_context(ward.standing_by())
        _await(lambda: bool(urls(ward.var_dir, ward.application_id)), _READY_S, "nobody answers queries")
        opened.enter_context(ward.feeder.feeding())
        queries = opened.enter_context(asking(ward.var_dir, ward.application_id))
        _await(lambda: queries.answered > 0, _READY_S, "no query is answered")
        queries.begin()
        running_s, commit_s = one.lose()
    ward.wait_drained()
    _, comparison = ward.compare({number: one.disks[number] for number in one.running})
    faults = [] if comparison.exact else comparison.report() or ["not exact"]
    if case.has_standby and queries.unanswered:
        faults += queries.examples
    ward.end_all()
    return Outcome(case, running_s, commit_s, queries, tuple(faults))


def _run_of(path: Path, process: subprocess.Popen[bytes]) -> RunView | None:
    """Return the run file of this process; None if it has not written one. Raises `NotBack` if the process has ended."""
    if process.poll() is not None:
        raise NotBack(f"{path.stem} ended with {process.returncode}")
    run = RunView.read(path)
    return run if run is not None and run.process.pid == process.pid else None


def _await(condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    if not wait_until(condition, timeout_s, every_s=_LOOK_S):
        raise NotBack(f"{otherwise} after {timeout_s:.0f} s")
