"""Restores as progress bars."""

from __future__ import annotations

import io
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console
from tests.support.events import progress

from tidemark.events.progress import RichRestoreListener, duration
from tidemark.names import TopicPartition


def shown(tell):
    """What stands on the terminal when all is told, a line per bar."""
    out = io.StringIO()
    with RichRestoreListener(Console(file=out, force_terminal=True, color_system=None, width=160)) as listener:
        tell(listener)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if "offsets" in line]
    last = {line.split("]")[0]: " ".join(re.sub("[━╸╺]+", "|", line).split()) for line in lines}
    return list(last.values())


def test_should_show_offsets_rate_and_time_left():
    def tell(listener):
        listener.on_restore_start(progress())
        listener.on_batch_restored(progress(35, elapsed_s=2.0, records=3000))

    (line,) = shown(tell)
    assert line.startswith("n app-n-changelog[3] |")
    assert line.endswith("25/100 offsets 1,500 records/s 6.0 s left")


def test_should_show_how_each_restore_ended():
    def tell(listener):
        other = TopicPartition("app-n-changelog", 4)
        listener.on_restore_start(progress())
        listener.on_restore_start(progress(changelog=other))
        listener.on_restore_end(progress(110, elapsed_s=187.0, records=374))
        listener.on_restore_suspended(progress(35, elapsed_s=2.0, records=10, changelog=other))

    done, suspended = shown(tell)
    assert done.endswith("100/100 offsets 2 records/s done in 3:07")
    assert suspended.endswith("25/100 offsets 5 records/s suspended")


@pytest.mark.parametrize("end_offset", [10, pytest.param(9, id="without the marker before the savepoint")])
def test_should_show_a_tail_without_an_offset_as_done(end_offset):
    (line,) = shown(lambda listener: listener.on_restore_end(progress(10, end_offset=end_offset)))
    assert line.endswith("0/0 offsets 0 records/s done in 0.0 s")


def test_should_show_a_restarted_restore_in_the_same_line():
    def tell(listener):
        listener.on_restore_start(progress())
        listener.on_batch_restored(progress(100, elapsed_s=1.0))
        listener.on_restore_start(progress())

    (line,) = shown(tell)
    assert "0/100 offsets" in line


def test_should_accept_progress_from_several_threads_at_once():
    places = [TopicPartition("app-n-changelog", number) for number in range(8)]

    def tell(listener):
        def restore(place):
            listener.on_restore_start(progress(changelog=place))
            for offset in range(10, 110):
                listener.on_batch_restored(progress(offset, 1.0, 5, place))
            listener.on_restore_end(progress(110, 2.0, 5, place))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(restore, places * 2))

    lines = shown(tell)
    assert len(lines) == 8
    assert all(line.endswith("100/100 offsets 2 records/s done in 2.0 s") for line in lines)


@pytest.mark.parametrize(
    ("seconds", "summary"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1:00"), (187, "3:07"), (3600, "1:00:00"), (3765, "1:02:45")],
)
def test_should_write_durations_in_short_form(seconds, summary):
    assert duration(seconds) == summary
