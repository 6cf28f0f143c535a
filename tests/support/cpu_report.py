"""Reports where the processor time of the tests goes: `--cpu-report=FILE` writes a table with one line per test file."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any

import psutil
import pytest

from tidemark import processes

OPTION = "--cpu-report"
COLLECTION, CONTROLLER = "(collection)", "(controller of the workers)"
_VARIABLE = "PYTEST_CPU_REPORT_OF"
_EVERY_S = 0.5


class ProcessorTime:
    """The CPU seconds of this process and of everything that it has started.

    The time of a process that has ended is known to the parent that has waited for it. One whose parent has ended is found
    by its environment. When such a process ends, as the JVM of a driver that was killed, the sum of all falls: by so much it
    is made up for, so that only what a process uses between the last look and its end is not counted.
    """

    def __init__(self) -> None:
        """Mark the environment of the processes to come, and look for those that lose their parent."""
        self._mark = os.environ[_VARIABLE] = uuid.uuid4().hex
        self._foreign: set[psutil.Process] = set()
        self._orphans_s: dict[psutil.Process, float] = {}
        self._parents: dict[psutil.Process, int] = {}
        self._seen_s = self._lost_s = 0.0
        self._lock = threading.Lock()
        threading.Thread(target=self._follow, name="cpu-report", daemon=True).start()

    def seconds(self) -> float:
        """Return the CPU seconds so far, user and system."""
        with self._lock:
            sum_s = self._sum_s()
            if sum_s < self._seen_s:
                # A process that ended between two reads of this look is now found with its parent.
                sum_s = self._sum_s()
            self._lost_s += max(0.0, self._seen_s - sum_s)
            self._seen_s = sum_s
            return sum_s + self._lost_s

    def _sum_s(self) -> float:
        self._look_for_orphans()
        return processes.cpu_seconds() + sum(self._orphans_s.values())

    def _follow(self) -> None:
        pause = threading.Event()
        while not pause.wait(_EVERY_S):
            self.seconds()

    def _look_for_orphans(self) -> None:
        running = set(psutil.process_iter())
        self._foreign &= running
        self._leave_to_parents(running)
        family = {psutil.Process(), *psutil.Process().children(recursive=True)}
        for process in running - self._foreign - family:
            with suppress(psutil.Error, OSError):
                if process in self._orphans_s or process.environ().get(_VARIABLE) == self._mark:
                    self._parents[process] = process.ppid()
                    self._orphans_s[process] = sum(process.cpu_times()[:4])
                else:
                    self._foreign.add(process)

    def _leave_to_parents(self, running: set[psutil.Process]) -> None:
        """Forget the orphans' children that have ended: their time is now part of their parents'."""
        pids = {process.pid for process in self._orphans_s if process in running}
        for process in [ended for ended in self._orphans_s if ended not in running and self._parents[ended] in pids]:
            del self._orphans_s[process]


class CpuReport:
    """A plugin of pytest for each worker, and for a run without workers."""

    def __init__(self, config: pytest.Config) -> None:
        """Measure from here on."""
        self._config = config
        self.used = ProcessorTime()
        self._cpu_s: Counter[str] = Counter()
        self._wall_s: Counter[str] = Counter()
        self._before_s = (0.0, time.monotonic())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Charge what came before the first test to the collection."""
        self._charge(COLLECTION)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Charge to a file what was used until its last test and the fixtures that end with it."""
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self._charge(item.nodeid.split("::")[0])
        return result

    def pytest_sessionfinish(self) -> None:
        """Hand the figures to the controller, or write them."""
        output = getattr(self._config, "workeroutput", None)
        if output is None:
            write(self._config, self._cpu_s, self._wall_s)
        else:
            output[OPTION] = (dict(self._cpu_s), dict(self._wall_s))

    def _charge(self, file: str) -> None:
        now_s = (self.used.seconds(), time.monotonic())
        self._cpu_s[file] += now_s[0] - self._before_s[0]
        self._wall_s[file] += now_s[1] - self._before_s[1]
        self._before_s = now_s


class CpuSum:
    """A plugin of pytest for the controller of workers."""

    def __init__(self, config: pytest.Config) -> None:
        """Wait for the workers' figures."""
        self._config = config
        self._cpu_s: Counter[str] = Counter()
        self._wall_s: Counter[str] = Counter()
        self._start_s = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker has measured. A worker that was killed leaves nothing."""
        cpu_s, wall_s = getattr(node, "workeroutput", {}).get(OPTION, ({}, {}))
        self._cpu_s.update(cpu_s)
        self._wall_s.update(wall_s)

    def pytest_sessionfinish(self) -> None:
        """Write the figures."""
        self._cpu_s[CONTROLLER] = sum(os.times()[:2])
        self._wall_s[CONTROLLER] = time.monotonic() - self._start_s
        write(self._config, self._cpu_s, self._wall_s)


def write(config: pytest.Config, cpu_s: Mapping[str, float], wall_s: Mapping[str, float]) -> None:
    """Write one line per file, the one with the most CPU seconds first, and the sums over all workers."""
    lines = [f"{'cpu s':>9} {'wall s':>9}  file"]
    for file in sorted(cpu_s, key=lambda name: -cpu_s[name]):
        lines.append(f"{cpu_s[file]:9.1f} {wall_s[file]:9.1f}  {file}")
    lines.append(f"{sum(cpu_s.values()):9.1f} {sum(wall_s.values()):9.1f}  in all")
    to = config.invocation_params.dir / config.getoption(OPTION)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text("\n".join(lines) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(OPTION, metavar="FILE", help="write the CPU seconds and wall seconds of each test file")


def pytest_configure(config: pytest.Config) -> None:
    """Measure if the option is given."""
    if config.getoption(OPTION) is None:
        return
    controls = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
    config.pluginmanager.register(CpuSum(config) if controls else CpuReport(config), "cpu-report")
