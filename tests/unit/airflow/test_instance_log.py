"""The part of an instance's log that is copied to the log of its task, and when."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemark.errors import RecordRefused
from tidemark.supervision import instance_log
from tidemark.supervision.instance_log import LogTail, Warnings, error_lines, last_error, read_part

FINE = "2026-11-22 07:36:11,123 INFO tidemark [clicks-0] batch 7 committed"
WRONG = "2026-11-22 07:36:12,456 WARNING tidemark.commit [clicks-0] a commit took 9 s"
SPARKS = "26/11/22 07:36:13 WARN KafkaDataConsumer: slow"
ERROR = "2026-11-22 07:36:14,001 ERROR tidemark [clicks-0] batch 8 failed"
TRACE = ["Traceback (most recent call last):", '  File "x.py", line 1, in y', "ValueError: z"]
LAST = "tidemark: a broker did not answer"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app-0.log"


def append(log: Path, *lines: str, end: str = "\n") -> None:
    with log.open("a") as file:
        file.write("\n".join(lines) + end)


def test_should_report_each_warning_once_with_its_continuation_lines(log: Path) -> None:
    append(log, "an earlier launch", ERROR)
    warnings = Warnings(log, log.stat().st_size)
    assert warnings.new() == []
    append(log, ":: loading settings ::", FINE, WRONG, FINE, SPARKS, FINE)
    assert warnings.new() == [WRONG, SPARKS]
    append(log, ERROR, *TRACE, FINE, "what a library prints", LAST)
    assert warnings.new() == [ERROR, *TRACE, LAST]
    assert warnings.new() == []


def test_should_leave_the_records_of_an_error_in_the_log(log: Path) -> None:
    """The task's log gets the lines of both readers, and the alert the last error."""
    refused = RecordRefused(
        "the record at in[0] offset 41 cannot be processed", records="ValueError: 'Jane Doe'\n  File"
    )
    append(log, ERROR, error_lines(refused))
    assert "tidemark records: ValueError: 'Jane Doe' File\n" in log.read_text()
    assert Warnings(log, 0).new() == read_part(log, 0) == [ERROR, f"tidemark: {refused}"]
    assert last_error(read_part(log, 0)) == str(refused)


@pytest.mark.parametrize(
    ("records", "output", "place"),
    [
        ("Jane Doe", "the log of the instance", r".* are in the line before this message in the log of the instance"),
        ("Jane Doe", None, ""),
        ("", "the log of the instance", ""),
    ],
)
def test_should_say_where_the_details_of_an_error_are_that_the_message_leaves_out(
    records: str, output: str | None, place: str
) -> None:
    refused = RecordRefused("in[0] offset 41 cannot be processed", records=records)
    assert re.fullmatch(f"tidemark: {re.escape(str(refused))}{place}", error_lines(refused, output).splitlines()[-1])


def test_should_wait_for_the_end_of_a_line(log: Path) -> None:
    warnings = Warnings(log, 0)
    assert warnings.new() == []
    append(log, WRONG[:40], end="")
    assert warnings.new() == []
    append(log, WRONG[40:])
    assert warnings.new() == [WRONG]


def test_should_say_where_to_read_the_other_lines_when_there_are_many(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_log, "_MAX_TOLD", 2)
    append(log, *[WRONG] * 5)
    assert Warnings(log, 0).new() == [WRONG, WRONG, f"… 3 more lines are in {log}"]


def test_should_skip_the_beginning_of_a_long_section(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_log, "_MAX_BYTES", 10)
    append(log, "0123456789", "abc", "def")
    assert read_part(log, 0) == [f"… 9 earlier bytes are in {log}", "abc", "def"]
    tail = LogTail(log, 0)
    assert tail.lines()[1:] == ["abc", "def"]
    append(log, "ghi", "jkl", end="")
    assert tail.lines() == ["ghi"]
    assert tail.lines(unfinished=True) == ["jkl"]
    assert read_part(log, 100) == []
