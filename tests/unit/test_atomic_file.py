"""Replacing files in one step."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemark import atomic_file
from tidemark.atomic_file import replace_file


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_should_create_a_file_with_the_given_mode(tmp_path: Path, private: bool, mode: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o666)
    replace_file(path, "new", synced=False, private=private)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == mode
    assert list(tmp_path.iterdir()) == [path]


def test_should_let_several_threads_replace_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def replace_often(letter: str) -> None:
        for _ in range(200):
            replace_file(path, letter * 100_000, synced=False)
            assert len(set(path.read_text())) == 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(replace_often, "abcd"))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("open_umask")
def test_should_keep_a_file_private_despite_the_leftover_of_a_killed_process_with_the_same_number(
    tmp_path: Path,
) -> None:
    left = tmp_path / f"file.{threading.get_native_id()}.tmp"
    left.write_text("half")
    left.chmod(0o666)
    replace_file(tmp_path / "file", "new", synced=False, private=True)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert not left.exists()


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_should_keep_the_old_text_and_leave_nothing_else_when_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(_: int) -> None:
        raise error

    path = tmp_path / "file"
    path.write_text("old")
    # Of this module alone, as other threads of this process write files, too.
    monkeypatch.setattr(atomic_file, "os", SimpleNamespace(**{**vars(os), "fsync": fail}))
    with pytest.raises(type(error)):
        replace_file(path, "new", synced=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
