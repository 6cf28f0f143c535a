"""The operator: ends an application that refuses to start, runs the command that the refusal names, and launches it again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.truth.topics import beginnings, committed_offsets
from tests.system.chaos.supervised import Supervised
from tests.system.chaos.world import TOPOLOGY, World
from tests.system.crash.bench import ROOT

from tidemark.errors import ExitCode
from tidemark.processes import wait_until
from tidemark.stores.directory import STANDBY_PREFIX

_REFUSED_S = 240
_COMMAND_S = 240
_RUNNING_S = 240
_ENDED_S = 120


class Operator:
    """Takes what is said from the beginning of the block on; at its end the application is repaired, and runs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ends = {one.name: len(one.ends) for one in world.lasting}
        self._logs = {name: _size(one.log) for name, one in self._instances.items()}

    @property
    def _instances(self) -> dict[str, Supervised]:
        return {one.name: one for one in self._world.instances.values()}

    def __enter__(self) -> Self:
        self._world.wait_running(_RUNNING_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._repair()

    def _repair(self) -> None:
        words = self._await_refusal()
        self._world.end_all()
        if not wait_until(lambda: all(one.process is None for one in self._instances.values()), _ENDED_S):
            raise RuntimeError("an instance that was ended is still there")
        # These refusals are answered; any other is a fault of the application.
        for one in self._world.lasting:
            since = self._ends[one.name]
            one.ends[since:] = [code for code in one.ends[since:] if code != ExitCode.REFUSED]
        command = remedy(self._world, words)
        self._world.repairs[" ".join(command[:2])] += 1
        self._run(*command)
        self._world.resume(_RUNNING_S)

    def _await_refusal(self) -> str:
        """What the first instance says that refuses to start."""

        def refused() -> list[Supervised]:
            return [o for name, o in self._instances.items() if ExitCode.REFUSED in o.ends[self._ends[name] :]]

        if not wait_until(lambda: bool(refused()), _REFUSED_S, 0.2):
            raise RuntimeError(f"no instance has refused to start within {_REFUSED_S} s")
        one = refused()[0]
        with one.log.open(errors="replace") as log:
            log.seek(self._logs[one.name])
            return [line for line in log if line.startswith("tidemark: ")][-1]

    def _run(self, *command: str) -> None:
        """Run `tidemark` where the disks of all machines are at hand."""
        disks = self._world.folder / "operator"
        disks.mkdir()
        for holder in (self._world.folder / "disks").glob("*/*"):
            if holder.name.isdigit() or holder.name.startswith(STANDBY_PREFIX):
                (disks / holder.name).symlink_to(holder)
        done = subprocess.run(
            [sys.executable, "-m", "tidemark.cli.main", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, check=False,
            env={**self._world.environment("operator"), "TIDEMARK_STATE_DIR": str(disks), "COLUMNS": "2000"},
            timeout=_COMMAND_S,
        )  # fmt: skip
        with (self._world.folder / "operator.log").open("a") as log:
            log.write(f"$ tidemark {' '.join(command)}\n{done.stdout}\n-> {done.returncode}\n")
        shutil.rmtree(disks)
        if done.returncode:
            raise RuntimeError(f"tidemark {' '.join(command)} ended with {done.returncode}: {done.stdout[-1500:]}")


def remedy(world: World, words: str) -> tuple[str, ...]:
    """The command that a refusal names, as it is typed. Raises `RuntimeError` where it names none that keeps the state."""
    if "`tidemark repair run NAME`" in words:
        return "repair", "run", TOPOLOGY, "--yes"
    if "--state keep" not in words:
        raise RuntimeError(f"this refusal names no command that keeps the state: {words}")
    internal = set(world.plan.repartition_topics)
    places = [place for place in world.places if place[0] not in internal]
    committed = committed_offsets(world.bootstrap, world.application_id, places)
    first = beginnings(world.bootstrap, places)
    offsets = [f"--offset={topic}:{n}={max(committed[topic, n], first[topic, n])}" for topic, n in places]
    return "reset", "run", TOPOLOGY, "--to", "offsets", "--state", "keep", *offsets, "--yes"


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
