"""Damaged savepoints: each fault is reported in one line, and no damaged store is opened."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from tests.support.logged import logged_by
from tests.support.savepoints import APP, TASKS, put, save

from tidemark.errors import CopyUnusable, StoreFailed
from tidemark.savepoints.copies import SavepointCopies
from tidemark.savepoints.repository import SavepointRepository
from tidemark.savepoints.verification import verify
from tidemark.supervision.savepoint_ids import new_savepoint_id

TASK = TASKS[0]
NOW_MS = 1_800_000_000_000


@pytest.fixture
def saved(local, stores, tmp_path):
    """The id of a whole savepoint in `local`."""
    chosen = new_savepoint_id(NOW_MS)
    save(local, stores, tmp_path / "links", chosen)
    return chosen


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip_a_byte, "its sha256 differs"),
        (truncate, r"it has \d+ bytes instead of \d+"),
        (grow, r"it has \d+ bytes instead of \d+"),
        (Path.unlink, "it is missing"),
    ],
)
def test_should_refuse_a_damaged_file_and_name_it(local, saved, tmp_path, damage, said):
    tables = [file for file in local.task(saved, "0_0").files if file.name.endswith(".sst")]
    table = max(tables, key=lambda file: file.size_bytes)
    damage(tmp_path / "savepoints" / APP / "files" / table.sha256)
    copies = SavepointCopies(local)
    (copy,) = copies.find([TASK])[TASK]["counts"]
    with pytest.raises(CopyUnusable, match=rf"{saved}/0_0\.json: {table.name} of store counts: {said}") as refused:
        copies.fetch(copy, TASK, "counts", tmp_path / "fetched")
    assert "\n" not in str(refused.value)
    (fault,) = verify(local, saved).faults
    assert fault.startswith(f"{table.name} of store counts of task 0_0: ")
    (other,) = copies.find([TASKS[1]])[TASKS[1]]["counts"]
    copies.fetch(other, TASKS[1], "counts", tmp_path / "other")


def unreadable(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def of_another_version(path: Path) -> None:
    _change(path, version=99)


def of_another_application(path: Path) -> None:
    _change(path, application_id="somebody-elses")


def of_another_savepoint(path: Path) -> None:
    _change(path, savepoint_id="20200101T000000-abcdef")


def no_object(path: Path) -> None:
    path.write_text("[1]")


def _change(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


MANIFESTS = [
    (Path.unlink, "it is missing"),
    (unreadable, "it cannot be read"),
    (of_another_version, "another version"),
    (of_another_application, "it belongs to application somebody-elses"),
    (of_another_savepoint, "it belongs to savepoint 20200101T000000-abcdef"),
    (no_object, "it cannot be read"),
]


@pytest.mark.parametrize("name", ["manifest.json", "0_0.json"])
@pytest.mark.parametrize(("damage", "said"), MANIFESTS)
def test_should_skip_a_savepoint_with_a_bad_manifest_and_use_the_previous_one(
    local, saved, stores, tmp_path, caplog, damage, said, name
):
    newer = new_savepoint_id(NOW_MS + 60_000)
    put(stores[TASK], 9, {1: 1})
    save(local, stores, tmp_path / "links", newer)
    damage(tmp_path / "savepoints" / APP / "savepoints" / newer / name)
    with caplog.at_level(logging.WARNING):
        (found,) = SavepointCopies(local).find([TASK])[TASK]["counts"]
    assert saved in found.location
    (line,) = [record.getMessage() for record in logged_by(caplog, "tidemark.savepoints")]
    assert newer in line
    assert said in line


def test_should_refuse_a_manifest_that_is_damaged_between_finding_and_fetching(local, saved, tmp_path):
    copies = SavepointCopies(local)
    (copy,) = copies.find([TASK])[TASK]["counts"]
    unreadable(tmp_path / "savepoints" / APP / "savepoints" / saved / "0_0.json")
    with pytest.raises(CopyUnusable, match=r"0_0\.json: it cannot be read"):
        copies.fetch(copy, TASK, "counts", tmp_path / "fetched")


def test_should_refuse_the_manifest_of_another_task(local, saved, tmp_path):
    folder = tmp_path / "savepoints" / APP / "savepoints" / saved
    shutil.copy(folder / "0_1.json", folder / "0_0.json")
    with pytest.raises(CopyUnusable, match="it belongs to task 0_1"):
        local.task(saved, "0_0")


def test_should_not_call_a_copy_damaged_when_the_disk_is_full(local, saved, tmp_path, monkeypatch):
    copies = SavepointCopies(local)
    (copy,) = copies.find([TASK])[TASK]["counts"]
    real = Path.open

    def full(path, *args, **kwargs):
        opened = real(path, *args, **kwargs)
        return _Full() if "fetched" in str(path) else opened

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StoreFailed, match=r"fetched cannot be written \(No space left on device\): free its disk"):
        copies.fetch(copy, TASK, "counts", tmp_path / "fetched")


@pytest.mark.parametrize("refused", ["open", "mkdir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_should_not_call_a_copy_damaged_when_the_disk_has_no_space_for_a_new_file(
    local, saved, tmp_path, monkeypatch, refused, number
):
    copies = SavepointCopies(local)
    (copy,) = copies.find([TASK])[TASK]["counts"]
    with monkeypatch.context() as patched:
        patched.setattr(Path, refused, _refusing(getattr(Path, refused), number))
        with pytest.raises(StoreFailed, match=rf"fetched.* cannot be written \({os.strerror(number)}\): free its disk"):
            copies.fetch(copy, TASK, "counts", tmp_path / "fetched")
    copies.fetch(copy, TASK, "counts", tmp_path / "again")


@pytest.mark.parametrize("refused", ["open", "mkdir"])
def test_should_pass_over_a_copy_that_cannot_be_written_for_another_reason(
    local, saved, tmp_path, monkeypatch, refused
):
    copies = SavepointCopies(local)
    (copy,) = copies.find([TASK])[TASK]["counts"]
    monkeypatch.setattr(Path, refused, _refusing(getattr(Path, refused), errno.ENAMETOOLONG))
    with pytest.raises(CopyUnusable, match=r"cannot be copied to .*fetched.*: File name too long"):
        copies.fetch(copy, TASK, "counts", tmp_path / "fetched")


def _refusing(real, number):
    def refuse(path, *args, **kwargs):
        if "fetched" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **kwargs)

    return refuse


class _Full:
    name = "fetched"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def write(self, _):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_should_consider_no_savepoint_when_the_location_does_not_answer(local, saved, caplog, monkeypatch):
    def away(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LocalFileSystem, "ls", away)
    with caplog.at_level(logging.WARNING):
        assert SavepointCopies(local).find([TASK])[TASK] == {}
    (line,) = [record.getMessage() for record in logged_by(caplog, "tidemark.savepoints")]
    assert "Permission denied" in line


def test_should_find_no_savepoint_when_none_was_ever_taken(repository):
    assert SavepointCopies(repository).find([TASK])[TASK] == {}
    assert repository.savepoints() == []


def test_should_offer_the_newest_three_and_no_more(local, stores, tmp_path):
    taken = [new_savepoint_id(NOW_MS + minute * 60_000) for minute in range(4)]
    for savepoint_id in taken:
        save(local, stores, tmp_path / "links", savepoint_id)
    found = SavepointCopies(SavepointRepository(local.location, APP)).find([TASK])[TASK]["counts"]
    assert [copy.location.split("/")[-2] for copy in found] == [taken[3], taken[2], taken[1]]
