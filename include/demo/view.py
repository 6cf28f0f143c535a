"""The demo as text: a screen for a terminal, and lines for a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from demo.pulse_watch import InstanceSummary, Snapshot
from demo.steps import StepState, StepView
from tidemark.clock import duration
from tidemark.listing import Listing

_COLOURS = {"RUNNING": "green", "LOST": "red", "ERROR": "red"}
KEYS = "Ctrl-C closes the screen; the streams continue. `tidemark demo` opens it again and continues; `make stop` ends all."


@dataclass(frozen=True)
class Addresses:
    """The address of the Streams page, and the login for it."""

    page: str
    username: str
    password_file: str

    def lines(self) -> list[str]:
        """Return one line for each."""
        return [f"Streams   {self.page}", f"login     {self.username}, password in {self.password_file}"]


@dataclass(frozen=True)
class StreamRow:
    """One stream on the screen."""

    name: str
    summary: InstanceSummary


@dataclass(frozen=True)
class DemoView:
    """All that the screen shows at `now_ms`. `notes` say what was left out, and why."""

    now_ms: int
    addresses: Addresses
    steps: tuple[StepView, ...]
    streams: tuple[StreamRow, ...]
    patients: Snapshot
    notes: tuple[str, ...] = ()


def _number(value: float) -> str:
    return "?" if value < 0 else f"{value:,.0f}"


def _age(seconds: float | None) -> str:
    return "none yet" if seconds is None else f"{seconds:.1f} s ago"


def _clock(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%H:%M:%S}"


def line(snapshot: Snapshot) -> str:
    """Return one line about patient monitoring, without colour."""
    return (
        f"state={snapshot.state} patients={snapshot.patients} windows={snapshot.windows} counts={snapshot.counts} "
        f"alerts={snapshot.alerts} events/s={snapshot.events_per_second:.0f} lag={snapshot.lag} "
        f"last_commit={_age(snapshot.commit_age_s)}"
    )


def step_line(step: StepView) -> str:
    """Return one line about a step."""
    took = "" if step.seconds is None else f" ({duration(step.seconds)})"
    return f"{step.state}: {step.name}{took}" + (f": {step.text}" if step.text else "")


def new_lines(before: Sequence[StepView], now: Sequence[StepView]) -> list[str]:
    """Return a line for each step that has another state or waits for something else than before."""
    known = {step.name: (step.state, step.text) for step in before}
    return [
        step_line(step)
        for step in now
        if step.state is not StepState.NEXT and known.get(step.name) != (step.state, step.text)
    ]


def screen(view: DemoView) -> Group:
    """Return one frame: where to look, what happens now, the streams, and the newest counts and alerts."""
    return Group(
        Text(f"Tidemark demo   {_clock(view.now_ms)} UTC", style="bold"),
        *(Text(one) for one in view.addresses.lines()),
        *_steps(view.steps),
        *(Text(f"note      {note}", style="dim") for note in view.notes),
        _streams(view),
        _patients(view.patients),
        _alerts(view.patients),
        Text(KEYS, style="dim"),
    )


def _steps(steps: Sequence[StepView]) -> list[RenderableType]:
    """Return what happens now and what failed in lines of their own, and the others by their names."""
    by_state = {state: [step for step in steps if step.state is state] for state in StepState}
    lines = [Text(f"failed    {step.name}: {step.text}", style="red") for step in by_state[StepState.FAILED]]
    for step in by_state[StepState.NOW]:
        lines.append(Text(f"now       {step.name} ({duration(step.seconds or 0.0)}): {step.text}", style="yellow"))
    if done := by_state[StepState.DONE]:
        names = ", ".join(f"{step.name} {duration(step.seconds or 0.0)}" for step in done)
        lines.append(Text(f"done      {names}", style="green"))
    if following := by_state[StepState.NEXT]:
        lines.append(Text(f"next      {', '.join(step.name for step in following)}"))
    return list(lines)


def _streams(view: DemoView) -> Listing:
    numbers = ("events/s", "last commit")
    listing = Listing("stream", "instance", *numbers, right=numbers)
    for row in view.streams:
        committed_ms = row.summary.last_commit_ms
        age_s = None if committed_ms is None else max(0.0, (view.now_ms - committed_ms) / 1000)
        state = Text(row.summary.state, style=_COLOURS.get(row.summary.state, "yellow"))
        listing.add(row.name, state, _number(row.summary.events_per_second), _age(age_s))
    return listing


def _patients(snapshot: Snapshot) -> Group:
    """Return the counts as a whole, and the windows that changed last."""
    listing = Listing("patient", "window (UTC)", "pulses", right=("pulses",), title="counted last", centred=False)
    for patient, start_ms, pulses in snapshot.newest:
        listing.add(patient, _clock(start_ms), str(pulses))
    whole = (
        f"{_number(snapshot.patients)} patients, {_number(snapshot.windows)} current windows with "
        f"{_number(snapshot.counts)} pulses, lag {_number(snapshot.lag)}"
    )
    return Group(Text(whole), *([listing] if snapshot.newest else []))


def _alerts(snapshot: Snapshot) -> RenderableType:
    if not snapshot.newest_alerts:
        why = "no alert yet: it needs a minute with more than 100 pulses, and a temperature above 38 °C beside it"
        return Text(why, style="dim")
    numbers = ("pulses", "°C")
    listing = Listing(
        "patient", "ward", "minute (UTC)", *numbers, right=numbers, title=f"{snapshot.alerts} alerts", centred=False
    )
    for alert in snapshot.newest_alerts:
        listing.add(alert.patient, alert.ward, _clock(alert.window_start_ms), str(alert.pulses), f"{alert.celsius:.1f}")
    return listing
