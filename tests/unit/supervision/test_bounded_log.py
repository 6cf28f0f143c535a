"""The supervisor's part in bounding a log: it never waits for a copy, and what it records is where the launch begins."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from tidemark.processes import Place
from tidemark.supervision import bounded_log
from tidemark.supervision.bounded_log import BoundedLog
from tidemark.supervision.instance_files import LaunchRecord, read_json, write_json

MOST_BYTES = 10


@pytest.fixture
def launch(tmp_path: Path) -> LaunchRecord:
    return LaunchRecord("l1", 7, 1.0, 7, str(tmp_path / "app-0.log"), 3, 0.0, Place.here())


@pytest.fixture
def launch_file(tmp_path: Path) -> Path:
    return tmp_path / "app-0.launch.json"


def recorded_start(launch_file: Path) -> int | None:
    found = LaunchRecord.from_json(read_json(launch_file))
    return found.log_start_bytes if found else None


def test_should_record_where_the_launch_begins_as_soon_as_the_record_can_be_written(
    launch: LaunchRecord, launch_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = BoundedLog(launch_file, launch, MOST_BYTES)

    def refuses(_path: Path, _value: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(bounded_log, "write_json", refuses)
    Path(launch.log).write_bytes(b"x" * MOST_BYTES)
    log.bound()
    assert Path(launch.log).stat().st_size == 0
    assert recorded_start(launch_file) is None
    monkeypatch.setattr(bounded_log, "write_json", write_json)
    log.bound()
    assert recorded_start(launch_file) == 3 - MOST_BYTES


def test_should_not_hold_up_the_supervisor_and_make_one_copy_at_a_time(
    launch: LaunchRecord, launch_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_log, "_EVERY_S", 0.0)
    begun, may_end, cuts = threading.Event(), threading.Event(), []

    def copies(_log: Path, start_bytes: int, most_bytes: int) -> int:
        cuts.append(start_bytes)
        begun.set()
        assert may_end.wait(60)
        return start_bytes - most_bytes

    monkeypatch.setattr(bounded_log, "bound_log", copies)
    log = BoundedLog(launch_file, launch, MOST_BYTES)
    log.look()
    assert begun.wait(60)
    log.look()
    assert cuts == [3]
    may_end.set()
    log.finish()
    assert recorded_start(launch_file) == 3 - MOST_BYTES
    log.look()
    log.finish()
    assert cuts == [3, 3 - MOST_BYTES]


@pytest.mark.parametrize(("after_error_s", "copies"), [(60.0, 1), (0.0, 2)])
def test_should_copy_again_only_some_time_after_a_copy_that_failed(
    launch: LaunchRecord, launch_file: Path, monkeypatch: pytest.MonkeyPatch, after_error_s: float, copies: int
) -> None:
    monkeypatch.setattr(bounded_log, "_EVERY_S", 0.0)
    monkeypatch.setattr(bounded_log, "_AFTER_ERROR_S", after_error_s)
    begun = []

    def fails(_log: Path, start_bytes: int, _most_bytes: int) -> int:
        begun.append(start_bytes)
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(bounded_log, "bound_log", fails)
    log = BoundedLog(launch_file, launch, MOST_BYTES)
    for _ in range(2):
        log.look()
        log.finish()
    assert len(begun) == copies
