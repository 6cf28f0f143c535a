"""One application over several draws: its instances, the commands that a user runs, and their output."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from tests.support.truth.topics import committed_offsets, end_offsets
from tests.system.crash import disk
from tests.system.crash.bench import ROOT, Bench
from tests.system.restores.faults import Topics
from tests.system.restores.settled import Group

from tidemark.errors import ExitCode
from tidemark.names import group_instance_id
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.run_file import read_run_file, run_file_path, standby_file_path

_RELAUNCHES = 3
_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Said:
    """How a command or an instance ended, and its words."""

    what: str
    code: int
    text: str

    @property
    def is_refusal(self) -> bool:
        return self.code == ExitCode.REFUSED

    def __str__(self) -> str:
        return f"{self.what} ended with {self.code}: {self.text[-1500:]}"


@dataclass
class Scene:
    """`running` instances by number; they run on from draw to draw."""

    bench: Bench
    settings: Settings
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    is_spent: bool = False
    """Nothing more can be drawn of this application: it is not as the recomputation has it."""

    @property
    def topics(self) -> Topics:
        return Topics(self.bench, self.settings)

    @property
    def state(self) -> Path:
        return self.bench.state_dir()

    def holder(self, instance: int | str) -> Path:
        """The folder of the application's tasks of an instance."""
        return self.state / str(instance) / self.bench.application_id

    def tidemark(self, *arguments: str, timeout_s: float = 400.0) -> Said:
        """What a person types. `NAME` in it stands for the topology."""
        typed = [self.bench.topology if argument == "NAME" else argument for argument in arguments]
        done = subprocess.run(
            [sys.executable, "-m", "tidemark.cli.main", *typed],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**self.bench.environment(), "COLUMNS": "2000"}, cwd=ROOT, timeout=timeout_s, check=False,
        )  # fmt: skip
        said = Said(f"tidemark {' '.join(arguments)}", done.returncode, done.stdout)
        with (self.bench.folder / "commands.log").open("a") as file:
            file.write(f"$ {said.what}\n{done.stdout}\n-> {done.returncode}\n")
        return said

    def launch(self, instances: int) -> None:
        """Those of the first numbers that do not run."""
        for number in range(instances):
            if number not in self.running:
                self.running[number] = self.bench.launch(number, log=self._log(number).name)

    def start(self, instances: int) -> Said | None:
        """Launch, and wait until all have worked everything off; what the first one said that ended instead.

        One that asks to be launched again is, as its supervisor does.
        """
        for _ in range(_RELAUNCHES):
            ended = self._started(instances)
            if ended is None or ended.code != ExitCode.RETRY:
                break
        if ended is not None:
            self.kill_all()
        return ended

    def _started(self, instances: int) -> Said | None:
        begins = {number: self._length(number) for number in range(instances) if number not in self.running}
        self.launch(instances)
        places = self.bench.source_places

        def is_level() -> bool:
            if any(process.poll() is not None for process in self.running.values()):
                return True
            if not all(self._says(number).get("state") == "RUNNING" for number in self.running):
                return False
            if not self._is_settled():
                return False
            found = committed_offsets(self.bench.bootstrap, self.bench.application_id, places)
            return found == end_offsets(self.bench.bootstrap, places, "read_uncommitted")

        if not wait_until(is_level, _TIMEOUT_S, every_s=0.2):
            raise RuntimeError(f"not everything is committed after {_TIMEOUT_S:.0f} s")
        for number, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[number]
                code = self.bench.wait_ended(process)
                with self._log(number).open(errors="replace") as file:
                    file.seek(begins.get(number, 0))
                    summary = [line for line in file if line.startswith(("tidemark:", "Traceback"))]
                return Said(f"instance {number}", code, "".join(summary))
        return None

    def _is_settled(self) -> bool:
        group = self.bench.application_id
        held = {
            group_instance_id(group, number): frozenset(self._says(number).get("partitions", []))
            for number in self.running
        }
        return Group.asked(self.bench.admin, self.settings, group).is_settled(held, self.bench.tasks)

    def _says(self, number: int) -> dict[str, Any]:
        said = read_run_file(run_file_path(self.bench.var_dir, self.bench.application_id, number)) or {}
        return said if said.get("pid") == self.running[number].pid else {}

    def _log(self, number: int) -> Path:
        return self.bench.folder / f"instance-{number}.log"

    def _length(self, number: int) -> int:
        return self._log(number).stat().st_size if self._log(number).exists() else 0

    def wait_any_ended(self, timeout_s: float = 300.0) -> bool:
        """Until one of the instances is gone."""
        return wait_until(lambda: any(p.poll() is not None for p in self.running.values()), timeout_s)

    def stop_all(self) -> None:
        """As an operator does."""
        for process in self.running.values():
            process.terminate()
        self._forget()

    def kill_all(self) -> None:
        """SIGKILL, now."""
        for process in self.running.values():
            process.kill()
        self._forget()

    def _forget(self) -> None:
        for process in self.running.values():
            self.bench.wait_ended(process)
        self.running.clear()
        self.bench.arm_file.unlink(missing_ok=True)

    def lose_disk(self) -> None:
        """All folders of instances on this machine."""
        for folder in self.state.glob("[0-9]*"):
            shutil.rmtree(folder)

    @contextmanager
    def standby(self, is_wanted: bool) -> Iterator[None]:
        """A standby that has followed, for as long as the block runs."""
        if not is_wanted:
            yield
            return
        with (self.bench.folder / "standby.log").open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidemark.cli.main", "standby", "run", self.bench.topology],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self.bench.environment(), cwd=ROOT,
            )  # fmt: skip

        def follows() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the standby ended with {process.returncode}")
            said = read_run_file(standby_file_path(self.bench.var_dir, self.bench.application_id, 0)) or {}
            return said.get("pid") == process.pid and said.get("state") == "RUNNING"

        try:
            if not wait_until(follows, _TIMEOUT_S):
                raise RuntimeError(f"the standby is not level after {_TIMEOUT_S:.0f} s")
            yield
        finally:
            process.terminate()
            process.wait(120)
            shutil.rmtree(self.state / "standby-0", ignore_errors=True)

    def sources_of_plan(self) -> set[str]:
        """The sources of state in the start plans that the running instances logged last, as the enum names them."""
        found: set[str] = set()
        for number in self.running:
            plans = [
                line for line in self._log(number).read_text(errors="replace").splitlines() if "start plan:" in line
            ]
            found |= {name for line in plans[-self.bench.tasks :] for name in re.findall(r"SourceOfState\.(\w+)", line)}
        return found

    def close(self) -> None:
        """End all, and remove the topics, the group and the folders: the next application begins with none of them."""
        self.bench.end_all()
        self.running.clear()
        self.topics.delete(self.topics.names())
        self.delete_group()
        shutil.rmtree(self.bench.folder / "var", ignore_errors=True)

    def delete_group(self) -> None:
        """Once its dead members' session has ended."""

        def is_deleted() -> bool:
            try:
                self.bench.admin.delete_consumer_groups([self.bench.application_id])[self.bench.application_id].result(
                    15
                )
            except KafkaException as error:
                return error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND
            return True

        if not wait_until(is_deleted, 120, 0.5):
            raise RuntimeError(f"group {self.bench.application_id} cannot be deleted")

    def full_disk_at(self, point: str) -> None:
        """From the moment that the next process passes `point` there is no room for state."""
        self.bench.arm(point, full=self.state)

    def free_disk(self) -> None:
        """There is room again."""
        self.bench.arm_file.unlink(missing_ok=True)
        if self.state.is_mount():
            disk.free(self.state)


def killed(said: Said) -> bool:
    """Whether a command died of SIGKILL."""
    return said.code == -signal.SIGKILL
