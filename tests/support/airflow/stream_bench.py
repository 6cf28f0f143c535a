"""A fake instance for tests: starts it, gives it orders and observes it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidemark.processes import wait_until
from tidemark.settings import Settings, project_root
from tidemark.supervision.instance_files import InstanceFiles, write_json
from tidemark.supervision.launch import Command
from tidemark.supervision.liveness import observe
from tidemark.temporary_folder import temporary_folders
from tidemark_airflow.command import instance_environment

FAKE = Path(__file__).with_name("fake_instance.py")


@dataclass(frozen=True)
class Bench:
    """One fake instance: how to start it, order it about and look at it."""

    settings: Settings
    files: InstanceFiles
    topology: str

    @property
    def command(self) -> Command:
        """Start the fake without spark-submit."""
        key = self.files.key
        argv = [sys.executable, str(FAKE), "--topology", self.topology, "--instance", str(key.instance)]
        argv += ["--standby"] if key.is_standby else []
        environment = instance_environment(self.settings, os.environ)
        temporary = temporary_folders(self.settings.state_dir, str(self.files.key))
        return Command(tuple(argv), environment, project_root(), str(FAKE), temporary)

    def order(self, **order: object) -> None:
        """Tell the fake what to do next."""
        path = self.settings.var_dir / "fake" / f"{self.files.key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, order)

    def starts(self) -> int:
        """How often an instance of any number was started."""
        path = self.settings.var_dir / "fake" / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def await_state(self, state: str, timeout_s: float = 60) -> None:
        """Wait until a living process says that it is in this state."""

        def reached() -> bool:
            run = observe(self.files).run
            return run is not None and run.state == state

        assert wait_until(reached, timeout_s), self.log()

    def await_end(self, timeout_s: float = 60) -> None:
        """Wait until nothing of the instance lives."""
        assert wait_until(lambda: not observe(self.files).liveness.is_alive_here, timeout_s), self.log()

    def driver(self) -> psutil.Process:
        """The instance's own process."""
        run = observe(self.files).run
        assert run is not None
        return psutil.Process(run.process.pid)

    def living(self) -> list[psutil.Process]:
        """Every living process that runs the fake."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = process.info["cmdline"] or []
            if str(FAKE) in line[1:3] and self.topology in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def log(self) -> str:
        """What the instance wrote."""
        return self.files.log.read_text() if self.files.log.exists() else ""
