"""The processes of an application as their files report them: instances, standbys and running restores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.checks.liveness import Standstill
from tidemark.supervision.instance_files import InstanceFiles, read_json
from tidemark.supervision.liveness import Liveness, observe
from tidemark.supervision.outage_file import RecordedOutage, read_outage
from tidemark.supervision.run_file import LOST, RunView
from tidemark.supervision.state import InstanceState
from tidemark.supervision.stop_under_hold import known_instances

_ELSEWHERE_FRESH_S = 15.0
"""A standby on another machine is taken for running while its run file is younger than this; it is written every second."""


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
class InstanceView:
    """One instance. Times are epoch milliseconds. Figures are None until the instance has written them.

    `state` is a state of `InstanceState`, or `LOST`. `is_alive` is also true for an instance on another machine.
    """

    number: int
    state: str
    is_alive: bool
    host: str
    since_ms: int | None
    topology_version: str | None
    records_per_second: float | None
    last_commit_ms: int | None
    last_commit_s: float | None
    stream_time_ms: int | None
    partitions: tuple[str, ...]
    generation: int | None
    exit_code: int | None
    restore: RunningRestore | None
    outage: RecordedOutage | None
    standstill: Standstill | None

    @property
    def has_failed(self) -> bool:
        """Whether it ended, and not because it was stopped."""
        return not self.is_alive and (self.state == InstanceState.ERROR or self.exit_code not in (None, 0))

    @property
    def is_restoring(self) -> bool:
        """Whether it is restoring state now."""
        return self.is_alive and self.state == InstanceState.RESTORING


@dataclass(frozen=True)
class StandbyView:
    """One standby. `useless_because` is None if an instance could take its copies."""

    name: str
    state: str
    is_alive: bool
    tasks: int
    records_per_second: float | None
    useless_because: str | None


def read_instances(var_dir: Path, application_id: str) -> list[InstanceView]:
    """Return every instance that was ever launched on this machine, by number. Reads small files and the process table."""
    return [view for files in known_instances(var_dir, application_id) if (view := _instance(files)) is not None]


def _instance(files: InstanceFiles) -> InstanceView | None:
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
    number = files.key.instance
    return InstanceView(
        number=number,
        state=state,
        is_alive=is_alive,
        host=seen.host,
        since_ms=values.get("since_ms"),
        topology_version=values.get("topology_version"),
        records_per_second=values.get("records_per_second") if is_alive else None,
        last_commit_ms=values.get("last_commit_ms"),
        last_commit_s=values.get("last_commit_seconds"),
        stream_time_ms=values.get("stream_time_ms"),
        partitions=tuple(values.get("partitions") or ()) if is_alive else (),
        generation=values.get("generation"),
        exit_code=seen.exit_code,
        restore=_restore(number, values.get("restoring")) if is_alive else None,
        outage=read_outage(files.outage),
        standstill=Standstill.of(read_json(files.standstill)),
    )


def _restore(instance: int, body: Mapping[str, Any] | None) -> RunningRestore | None:
    if not body:
        return None
    start, at, end = (body.get(name) for name in ("start_offset", "next_offset", "end_offset"))
    done = None
    if start is not None and at is not None and end is not None:
        done = min(1.0, max(0.0, (at - start) / (end - start))) if end > start else 1.0
    return RunningRestore(
        instance,
        str(body["store"]),
        str(body["changelog"]),
        int(body["records"]),
        float(body["records_per_second"]),
        body.get("remaining_s"),
        done,
    )


def read_standbys(var_dir: Path, application_id: str, now_s: float | None = None) -> list[StandbyView]:
    """Return every standby that has a run file, by name. `now_s` is the time in epoch seconds, by default the current one."""
    now = time.time() if now_s is None else now_s
    found = []
    for path in sorted((var_dir / "standbys").glob(f"{application_id}-*.json")):
        run = RunView.read(path)
        if run is None or run.values.get("application_id") != application_id:
            continue
        is_fresh = now - run.written_at < _ELSEWHERE_FRESH_S
        is_alive = run.is_running() or (not run.has_ended() and is_fresh)
        found.append(
            StandbyView(
                name=str(run.values.get("instance", path.stem)),
                state=run.shown_state(is_alive=is_alive),
                is_alive=is_alive,
                tasks=len(run.values.get("partitions") or ()),
                records_per_second=run.values.get("records_per_second") if is_alive else None,
                useless_because=run.values.get("useless_because"),
            )
        )
    return found
