"""The demo's screen and its lines: the same facts in both, readable on a narrow terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from demo.patient_alert import PatientAlert
from demo.pulse_watch import InstanceSummary, Snapshot
from demo.steps import StepState, StepView
from demo.view import Addresses, DemoView, StreamRow, line, new_lines, screen, step_line
from tidemark.cli.demo import print_end, print_lines, show
from tidemark.errors import TidemarkError

NOW = 1_700_000_000_000
ALERT = PatientAlert("p0006", "surgery", NOW, 103, 38.7)
EMPTY = Snapshot("STARTING", 0, 0, 0, 0.0, 0, None, 0, ())
BUSY = Snapshot("RUNNING", 500, 510, 12_345, 583.3, 700, 0.9, 40, (("p0001", NOW, 61),), 3, (ALERT,))
ADDRESSES = Addresses("http://127.0.0.1:8080/plugin/streams", "admin", "/var/passwords.json")
DONE = StepView("stream clicks", StepState.DONE, "commits its batches", 20.0)
WORKS = StepView("restore_drill", StepState.NOW, "it rebuilds every state", 80.0)
FAILED = StepView("savepoint", StepState.FAILED, "its run failed", 5.0)
LATER = StepView("exactly_once_audit", StepState.NEXT)
STREAMS = (
    StreamRow("patient_monitoring", InstanceSummary("RUNNING", 583.3, NOW - 900)),
    StreamRow("clicks", InstanceSummary("LOST", 0.0, None)),
)


def view(*steps, patients=BUSY, notes=("clicks does not run: one core",)):
    return DemoView(NOW, ADDRESSES, steps, STREAMS, patients, notes)


def shown(found, width=120):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None, record=True)
    console.print(screen(found))
    return console.export_text()


def test_the_screen_should_show_where_to_look_what_happens_the_streams_and_the_newest():
    text = shown(view(DONE, FAILED, WORKS, LATER))
    for part in (
        "Streams   http://127.0.0.1:8080/plugin/streams", "login     admin, password in /var/passwords.json",
        "now       restore_drill (1:20): it rebuilds every state", "failed    savepoint: its run failed",
        "done      stream clicks 20.0 s", "next      exactly_once_audit", "note      clicks does not run: one core",
        "patient_monitoring", "LOST", "583", "0.9 s ago", "none yet", "500 patients, 510 current windows with 12,345 pulses",
        "lag 700", "p0001", "22:13:20", "3 alerts", "p0006", "surgery", "103", "38.7", "Ctrl-C closes the screen",
    ):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_screen_should_be_readable_at_every_width(width):
    text = shown(view(DONE, FAILED, WORKS, LATER), width)
    assert max(map(len, text.splitlines())) <= width
    joined = "".join(text.split()).replace("│", "")
    for part in ("patient_monitoring", "RUNNING", "p0006", "103", "exactly_once_audit"):
        assert part in joined


def test_the_screen_should_fit_a_usual_terminal():
    assert len(shown(view(DONE, WORKS, LATER, notes=()), 100).splitlines()) <= 35


def test_the_screen_should_say_why_there_is_no_alert_and_no_count():
    text = shown(view(patients=EMPTY))
    assert "no alert yet: it needs a minute with more than 100 pulses" in text
    assert "0 patients" in text
    assert "counted last" not in text
    assert "lag ?" in shown(view(patients=Snapshot("RUNNING", 1, 1, 1, 1.0, -1, None, 0, ())))


def test_a_line_should_have_the_same_figures():
    text = line(BUSY)
    for part in (
        "state=RUNNING",
        "patients=500",
        "windows=510",
        "counts=12345",
        "alerts=3",
        "events/s=583",
        "lag=700",
        "0.9 s ago",
    ):
        assert part in text
    assert "none yet" in line(EMPTY)


def test_only_what_has_changed_should_be_a_new_line():
    assert new_lines((), (DONE, WORKS, LATER)) == [step_line(DONE), step_line(WORKS)]
    later = StepView("restore_drill", StepState.NOW, "it rebuilds every state", 99.0)
    assert new_lines((DONE, WORKS), (DONE, later)) == []
    other = StepView("restore_drill", StepState.NOW, "something else", 99.0)
    assert new_lines((DONE, WORKS), (DONE, other)) == ["now: restore_drill (1:39): something else"]
    assert new_lines((WORKS,), (StepView("restore_drill", StepState.DONE, "well", 100.0),)) == [
        "done: restore_drill (1:40): well"
    ]


def quiet():
    return SimpleNamespace(follow=lambda _seconds: None)


def lines_of(views, seconds=30.0, **given):
    console = Console(width=200, file=io.StringIO())
    given_views = iter(views)
    last = views[-1]
    print_lines(console, lambda: next(given_views, last), quiet(), seconds, **given)
    return console.file.getvalue().splitlines()


def test_lines_should_end_when_counts_were_written():
    found = lines_of([view(WORKS, patients=EMPTY), view(WORKS), view(DONE)], whole=False)
    assert found[0].startswith("Streams   http://127.0.0.1:8080")
    assert found[2] == "note      clicks does not run: one core"
    assert [text.split()[0] for text in found[3:]] == ["now:", "state=STARTING", "state=RUNNING"]


def test_lines_of_the_whole_demo_should_end_when_every_step_has_run():
    found = lines_of([view(WORKS, LATER), view(WORKS, LATER), view(DONE)], whole=True)
    assert [text.split(":")[0] for text in found[3:5]] == ["now", "done"]
    assert found[-1].startswith("state=RUNNING")


def test_a_failed_step_should_fail_the_whole_demo_and_not_the_first_counts():
    with pytest.raises(TidemarkError, match="failed: savepoint"):
        lines_of([view(FAILED, DONE)], whole=True)
    assert lines_of([view(FAILED, DONE)], whole=False)


@pytest.mark.parametrize("whole", [False, True])
def test_a_demo_that_takes_too_long_should_say_what_it_waits_for(whole):
    with pytest.raises(TidemarkError, match=r"not ready after 0 s.*it waits for: now: restore_drill"):
        lines_of([view(WORKS, patients=EMPTY)], seconds=0.0, whole=whole)


def test_the_screen_should_update_itself_and_end_with_the_stack():
    console = Console(width=120, file=io.StringIO(), force_terminal=True)
    up = iter([True, True, False, False])
    frames = iter([view(WORKS), view(DONE), view(DONE)])
    show(console, lambda: next(frames), quiet(), None, lambda: next(up))
    written = console.file.getvalue()
    assert written.count("\x1b[?1049h") == 1, "one screen, which is left again"
    assert written.count("\x1b[?1049l") == 1
    assert "the stack was stopped; `make demo` starts it again" in written
    still = Console(file=io.StringIO(), force_terminal=True)
    show(still, lambda: view(WORKS), quiet(), 0.0, lambda: True)
    assert "stopped" not in still.file.getvalue()


def test_the_addresses_and_steps_should_stay_when_the_screen_is_closed():
    console = Console(width=200, file=io.StringIO())
    print_end(console, view(DONE, WORKS, LATER))
    assert console.file.getvalue().splitlines() == [
        *ADDRESSES.lines(), step_line(DONE), step_line(WORKS), "next: exactly_once_audit",
    ]  # fmt: skip
