"""The instances and standbys that have a run file on this machine, with what they say about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.processes import Identity
from tidemark.supervision.run_file import RunView


@dataclass(frozen=True)
class LocalInstance:
    """One instance or standby. `instance` is a number, or `standby-` and a number.

    `generation` is that of the group. `changelog_generation`, `useful` and `useless_because` are a standby's: which
    changelogs it follows, and whether an instance could use its copies, None if it does not run.
    """

    application: str
    instance: int | str
    pid: int
    alive: bool
    state: str
    batch: int | None
    seconds_since_commit: float | None
    records_per_second: float | None
    partitions: tuple[str, ...] | None
    generation: int | None
    changelog_generation: int | None
    useful: bool | None
    useless_because: str | None

    @property
    def name(self) -> str:
        """The name of the instance's files: application and number."""
        return f"{self.application}-{self.instance}"


@dataclass(frozen=True)
class RunningInstance:
    """An instance, its process, and all that its run file says."""

    facts: LocalInstance
    process: Identity
    values: Mapping[str, Any]


def run_files(var_dir: Path) -> list[Path]:
    """Return the run files of stream instances and of their standbys."""
    return [file for kind in ("instances", "standbys") for file in sorted((var_dir / kind).glob("*.json"))]


def local_instances(var_dir: Path, now_s: float) -> list[RunningInstance]:
    """Return every instance with a run file; `now_s` is in epoch seconds. Never raises."""
    found = (_read(file, now_s) for file in run_files(var_dir))
    return [instance for instance in found if instance is not None]


def _read(file: Path, now_s: float) -> RunningInstance | None:
    """Read one run file. Returns None if it was just removed, or is of another version: then it says nothing."""
    try:
        run = RunView.read(file)
        if run is None:
            return None
        said, alive = run.values, run.process.is_alive()
        commit_ms, partitions = said.get("last_commit_ms"), said.get("partitions")
        facts = LocalInstance(
            application=said["application_id"],
            instance=said["instance"],
            pid=said["pid"],
            alive=alive,
            state=run.shown_state(is_alive=alive),
            batch=said.get("batch"),
            seconds_since_commit=round(now_s - commit_ms / 1000, 1) if commit_ms else None,
            records_per_second=said.get("records_per_second"),
            partitions=None if partitions is None else tuple(partitions),
            generation=said.get("generation"),
            changelog_generation=said.get("changelog_generation"),
            useful=said.get("useful") if alive else None,
            useless_because=said.get("useless_because"),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return RunningInstance(facts, run.process, said)
