"""Who an instance is, and where its files lie.

An instance is `<application_id>-<number>`: nothing random is in it, so whoever looks for it finds it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tidemark.files import replace_file
from tidemark.instance.outage_file import outage_path

# The kernel counts start times from boot in ticks; a clock adjustment moves what psutil makes of them a little.
_CREATE_TIME_TOLERANCE_S = 2.0


@dataclass(frozen=True)
class InstanceKey:
    """Deterministic identity of one instance of an application."""

    application_id: str
    instance: int

    def __str__(self) -> str:
        return f"{self.application_id}-{self.instance}"


@dataclass(frozen=True)
class InstanceFiles:
    """Every file that an instance has under `var_dir`."""

    var_dir: Path
    key: InstanceKey

    def _beside(self, suffix: str) -> Path:
        return self.var_dir / "instances" / f"{self.key}{suffix}"

    @property
    def run(self) -> Path:
        """Written by the instance itself while it runs: process, state, batch, rate."""
        return self._beside(".json")

    @property
    def launch(self) -> Path:
        """Who was launched last (`LaunchRecord`)."""
        return self._beside(".launch.json")

    @property
    def exit(self) -> Path:
        """How the last launch ended."""
        return self._beside(".exit")

    @property
    def watcher(self) -> Path:
        """Which trigger watches; only that one may stop the instance."""
        return self._beside(".watcher")

    @property
    def standstill(self) -> Path:
        """Since when it stands still (`tidemark.checks.standstill`); gone while it moves."""
        return self._beside(".standstill")

    @property
    def outage(self) -> Path:
        """Why it ended, where its brokers were away (`tidemark.instance.outage_file`); gone at the next launch."""
        return outage_path(self.var_dir, self.key.application_id, self.key.instance)

    @property
    def lock(self) -> Path:
        """Held while somebody looks for a live instance and launches one."""
        return self._beside(".launch.lock")

    @property
    def spark_properties(self) -> Path:
        """Spark settings that may hold secrets; readable by its owner only."""
        return self._beside(".spark.conf")

    @property
    def log(self) -> Path:
        """Standard output and error of all launches, appended."""
        return self.var_dir / "log" / "instances" / f"{self.key}.log"

    def make_folders(self) -> None:
        """Create the folders of these files."""
        self.launch.parent.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class Place:
    """Where a process id means something: one boot of one machine, one process namespace."""

    host: str
    boot_id: str
    pid_namespace: str

    @classmethod
    def here(cls) -> Place:
        """The place of this process; parts that the system does not tell are empty."""
        return cls(socket.gethostname(), _read("/proc/sys/kernel/random/boot_id"), _read_link("/proc/self/ns/pid"))

    def shares_processes_with(self, other: Place) -> bool:
        """Whether a process id seen there can be looked up here."""
        return (self.boot_id, self.pid_namespace) == (other.boot_id, other.pid_namespace)


@dataclass(frozen=True)
class ProcessId:
    """A process id that cannot be mistaken for a later process with the same number."""

    pid: int
    create_time: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Raises `psutil.NoSuchProcess` when there is none."""
        return cls(pid, psutil.Process(pid).create_time())

    def is_alive(self) -> bool:
        """Whether this very process runs; one that ended but was not reaped does not."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.create_time) < _CREATE_TIME_TOLERANCE_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True)
class LaunchRecord:
    """One launch of an instance; `pid` is its supervisor's, which leads a session of its own."""

    launch_id: str
    pid: int
    create_time: float
    pgid: int
    log: str
    log_start_bytes: int
    launched_at: float
    place: Place

    @property
    def process(self) -> ProcessId:
        """The supervisor."""
        return ProcessId(self.pid, self.create_time)

    def as_json(self) -> dict[str, Any]:
        """Plain values, for a file or Airflow's task state."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> LaunchRecord | None:
        """The record in `value`, or None when it is not one (another version, a torn write)."""
        if not isinstance(value, Mapping):
            return None
        try:
            return cls(**{**value, "place": Place(**value["place"])})
        except (KeyError, TypeError):
            return None


@dataclass(frozen=True)
class RunView:
    """What a running instance says about itself."""

    process: ProcessId
    state: str
    written_at: float
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> RunView | None:
        """The run file, or None when it is missing or not readable as one."""
        values = read_json(path)
        if not isinstance(values, Mapping):
            return None
        try:
            process = ProcessId(int(values["pid"]), float(values["start_time"]))
            return cls(process, str(values["state"]), path.stat().st_mtime, values)
        except (KeyError, TypeError, ValueError, FileNotFoundError):
            return None


def read_json(path: Path) -> object:
    """The value in a file, or None when it is missing or torn."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None


def write_json(path: Path, value: object) -> None:
    """Replace a file in one step: a reader sees the old value or the new one. Raises `OSError`."""
    replace_file(path, json.dumps(value, indent=1) + "\n", synced=False)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _read_link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
