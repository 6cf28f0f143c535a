"""A snapshot of the demo as text: a table for a terminal, a line for a log."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Group
from rich.text import Text

from demo.pulse_watch import Snapshot
from tidemark.listing import Listing

_COLOURS = {"RUNNING": "green", "LOST": "red", "ERROR": "red"}


def _number(value: float) -> str:
    return "?" if value < 0 else f"{value:,.0f}"


def _age(seconds: float | None) -> str:
    return "none yet" if seconds is None else f"{seconds:.1f} s ago"


def line(snapshot: Snapshot) -> str:
    """Return one line, without colour."""
    return (
        f"state={snapshot.state} patients={snapshot.patients} windows={snapshot.windows} counts={snapshot.counts} "
        f"events/s={snapshot.events_per_second:.0f} lag={snapshot.lag} last_commit={_age(snapshot.commit_age_s)}"
    )


def table(snapshot: Snapshot) -> Group:
    """Return the stream as a whole, and below it the windows that changed last."""
    numbers = ("patients", "current windows", "pulses in them", "events/s", "lag", "last commit")
    title = "patient-monitoring: heartbeats per patient and minute"
    whole = Listing("instance", *numbers, right=numbers, title=title, centred=False)
    whole.add(
        Text(snapshot.state, style=_COLOURS.get(snapshot.state, "yellow")),
        _number(snapshot.patients),
        _number(snapshot.windows),
        _number(snapshot.counts),
        _number(snapshot.events_per_second),
        _number(snapshot.lag),
        _age(snapshot.commit_age_s),
    )
    latest = Listing("patient", "window (UTC)", "pulses", title="counted last", centred=False)
    for patient, start_ms, pulses in snapshot.newest:
        latest.add(patient, f"{datetime.fromtimestamp(start_ms / 1000, UTC):%H:%M:%S}", str(pulses))
    return Group(
        whole, latest, Text("Ctrl-C closes the table; the stream continues. `make stop` ends it.", style="dim")
    )
