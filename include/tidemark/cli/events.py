"""`tidemark events`: the events of an application's instances, from the database of facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.events.event import Event
from tidemark.events.table import EventReader
from tidemark.names import events_topic
from tidemark.settings import Settings
from tidemark.topology.durations import duration_ms
from tidemark.topology_loader import load

_POLL_S = 1.0
_HEADINGS = ("time", "instance", "kind", "what")


def show_events(topology: str, since: str, *, follow: bool, as_json: bool) -> None:
    """Show the events since `since` ago. With `follow`, also print new ones, which never ends by itself."""
    settings = Settings.load()
    app = load(topology).plan().application_id
    facts = FactsDatabase(settings)
    reader = EventReader(facts, app, wall_clock_ms() - duration_ms(since, "--since"))
    found = list(reader.new())
    if not found:
        topic = events_topic(app)
        typer.echo(
            f"no events of {app} in the last {since} in {facts.name}; the topic {topic} keeps 7 days: `tidemark kafka "
            f"console-consumer --topic {topic} --from-beginning`",
            err=True,
        )
    show: Callable[[Iterable[Event]], None] = print_json if as_json else print_lines if follow else print_table
    if found:
        show(found)
    while follow:
        time.sleep(_POLL_S)
        show(reader.new())


def print_json(found: Iterable[Event]) -> None:
    """Print each event as a line of JSON."""
    for event in found:
        print(event.to_json(), flush=True)


def print_lines(found: Iterable[Event]) -> None:
    """Print each event on a line at once, as the last may come long after the first."""
    for event in found:
        when, instance, kind, what = _cells(event)
        print(f"{when}  {instance:>3}  {kind:<17}  {what}", flush=True)


def print_table(found: Iterable[Event]) -> None:
    """Print all events in one table."""
    table = Table(*_HEADINGS)
    for event in found:
        table.add_row(*_cells(event))
    Console(highlight=False, markup=False).print(table)


def _cells(event: Event) -> tuple[str, str, str, str]:
    when = datetime.fromtimestamp(event.time_ms / 1000, UTC).astimezone()
    return when.strftime("%Y-%m-%d %H:%M:%S"), str(event.instance), str(event.kind), event.what
