"""Two machines with a disk each: an instance on the first, a standby and another instance on the second."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.truth.topics import commits_past, end_offsets
from tests.system.crash.bench import ROOT, RULES, Bench
from tests.system.failover.asking import asking, urls
from tests.system.failover.cases import Case, Loss, Outcome, Queries
from tests.system.failover.waiting import BACK_S, READY_S, NotBack, wait_for

from tidemark.errors import ExitCode
from tidemark.settings import Settings
from tidemark.supervision.run_file import RunView, run_file_path, standby_file_path
from tidemark.supervision.state import InstanceState

FIRST, SECOND = "machine-0", "machine-1"
_TAKEN_OVER_S = 2.0
_DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}


class Ward(Bench):
    """Runs the application with the session timeout, commit interval and compiler that a user gets by default."""

    restore_process_offsets = 300_000
    session_timeout_ms: int = _DEFAULTS["session_timeout_ms"]
    transaction_timeout_ms: int = _DEFAULTS["transaction_timeout_ms"]
    commit_interval_ms: int = _DEFAULTS["commit_interval_ms"]

    def environment(self, disk: str = FIRST) -> dict[str, str]:
        hurried = {"JDK_JAVA_OPTIONS", "TIDEMARK_MAX_BATCH_RECORDS", "TIDEMARK_SPARK_DRIVER_MEMORY"}
        found = {name: value for name, value in super().environment(disk).items() if name not in hurried}
        return {
            **found,
            "TIDEMARK_SESSION_TIMEOUT_MS": str(self.session_timeout_ms),
            "TIDEMARK_TRANSACTION_TIMEOUT_MS": str(self.transaction_timeout_ms),
            "TIDEMARK_COMMIT_INTERVAL_MS": str(self.commit_interval_ms),
            # Tests of other things switch queries off.
            "TIDEMARK_QUERY_PORT": "0",
        }

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

            wait_for(is_level, READY_S, "the standby is not level")
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
        self._end(self.running.pop(0))
        # The instance may have committed what came until now.
        ends = end_offsets(ward.bootstrap, ward.places(), "read_committed")
        if self.case.is_launched_again:
            self.running[0] = ward.launch(0, self.disks[0])
        marks = {place: end for place, end in ends.items() if f"{place[0]}[{place[1]}]" in lost}
        wait_for(self.all_run, BACK_S, "the lost tasks are not running again")
        running_s = time.monotonic() - began
        wait_for(
            lambda: commits_past(ward.bootstrap, ward.application_id, marks), BACK_S, "the lost tasks commit nothing"
        )
        return running_s, time.monotonic() - began

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End instance 0 as the case has it."""
        ward = self.ward
        if self.case.loss is Loss.NOTHING:
            code = ward.stop(process)
            if code != ExitCode.OK:
                raise NotBack(f"instance 0 was stopped and ended with {code}")
            return
        if self.case.loss is Loss.MACHINE:
            # Its JVM is lost, too, and the folder at once, whatever is still being written there.
            os.killpg(process.pid, signal.SIGKILL)
            ward.state_dir(FIRST).rename(ward.state_dir(f"lost-{time.monotonic_ns()}"))
            self.disks[0] = SECOND
        ward.kill(process)


def play(ward: Ward, case: Case) -> Outcome:
    """Play a case, from two empty machines to the comparison. Raises `NotBack`."""
    for disk in (FIRST, SECOND):
        shutil.rmtree(ward.state_dir(disk), ignore_errors=True)
    one = Play(ward, case)
    with ExitStack() as opened:
        wait_for(one.all_run, READY_S, "the tasks are not all running")
        wait_for(lambda: bool(one.held([0])), READY_S, "instance 0 has no task")
        ward.wait_drained()
        if case.has_standby:
            opened.enter_context(ward.standing_by())
        wait_for(lambda: bool(urls(ward.var_dir, ward.application_id)), READY_S, "nobody answers queries")
        opened.enter_context(ward.feeder.feeding())
        queries = opened.enter_context(asking(ward.var_dir, ward.application_id))
        wait_for(lambda: queries.answered > 0, READY_S, "no query is answered")
        queries.begin(time.monotonic())
        running_s, commit_s = one.lose()
    ward.wait_drained()
    _, comparison = ward.compare({number: one.disks[number] for number in one.running})
    faults = [] if comparison.exact else comparison.report() or ["not exact"]
    faults += faults_of_queries(case, queries, ward.session_timeout_ms)
    ward.end_all()
    return Outcome(case, running_s, commit_s, queries, tuple(faults))


def faults_of_queries(case: Case, queries: Queries, session_timeout_ms: int) -> list[str]:
    """Name queries that were not answered although a standby was there, or although another instance has long had the task."""
    if not queries.answered + queries.unanswered:
        return ["no query was asked after the loss"]
    if case.has_standby and queries.unanswered:
        return queries.examples
    within_s = session_timeout_ms / 1000 + _TAKEN_OVER_S
    if not case.is_launched_again and queries.outage_s > within_s:
        return [f"a key was not answered {queries.outage_s:.1f} s after the loss, and should be after {within_s:.1f} s"]
    return []


def _run_of(path: Path, process: subprocess.Popen[bytes]) -> RunView | None:
    """Return the run file of this process; None if it has not written one. Raises `NotBack` if the process has ended."""
    if process.poll() is not None:
        raise NotBack(f"{path.stem} ended with {process.returncode}")
    run = RunView.read(path)
    return run if run is not None and run.process.pid == process.pid else None
