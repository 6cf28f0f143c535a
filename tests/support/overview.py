"""Applications as the Streams page shows them, and the files and rows they are read from."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tidemark.commit.record import CommitKind, CommitRecord, commit_record
from tidemark.names import TaskId
from tidemark.overview.application import Application, ProcessFiles
from tidemark.overview.commit_window import CommitFigures, CommitWindow
from tidemark.overview.history import CheckView, History
from tidemark.overview.live import LiveView
from tidemark.overview.sampler import Overview
from tidemark.processes import Identity, Place
from tidemark.stream_times import StreamTimes
from tidemark.supervision.local_instances import LocalInstance
from tidemark.supervision.run_file import INSTANCES_FOLDER, run_file_path, standby_file_path
from tidemark.topology_loader import load
from tidemark.verdict import Finding, Verdict

NOW = 1_700_000_000_000
PLAN = load("clicks").plan()
APP = PLAN.application_id
TASK = TaskId(0, 0)


def instance(**given: Any) -> LocalInstance:
    """An instance that runs well, except for what is given."""
    well: dict[str, Any] = {
        "application": APP, "instance": 0, "state": "RUNNING", "is_alive": True, "host": "here", "since_ms": NOW - 60_000,
        "topology_version": "1", "records_per_second": 1234.0, "last_commit_ms": NOW - 1000, "last_commit_s": 0.25,
        "stream_time_ms": NOW - 1400,
        "partitions": ("clicks[0]", "clicks[1]"), "generation": 3, "exit_code": None, "restore": None, "outage": None,
        "standstill": None,
    }  # fmt: skip
    return LocalInstance(**(well | given))


def application(*instances: LocalInstance, **given: Any) -> Application:
    """An application whose DAG is on, and of which nothing else is known except for what is given."""
    files = given.pop("files", None) or ProcessFiles(instances=instances)
    return Application(
        **({"topology": "clicks", "plan": PLAN, "now_ms": NOW, "is_wanted": True, "files": files} | given)
    )


def live(lag: int = 0, committed_ms: int = NOW - 1000, **given: Any) -> LiveView:
    """Live figures with a lag on the first source, and a last commit."""
    window = CommitWindow()
    window.add(record(committed_ms, **given))
    return LiveView(PLAN, window.figures(NOW), {"clicks": lag})


def figures(**given: Any) -> CommitFigures:
    """The figures of one commit at `NOW`."""
    window = CommitWindow()
    window.add(record(NOW, **given))
    return window.figures(NOW)


def record(
    at_ms: int,
    *,
    task: TaskId = TASK,
    batch: int = 1,
    read: tuple[int, int] = (0, 100),
    late: int = 0,
    bad: int = 0,
    written: int = 0,
    kind: CommitKind = CommitKind.BATCH,
) -> CommitRecord:
    """A commit of `clicks` at `at_ms`."""
    return commit_record(
        kind, APP, "1", task, batch, at_ms, spans={"clicks": read}, stream_times=StreamTimes({}, 0), changelogs={},
        ends_before={}, late_rows=late, bad_rows=bad, sinks={"page-clicks": written},
    )  # fmt: skip


def checked(check: str, *verdicts: Verdict, message: str = "the disk is full") -> History:
    """A history with one check."""
    found = tuple(Finding(f"store-{number}", verdict, message) for number, verdict in enumerate(verdicts))
    return History(checks=(CheckView(check, NOW - 5000, found),))


def overview(*applications: Application, **given: Any) -> Overview:
    """What the sampler returns for these applications."""
    known: dict[str, Any] = {"live_fault": None, "history_fault": None, "live_is_known": True}
    return Overview(NOW, applications, **({"unloadable": {}, "copies": {}} | known | given))


def write_run_file(var_dir: Path, app: str, number: int = 0, **given: Any) -> None:
    """Write the run file of an instance; by default it is this very process."""
    own = Identity.own()
    body = {"application_id": app, "instance": number, **asdict(own), "state": "RUNNING"}
    _write(run_file_path(var_dir, app, number), body | given)


def write_standby_file(var_dir: Path, app: str, number: int = 0, **given: Any) -> None:
    """Write the run file of a standby; by default it is this very process."""
    own = Identity.own()
    name = f"standby-{number}"
    body = {"application_id": app, "instance": name, **asdict(own), "state": "RUNNING"}
    _write(standby_file_path(var_dir, app, number), body | given)


def write_launch(
    var_dir: Path,
    app: str,
    number: int,
    place: Place,
    process: Identity,
    folder: str = INSTANCES_FOLDER,
    age_s: float = 0.0,
) -> None:
    """Write the record of a launch of an instance, or of a standby in `folder`, whose supervisor is this process there."""
    body = {
        "launch_id": "l1", "pid": process.pid, "started_after_boot_s": process.started_after_boot_s, "pgid": 1, "log": "",
        "log_start_bytes": 0, "launched_at": time.time() - age_s, "place": place.__dict__,
    }  # fmt: skip
    _write(var_dir / folder / f"{app}-{number}.launch.json", body)


def _write(path: Path, body: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body))
