"""The log of an instance is cut while processes append to it, and readers go on where they were."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.supervision import log_rotation
from tidemark.supervision.instance_log import LogTail, Warnings, read_part
from tidemark.supervision.log_rotation import bound_log, earlier_part, start_part

FINE = "2026-11-22 07:36:11,123 INFO tidemark [clicks-0] batch 7 committed"
WRONG = "2026-11-22 07:36:12,456 WARNING tidemark.commit [clicks-0] a commit took 9 s"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app-0.log"


def append(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def cut(log: Path, start_bytes: int) -> int:
    return bound_log(log, start_bytes, log.stat().st_size)


@pytest.mark.parametrize(("size", "is_cut"), [(9, False), (10, True), (11, True)])
def test_should_cut_a_log_that_has_the_most_bytes(log: Path, size: int, is_cut: bool) -> None:
    log.write_bytes(b"x" * size)
    assert bound_log(log, 3, 10) == (3 - size if is_cut else 3)
    assert log.stat().st_size == (0 if is_cut else size)
    assert earlier_part(log).exists() is is_cut


def test_should_leave_a_log_that_does_not_exist(log: Path) -> None:
    assert bound_log(log, 0, 10) == 0
    assert not log.exists()


def test_should_continue_at_the_new_end_in_every_process_that_has_the_log_open(log: Path) -> None:
    script = (
        "import sys\nfor line in sys.stdin: print(line.strip(), flush=True); print('done', file=sys.stderr, flush=True)"
    )
    with log.open("ab") as output:
        output.write(b"before\n")
        output.flush()
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE, text=True
        ) as other:
            assert other.stdin is not None
            assert other.stderr is not None
            for line in ("one", "two"):
                other.stdin.write(f"{line}\n")
                other.stdin.flush()
                assert other.stderr.readline() == "done\n"
                if line == "one":
                    cut(log, 0)
            output.write(b"after\n")
    assert earlier_part(log).read_text() == "before\none\n"
    assert log.read_text() == "two\nafter\n"


def test_should_keep_the_first_lines_of_the_present_launch_alone(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_rotation, "_START_BYTES", 6)
    append(log, "older", "first", "second")
    at = cut(log, 6)
    assert start_part(log).read_text() == "first\n"
    append(log, "third")
    at = cut(log, at)
    assert at == 6 - 19 - 6
    assert start_part(log).read_text() == "first\n"
    assert earlier_part(log).read_text() == "third\n"


def test_should_copy_only_the_end_of_a_log_that_grew_without_a_supervisor(log: Path) -> None:
    log.write_bytes(b"x" * 10 + b"y" * 10)
    bound_log(log, 0, 10)
    assert earlier_part(log).read_bytes() == b"y" * 10


def test_should_lose_no_line_that_is_written_while_the_log_is_copied(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, "first")
    replace = Path.replace

    def writes_meanwhile(path: Path, target: Path) -> Path:
        append(log, "second")
        replaced = replace(path, target)
        append(log, "third")
        return replaced

    monkeypatch.setattr(Path, "replace", writes_meanwhile)
    at = cut(log, 0)
    # The start of the launch is copied first, with the same two steps.
    assert earlier_part(log).read_text() == "first\nsecond\nthird\nsecond\nthird\n"
    assert log.read_text() == ""
    append(log, "fourth")
    assert read_part(log, at) == ["first", "second", "third", "second", "third", "fourth"]


@pytest.mark.parametrize(("more_bytes", "is_cut"), [(-1, False), (0, True), (1, True)])
def test_should_cut_the_log_only_if_the_disk_has_room_for_the_copy(
    log: Path, monkeypatch: pytest.MonkeyPatch, more_bytes: int, is_cut: bool
) -> None:
    append(log, "first")
    free = 6 + log_rotation._START_BYTES + log_rotation._RESERVE_BYTES + more_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert cut(log, 2) == (2 - 6 if is_cut else 2)
    assert log.read_text() == ("" if is_cut else "first\n")
    assert (earlier_part(log).exists(), start_part(log).exists()) == (is_cut, is_cut)


def test_should_leave_the_log_as_it_was_when_the_disk_is_full(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, "first")
    earlier_part(log).write_text("kept")

    def fails(_source: Any, copy: Any) -> None:
        copy.write(b"a part")
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fails)
    with pytest.raises(OSError, match="no space"):
        cut(log, 6)
    assert log.read_text() == "first\n"
    assert earlier_part(log).read_text() == "kept"
    assert sorted(path.name for path in log.parent.iterdir()) == ["app-0.log", "app-0.log.1"]


@pytest.mark.parametrize("is_recorded", [True, False])
def test_should_read_the_output_of_a_launch_across_the_cut(log: Path, is_recorded: bool) -> None:
    older = "what an earlier launch has said"
    append(log, older, "first", "second")
    began = len(older) + 1
    at = cut(log, began)
    append(log, "third")
    # The launch record may say so only later.
    assert read_part(log, at if is_recorded else began) == ["first", "second", "third"]


def test_should_read_what_is_left_of_a_launch_that_began_before_the_earlier_part(log: Path) -> None:
    append(log, "first")
    at = cut(log, 0)
    append(log, "second", "third")
    at = cut(log, at)
    append(log, "fourth")
    assert read_part(log, at) == [f"… 6 earlier bytes are in {log}", "third", "fourth"]


def test_should_go_on_to_follow_a_log_that_is_cut(log: Path) -> None:
    tail, warnings = LogTail(log, 0), Warnings(log, 0)
    append(log, FINE, WRONG)
    assert (tail.lines(), warnings.new()) == ([FINE, WRONG], [WRONG])
    append(log, FINE, FINE, WRONG)
    cut(log, 0)
    assert (tail.lines(), warnings.new()) == ([FINE, FINE, WRONG], [WRONG])
    append(log, WRONG, FINE)
    assert (tail.lines(), warnings.new()) == ([WRONG, FINE], [WRONG])
    assert (tail.lines(), warnings.new()) == ([], [])


def test_should_go_on_with_what_is_written_after_a_cut_that_kept_only_the_end_of_the_log(log: Path) -> None:
    """The log had grown for as long as no supervisor was there to cut it."""
    tail = LogTail(log, 0)
    append(log, *["x" * 9] * 10)
    assert len(tail.lines()) == 10
    bound_log(log, 0, 40)
    append(log, "after the cut")
    assert tail.lines() == ["after the cut"]
    append(log, "and later")
    assert tail.lines() == ["and later"]
