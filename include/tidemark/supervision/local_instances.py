"""The one reader of what instances and standbys report: their run files, their launches, and whether they are alive."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tidemark.processes import Identity
from tidemark.stores.directory import STANDBY_PREFIX
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey, known_instances, known_standbys, read_json
from tidemark.supervision.liveness import RUN_FILE_FRESH_S, Liveness, Observation, observe
from tidemark.supervision.outage_file import RecordedOutage, read_outage
from tidemark.supervision.restart_policy import FINAL_CODES
from tidemark.supervision.run_file import LOST, RunView
from tidemark.supervision.standstill_file import Standstill
from tidemark.supervision.state import InstanceState
from tidemark.supervision.stop import was_stopped_by_pause
from tidemark.supervision.watch_claim import is_watched
from tidemark.topology.durations import about_ms

_ELSEWHERE_FRESH_S = 15.0
"""A standby without a launch may run on another machine. It is alive while its run file, written every second, is younger."""
_NAMED = re.compile(r"(?P<application>.+)-\d+(\.launch)?\.json")


@dataclass(frozen=True)
class RunningRestore:
    """A store that an instance is restoring. `done` is the part of the changelog that was read, 0 to 1."""

    instance: int
    store: str
    changelog: str
    records: int
    records_per_second: float
    remaining_s: float | None
    done: float | None


@dataclass(frozen=True)
class LocalInstance:
    """One instance or standby. `instance` is a number, or `standby-` and a number.

    Times are epoch milliseconds. Figures are None until the process has written them, and rates and partitions also when
    it has ended. `state` is a state of `InstanceState`, or `LOST`. `is_alive` is also true on another machine, which
    `host` names. `process` wrote the run file; it is None before that. `changelog_generation`, `useful` and
    `useless_because` are a standby's: which changelogs it follows, and whether an instance could use its copies. So are
    `same_rack_tasks`, the tasks whose instance is in its rack, if `standby_queue` asks for another one. `ended_ms` is the last
    sign of life of a process that has ended: when it wrote its run file, or its supervisor the exit code.
    `was_stopped_by_pause`: its last launch ran when it was asked to stop because its DAG is paused. `is_watched`: a trigger of
    Airflow watches it, so it is launched again when it ends; None if it has ended, or if Airflow did not launch it.
    """

    application: str
    instance: int | str
    state: str
    is_alive: bool
    host: str
    process: Identity | None = None
    topology: str | None = None
    topology_version: str | None = None
    since_ms: int | None = None
    batch: int | None = None
    records_per_second: float | None = None
    last_commit_ms: int | None = None
    last_commit_s: float | None = None
    stream_time_ms: int | None = None
    partitions: tuple[str, ...] | None = None
    generation: int | None = None
    query_url: str | None = None
    exit_code: int | None = None
    restore: RunningRestore | None = None
    outage: RecordedOutage | None = None
    standstill: Standstill | None = None
    changelog_generation: int | None = None
    useful: bool | None = None
    useless_because: str | None = None
    same_rack_tasks: tuple[str, ...] = ()
    ended_ms: int | None = None
    was_stopped_by_pause: bool = False
    is_watched: bool | None = None

    @property
    def name(self) -> str:
        """The name of its files: application and number."""
        return f"{self.application}-{self.instance}"

    @property
    def has_failed(self) -> bool:
        """Whether it ended by a fault of its own: not because it was stopped, and not because its brokers were away.

        One that was paused has not failed either if it was killed, because its last batch took longer than its grace time.
        """
        if self.is_alive or self.was_stopped_by_pause or self.outage is not None:
            return False
        return self.state == InstanceState.ERROR or self.exit_code not in (None, 0)

    @property
    def has_given_up(self) -> bool:
        """Whether it ended in such a way that it is not launched again before a person removes the cause."""
        return not self.is_alive and self.exit_code in FINAL_CODES

    @property
    def is_restoring(self) -> bool:
        """Whether it is restoring state now."""
        return self.is_alive and self.state == InstanceState.RESTORING

    def seconds_since_commit(self, now_s: float) -> float | None:
        """Return the age of its last commit; None if it has not committed."""
        return None if self.last_commit_ms is None else round(now_s - self.last_commit_ms / 1000, 1)


def local_instances(var_dir: Path, now_s: float) -> list[LocalInstance]:
    """Return the instances, then the standbys, of all applications; `now_s` is in epoch seconds. Never raises."""
    return [
        *(one for app in _applications(var_dir / "instances") for one in read_instances(var_dir, app)),
        *(one for app in _applications(var_dir / "standbys") for one in read_standbys(var_dir, app, now_s)),
    ]


def read_instances(var_dir: Path, application_id: str) -> list[LocalInstance]:
    """Return every instance that was ever launched on this machine, by number.

    Reads small files and the process table. An instance whose run file is damaged or of another version is left out.
    """
    found = (_whole(partial(_instance, files)) for files in known_instances(var_dir, application_id))
    return [instance for instance in found if instance is not None]


def read_standbys(var_dir: Path, application_id: str, now_s: float) -> list[LocalInstance]:
    """Return every standby that ran or was launched, by number. `now_s` is the time in epoch seconds."""
    found = (_whole(partial(_standby, files, now_s)) for files in known_standbys(var_dir, application_id))
    return [standby for standby in found if standby is not None]


def _applications(folder: Path) -> list[str]:
    named = (_NAMED.fullmatch(path.name) for path in folder.glob("*.json"))
    return sorted({name["application"] for name in named if name})


def _whole(read: Callable[[], LocalInstance | None]) -> LocalInstance | None:
    """Return what is read; None if it was just removed, or is of another version: then it says nothing."""
    try:
        return read()
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class _Observed:
    """An instance or a standby that ran or was launched. `run` is its own run file, not one of an earlier launch."""

    seen: Observation
    run: RunView | None
    is_alive: bool

    @property
    def state(self) -> str:
        """The state to show."""
        if self.run is None:
            return str(InstanceState.CREATED) if self.is_alive else LOST
        return self.run.shown_state(is_alive=self.is_alive)

    @property
    def values(self) -> Mapping[str, Any]:
        """The fields of its run file."""
        return {} if self.run is None else self.run.values


def _observed(files: InstanceFiles) -> _Observed | None:
    seen = observe(files)
    run = RunView.read(files.run)
    if run is None and seen.launch is None:
        return None
    has_process = seen.liveness is not Liveness.GONE
    if has_process and seen.liveness is not Liveness.ELSEWHERE and seen.run is None:
        # It has not written its own run file yet, so the one that is there is that of the launch before.
        run = None
    return _Observed(seen, run, has_process and (run is None or not run.has_ended()))


def _instance(files: InstanceFiles) -> LocalInstance | None:
    found = _observed(files)
    if found is None:
        return None
    return LocalInstance(
        instance=files.key.instance,
        last_commit_s=found.values.get("last_commit_seconds"),
        stream_time_ms=found.values.get("stream_time_ms"),
        restore=_restore(files.key, found.values.get("restoring")) if found.is_alive else None,
        standstill=Standstill.of(read_json(files.standstill)),
        **_common(files, found),
    )


def _standby(files: InstanceFiles, now_s: float) -> LocalInstance | None:
    found = _observed(files)
    if found is None:
        return None
    if found.seen.launch is None and found.run is not None and not found.run.has_ended():
        # Only a launch records its machine. One that a person started on another one is known by its file alone.
        found = replace(found, is_alive=found.is_alive or now_s - found.run.written_at < _ELSEWHERE_FRESH_S)
    useful, useless_because = found.values.get("useful"), found.values.get("useless_because")
    silent_s = 0.0 if found.run is None else now_s - found.run.written_at
    if found.is_alive and silent_s >= RUN_FILE_FRESH_S:
        useful, useless_because = False, f"it has reported nothing for {about_ms(round(silent_s * 1000))}"
    return LocalInstance(
        instance=f"{STANDBY_PREFIX}{files.key.instance}",
        changelog_generation=found.values.get("changelog_generation"),
        useful=useful if found.is_alive else None,
        useless_because=useless_because,
        same_rack_tasks=tuple(found.values.get("same_rack_tasks", ())) if found.is_alive else (),
        **_common(files, found),
    )


def _common(files: InstanceFiles, found: _Observed) -> dict[str, Any]:
    """Return what is known of instances and standbys alike."""
    partitions = found.values.get("partitions") if found.is_alive else None
    return {
        **{name: found.values.get(name) for name in _COMMON},
        "application": files.key.application_id,
        "state": found.state,
        "is_alive": found.is_alive,
        "host": found.seen.host,
        "process": None if found.run is None else found.run.process,
        "exit_code": found.seen.exit_code,
        "ended_ms": None if found.is_alive else _written_ms(files.run, files.exit),
        "outage": read_outage(files.outage),
        "was_stopped_by_pause": was_stopped_by_pause(files, found.seen.launch_id),
        "is_watched": is_watched(files) if found.is_alive and found.seen.launch is not None else None,
        "records_per_second": found.values.get("records_per_second") if found.is_alive else None,
        "partitions": None if partitions is None else tuple(partitions),
    }


def _written_ms(*paths: Path) -> int | None:
    """Return when the newest of these files was written; None if there is none of them."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            found.append(path.stat().st_mtime_ns // 1_000_000)
    return max(found, default=None)


_COMMON = ("topology", "topology_version", "since_ms", "batch", "last_commit_ms", "generation", "query_url")


def _restore(key: InstanceKey, body: object) -> RunningRestore | None:
    if not isinstance(body, Mapping) or not body:
        return None
    start, at, end = (body.get(name) for name in ("start_offset", "next_offset", "end_offset"))
    done = None
    if start is not None and at is not None and end is not None:
        done = min(1.0, max(0.0, (at - start) / (end - start))) if end > start else 1.0
    return RunningRestore(
        key.instance,
        str(body["store"]),
        str(body["changelog"]),
        int(body["records"]),
        float(body["records_per_second"]),
        body.get("remaining_s"),
        done,
    )
