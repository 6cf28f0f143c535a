"""The demo's sums and tables, and how it reads a real broker."""

from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console
from tests.support.overview import instance

from demo.pulse_watch import InstanceSummary, Snapshot, current
from demo.view import line, table
from tidemark.cli.demo import _show, is_counting

NOW = 1_700_000_000_000


EMPTY = Snapshot("STARTING", 0, 0, 0, 0.0, 0, None, 0, ())


BUSY = Snapshot("RUNNING", 500, 510, 12_345, 583.3, 700, 0.9, 40, (("p0001", NOW, 61),))


def test_should_treat_a_window_as_current_until_its_grace_is_over():
    counts = {("p1", 0): (60_000, 5), ("p1", 60_000): (120_000, 7)}
    assert current(counts, 64_999, 5_000) == {("p1", 0): 5, ("p1", 60_000): 7}
    assert current(counts, 65_000, 5_000) == {("p1", 60_000): 7}


def test_should_sum_instances_and_ignore_dead_ones():
    first = instance(state="RUNNING", records_per_second=10.0, last_commit_ms=5)
    second = instance(state="RESTORING", records_per_second=None, last_commit_ms=None)
    dead = instance(state="LOST", is_alive=False, records_per_second=99.0, last_commit_ms=9)
    assert InstanceSummary.of([first, second, dead]) == InstanceSummary("RESTORING+RUNNING", 10.0, 5)
    assert InstanceSummary.of([dead]) == InstanceSummary("LOST", 0.0, None)
    assert InstanceSummary.of([]).state == "STARTING"


def test_should_count_only_results_that_were_written_since_the_start():
    assert is_counting(BUSY)
    assert not is_counting(EMPTY)
    assert not is_counting(Snapshot("LOST", 5, 5, 50, 0.0, 0, None, 0, ()))


def test_should_stop_the_table_when_the_stack_ends():
    console = Console(width=120, file=io.StringIO(), force_terminal=True)
    watch = SimpleNamespace(snapshot=lambda _now_ms: BUSY, follow=lambda _seconds: None)
    up = iter([True, True, False, False])
    _show(console, watch, None, lambda: next(up))
    assert "p0001" in console.file.getvalue()
    assert "the stack was stopped; `make demo` starts it again" in console.file.getvalue()
    _show(quiet := Console(file=io.StringIO()), watch, 0.0, lambda: True)
    assert "stopped" not in quiet.file.getvalue()


def test_should_show_the_same_in_line_and_table():
    text = line(BUSY)
    for part in (
        "state=RUNNING",
        "patients=500",
        "windows=510",
        "counts=12345",
        "events/s=583",
        "lag=700",
        "0.9 s ago",
    ):
        assert part in text
    assert "none yet" in line(EMPTY)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(BUSY))
    shown = console.export_text()
    for part in ("RUNNING", "500", "510", "12,345", "583", "700", "0.9 s ago", "p0001", "22:13:20", "61"):
        assert part in shown
