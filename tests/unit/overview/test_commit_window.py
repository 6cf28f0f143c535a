"""Figures from commit records: rates of the last ten seconds, sums of fifteen minutes, the offsets that are committed."""

from __future__ import annotations

import pytest
from tests.support.overview import NOW, record

from tidemark.commit.record import CommitKind
from tidemark.names import TaskId, TopicPartition
from tidemark.overview.commit_window import BUCKET_MS, WINDOW_MS, CommitWindow

LAST = NOW - BUCKET_MS
"""The beginning of the last complete ten seconds; NOW is a multiple of ten seconds."""


def figures(*records, now_ms=NOW):
    window = CommitWindow()
    for one in records:
        window.add(one)
    return window.figures(now_ms)


def test_rates_should_be_those_of_the_last_complete_ten_seconds():
    found = figures(
        record(LAST - 1, read=(0, 50), written=50),
        record(LAST, read=(50, 250), written=30),
        record(NOW - 1, read=(250, 300), written=10),
        record(NOW, read=(300, 900), written=900),
    )
    assert found.read_per_s == {"clicks": 25.0}
    assert found.written_per_s == {"page-clicks": 4.0}
    assert found.throughput[-2:] == (5.0, 25.0)


@pytest.mark.parametrize(("at_ms", "counts"), [(NOW - WINDOW_MS - 1, 0), (NOW - WINDOW_MS, 7), (NOW, 7)])
def test_late_rows_and_dead_letters_should_be_those_of_the_window(at_ms, counts):
    found = figures(record(at_ms, late=7, bad=7))
    assert (found.late.get(0, 0), found.bad) == (counts, counts)


def test_the_throughput_should_have_a_column_for_every_ten_seconds_of_the_window():
    found = figures(record(NOW - WINDOW_MS, read=(0, 10)))
    assert len(found.throughput) == WINDOW_MS // BUCKET_MS
    assert found.throughput[0] == 1.0
    assert set(found.throughput[1:]) == {0.0}


def test_the_committed_offset_should_be_that_of_the_newest_record_of_each_task():
    other = TaskId(0, 1)
    found = figures(
        record(NOW, batch=2, read=(10, 20)),
        record(NOW - 5, batch=1, read=(0, 10)),
        record(NOW - 9, task=other, read=(0, 3)),
    )
    assert found.committed == {TopicPartition("clicks", 0): 20, TopicPartition("clicks", 1): 3}
    assert found.last_commit_ms == NOW


def test_a_record_that_was_written_by_a_clock_an_hour_ahead_should_not_stay_the_newest():
    ahead = record(NOW + 3_600_000, batch=7, read=(0, 10))
    found = figures(ahead, record(NOW - 5, batch=8, read=(10, 30)))
    assert found.committed == {TopicPartition("clicks", 0): 30}
    assert found.last_commit_ms == NOW - 5


def test_an_old_record_should_still_say_what_is_committed():
    window = CommitWindow()
    window.remember(record(NOW - 10 * WINDOW_MS, read=(0, 44), late=5))
    found = window.figures(NOW)
    assert found.committed == {TopicPartition("clicks", 0): 44}
    assert (found.late.get(0, 0), set(found.throughput)) == (0, {0.0})


def test_a_commit_of_a_command_should_move_offsets_and_count_nothing():
    found = figures(record(LAST, kind=CommitKind.REWIND, read=(900, 100), bad=3))
    assert found.committed == {TopicPartition("clicks", 0): 100}
    assert (dict(found.read_per_s), found.bad) == ({}, 0)
