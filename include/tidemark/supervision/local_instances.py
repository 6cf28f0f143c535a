"""The one reader of what instances and standbys report: their run files, their launches, and whether they are alive."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tidemark.processes import Identity, Place
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey, known_instances, read_json
from tidemark.supervision.liveness import Liveness, observe
from tidemark.supervision.outage_file import RecordedOutage, read_outage
from tidemark.supervision.run_file import LOST, RunView
from tidemark.supervision.standstill_file import Standstill
from tidemark.supervision.state import InstanceState

_ELSEWHERE_FRESH_S = 15.0
"""A standby on another machine is taken for running while its run file is younger than this; it is written every second."""
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
    `useless_because` are a standby's: which changelogs it follows, and whether an instance could use its copies.
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

    @property
    def name(self) -> str:
        """The name of its files: application and number."""
        return f"{self.application}-{self.instance}"

    @property
    def has_failed(self) -> bool:
        """Whether it ended, and not because it was stopped."""
        return not self.is_alive and (self.state == InstanceState.ERROR or self.exit_code not in (None, 0))

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
    """Return every standby that has a run file, by name. `now_s` is the time in epoch seconds."""
    paths = sorted((var_dir / "standbys").glob(f"{application_id}-*.json"))
    found = (_whole(partial(_standby, path, application_id, now_s)) for path in paths)
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


def _instance(files: InstanceFiles) -> LocalInstance | None:
    seen = observe(files)
    run = RunView.read(files.run)
    if run is None and seen.launch is None:
        return None
    has_process = seen.liveness is not Liveness.GONE
    if has_process and seen.liveness is not Liveness.ELSEWHERE and seen.run is None:
        # It has not written its own run file yet, so the one that is there is that of the launch before.
        run = None
    is_alive = has_process and (run is None or not run.has_ended())
    launching = str(InstanceState.CREATED) if is_alive else LOST
    state = launching if run is None else run.shown_state(is_alive=is_alive)
    values: Mapping[str, Any] = run.values if run is not None else {}
    return LocalInstance(
        application=files.key.application_id,
        instance=files.key.instance,
        state=state,
        is_alive=is_alive,
        host=seen.host,
        process=None if run is None else run.process,
        last_commit_s=values.get("last_commit_seconds"),
        stream_time_ms=values.get("stream_time_ms"),
        exit_code=seen.exit_code,
        restore=_restore(files.key, values.get("restoring")) if is_alive else None,
        outage=read_outage(files.outage),
        standstill=Standstill.of(read_json(files.standstill)),
        **_figures(values, is_alive=is_alive),
    )


def _standby(path: Path, application_id: str, now_s: float) -> LocalInstance | None:
    run = RunView.read(path)
    if run is None or run.values["application_id"] != application_id:
        return None
    is_fresh = now_s - run.written_at < _ELSEWHERE_FRESH_S
    is_alive = run.is_running() or (not run.has_ended() and is_fresh)
    return LocalInstance(
        application=application_id,
        instance=str(run.values["instance"]),
        state=run.shown_state(is_alive=is_alive),
        is_alive=is_alive,
        host=Place.here().host,
        process=run.process,
        changelog_generation=run.values.get("changelog_generation"),
        useful=run.values.get("useful") if is_alive else None,
        useless_because=run.values.get("useless_because"),
        **_figures(run.values, is_alive=is_alive),
    )


def _figures(values: Mapping[str, Any], *, is_alive: bool) -> dict[str, Any]:
    """Return what instances and standbys write alike."""
    partitions = values.get("partitions") if is_alive else None
    return {
        **{name: values.get(name) for name in _COMMON},
        "records_per_second": values.get("records_per_second") if is_alive else None,
        "partitions": None if partitions is None else tuple(partitions),
    }


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
