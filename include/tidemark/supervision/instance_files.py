"""The identity of an instance or a standby, of its launches, and the paths of its files.

An instance is called `<application_id>-<number>`, a standby `<application_id>-standby-<number>`. The name has no random part,
so every process can find it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemark.atomic_file import replace_file
from tidemark.processes import Identity, Place
from tidemark.stores.directory import STANDBY_PREFIX
from tidemark.supervision.outage_file import OUTAGE_SUFFIX
from tidemark.supervision.run_file import INSTANCES_FOLDER, STANDBYS_FOLDER


@dataclass(frozen=True)
class InstanceKey:
    """The identity of one instance of an application, or of one standby. Both are numbered from 0."""

    application_id: str
    instance: int
    is_standby: bool = False

    @property
    def kind(self) -> str:
        """The word for it in messages."""
        return "standby" if self.is_standby else "instance"

    def __str__(self) -> str:
        return f"{self.application_id}-{STANDBY_PREFIX if self.is_standby else ''}{self.instance}"


@dataclass(frozen=True)
class InstanceFiles:
    """The paths of all files of an instance or a standby under `var_dir`."""

    var_dir: Path
    key: InstanceKey

    @property
    def _folder(self) -> str:
        return STANDBYS_FOLDER if self.key.is_standby else INSTANCES_FOLDER

    def _beside(self, suffix: str) -> Path:
        return self.var_dir / self._folder / f"{self.key.application_id}-{self.key.instance}{suffix}"

    @property
    def run(self) -> Path:
        """The run file, written by the instance itself while it runs: process, state, batch, rate."""
        return self._beside(".json")

    @property
    def launch(self) -> Path:
        """The record of the last launch (`LaunchRecord`)."""
        return self._beside(".launch.json")

    @property
    def exit(self) -> Path:
        """The exit code of the last launch."""
        return self._beside(".exit")

    @property
    def watcher(self) -> Path:
        """The name of the trigger that watches the instance; only that trigger may stop it."""
        return self._beside(".watcher")

    @property
    def standstill(self) -> Path:
        """Since when the instance has made no progress (`standstill_file`); absent while it makes progress."""
        return self._beside(".standstill")

    @property
    def pause(self) -> Path:
        """The last launch before its DAG was paused; it says nothing of a later launch. Removed when the pause is over."""
        return self._beside(".pause")

    @property
    def outage(self) -> Path:
        """The record of an end for which unavailable brokers are the reason (`outage_file`). A launch removes it."""
        return self._beside(OUTAGE_SUFFIX)

    @property
    def lock(self) -> Path:
        """The lock that is held while a process looks for a live instance and launches one."""
        return self._beside(".launch.lock")

    @property
    def spark_properties(self) -> Path:
        """Spark settings that may contain secrets; only the owner can read the file."""
        return self._beside(".spark.conf")

    @property
    def log(self) -> Path:
        """The log: standard output and error of all launches, appended. `log_rotation` bounds it."""
        return self.var_dir / "log" / self._folder / f"{self.key}.log"

    def make_folders(self) -> None:
        """Create the folders that hold these files."""
        self.launch.parent.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)


def known_instances(var_dir: Path, application_id: str) -> list[InstanceFiles]:
    """Return every instance that ever ran or was launched on this machine, by number."""
    numbers = _known_numbers(var_dir / INSTANCES_FOLDER, application_id)
    return [InstanceFiles(var_dir, InstanceKey(application_id, number)) for number in numbers]


def known_standbys(var_dir: Path, application_id: str) -> list[InstanceFiles]:
    """Return every standby that ever ran or was launched on this machine, by number."""
    numbers = _known_numbers(var_dir / STANDBYS_FOLDER, application_id)
    return [InstanceFiles(var_dir, InstanceKey(application_id, number, is_standby=True)) for number in numbers]


def _known_numbers(folder: Path, application_id: str) -> list[int]:
    named = re.compile(rf"{re.escape(application_id)}-(\d+)(\.launch)?\.(json|lock)")
    try:
        # The page of streams does this for every application every few seconds, and paths are slow to make.
        with os.scandir(folder) as entries:
            names = [named.fullmatch(entry.name) for entry in entries if entry.name.startswith(application_id)]
    except FileNotFoundError:
        return []
    return sorted({int(name[1]) for name in names if name})


@dataclass(frozen=True)
class LaunchRecord:
    """One launch of an instance. `pid` is that of its supervisor, which leads a session of its own.

    `log_start_bytes` is where in the log it begins; if negative, counted back from the end of the log's earlier part.
    """

    launch_id: str
    pid: int
    started_after_boot_s: float
    pgid: int
    log: str
    log_start_bytes: int
    launched_at: float
    place: Place

    @property
    def process(self) -> Identity:
        """The supervisor's process."""
        return Identity(self.pid, self.started_after_boot_s, self.place.boot_id)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, for a file or for Airflow's task state."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> LaunchRecord | None:
        """Return the record in `value`, or None if it is not one (another version, an incomplete write)."""
        if not isinstance(value, Mapping):
            return None
        try:
            return cls(**{**value, "place": Place(**value["place"])})
        except (KeyError, TypeError):
            return None


def read_json(path: Path) -> object:
    """Read the JSON value in a file. Returns None if the file is missing or incomplete."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None


def write_json(path: Path, value: object) -> None:
    """Replace a file atomically: a reader sees the old value or the new one. Raises `OSError`."""
    replace_file(path, json.dumps(value, indent=1) + "\n", synced=False)
