"""Sizes of stores over time: summed over tasks, thinned out, read on where the last look ended."""

from __future__ import annotations

import pytest

from tidemark.checks.store_growth import StoreSample, append, history_path
from tidemark.names import TaskId
from tidemark.overview.store_history import MOST_POINTS, SHOWN_MS, SizeHistory, SizeHistoryReader, SizePoint
from tidemark.overview.stores import StoreView
from tidemark.store_sizes import KnownSizes

NOW = 1_700_000_000_000
APP = "app"


def sample(time_ms, keys, size=10, task="0_0", store="n", holder="0"):
    return StoreSample(time_ms, APP, task, store, holder, keys, size, None, None)


@pytest.fixture
def path(tmp_path):
    return history_path(tmp_path, APP)


def test_should_sum_the_tasks_of_all_instances_and_leave_standbys_out(path):
    append(path, [sample(NOW, 5), sample(NOW, 7, task="0_1", holder="1"), sample(NOW, 99, holder="standby-0")])
    append(path, [sample(NOW, 3, store="m"), sample(NOW, None, None, store="elsewhere", holder=None)])
    found = SizeHistoryReader(path).read(NOW)
    assert found == SizeHistory({"m": (SizePoint(NOW, 3, 10),), "n": (SizePoint(NOW, 12, 20),)})


def test_a_size_that_was_not_known_should_not_count_as_nothing(path):
    append(path, [sample(NOW - 1, None), sample(NOW, None), sample(NOW, 7, None, task="0_1")])
    assert SizeHistoryReader(path).read(NOW).of["n"] == (SizePoint(NOW - 1, None, 10), SizePoint(NOW, 7, 10))


def test_should_read_on_where_the_last_look_ended(path, monkeypatch):
    append(path, [sample(NOW - 2, 1)])
    reader = SizeHistoryReader(path)
    assert len(reader.read(NOW).of["n"]) == 1
    parsed = []
    monkeypatch.setattr(reader, "_take", lambda one: parsed.append(one.keys))
    append(path, [sample(NOW - 1, 2)])
    reader.read(NOW)
    assert parsed == [2]


def test_a_line_that_is_being_written_should_be_read_when_it_is_whole(path):
    append(path, [sample(NOW - 1, 1), sample(NOW, 2)])
    text = path.read_bytes()
    path.write_bytes(text[:-5])
    reader = SizeHistoryReader(path)
    assert [point.keys for point in reader.read(NOW).of["n"]] == [1]
    with path.open("ab") as file:
        file.write(text[-5:])
    assert [point.keys for point in reader.read(NOW).of["n"]] == [1, 2]


def test_a_broken_line_should_be_left_out_and_named_until_it_is_deleted(path):
    append(path, [sample(NOW, 1)])
    whole = path.read_text()
    path.write_text(whole + "not JSON\n")
    reader = SizeHistoryReader(path)
    for _ in range(2):
        found = reader.read(NOW)
        assert found.of == {"n": (SizePoint(NOW, 1, 10),)}
        assert f"{path} line 2 is not a sample" in str(found.fault)
    path.write_text(whole)
    assert reader.read(NOW) == SizeHistory({"n": (SizePoint(NOW, 1, 10),)})


def test_a_history_that_was_removed_should_be_empty(path):
    append(path, [sample(NOW, 1)])
    reader = SizeHistoryReader(path)
    reader.read(NOW)
    path.unlink()
    assert reader.read(NOW) == SizeHistory()


@pytest.mark.parametrize(("age_ms", "is_shown"), [(SHOWN_MS, True), (SHOWN_MS + 1, False)])
def test_should_forget_what_is_older_than_it_shows(path, age_ms, is_shown):
    append(path, [sample(NOW - age_ms, 1)])
    assert ("n" in SizeHistoryReader(path).read(NOW).of) == is_shown


@pytest.mark.parametrize("count", [MOST_POINTS - 1, MOST_POINTS, MOST_POINTS + 1, 10 * MOST_POINTS])
def test_should_thin_out_many_samples_and_keep_the_first_and_the_last(path, count):
    append(path, [sample(NOW - number, number) for number in range(count)])
    points = SizeHistoryReader(path).read(NOW).of["n"]
    assert len(points) == min(count, MOST_POINTS)
    assert (points[0].time_ms, points[-1].time_ms) == (NOW - count + 1, NOW)
    assert len({point.time_ms for point in points}) == len(points)


def test_the_present_size_should_be_the_last_point():
    rows = [
        StoreView(TaskId(0, 0), "n", "0", KnownSizes(5), KnownSizes(50)),
        StoreView(TaskId(0, 0), "n", "1", KnownSizes(4), KnownSizes(40), is_old=True),
        StoreView(TaskId(0, 0), "n", "standby-0", KnownSizes(5), KnownSizes(50)),
        StoreView(TaskId(0, 0), "new", "0", KnownSizes(None, "unreadable"), KnownSizes(1)),
    ]
    earlier = SizeHistory({"gone": (SizePoint(1, 1, 1),), "n": (SizePoint(1, 2, 3),)}, "a fault")
    assert earlier.with_present(rows, NOW) == SizeHistory(
        {
            "gone": (SizePoint(1, 1, 1),),
            "n": (SizePoint(1, 2, 3), SizePoint(NOW, 5, 50)),
            "new": (SizePoint(NOW, None, 1),),
        },
        "a fault",
    )
