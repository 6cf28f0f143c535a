"""Show the events of an application's instances, from the database of facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from tidemark.cli.output import Output
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.events.event import Event
from tidemark.events.table import EventReader
from tidemark.listing import Listing
from tidemark.names import events_topic
from tidemark.settings import Settings
from tidemark.store_rows import printable_line
from tidemark.topology.durations import duration_ms
from tidemark.topology_loader import load

_POLL_S = 1.0


def show_events(topology: str, since: str, output: Output, *, follow: bool) -> None:
    """Show the events since `since` ago. With `follow`, also print new ones, which never ends by itself."""
    settings = Settings.load()
    app = load(topology).plan().application_id
    facts = FactsDatabase(settings)
    reader = EventReader(facts, app, wall_clock_ms() - duration_ms(since, "--since"))
    found = list(reader.new())
    if not found:
        topic = events_topic(app)
        output.note(
            f"no events of {app} in the last {since} in {facts.name}; the topic {topic} keeps 7 days: `tidemark kafka "
            f"console-consumer --topic {topic} --from-beginning`"
        )
    if follow:
        _follow(found, reader, _print_json if output.is_json else _print_lines)
    listing = Listing("time", "instance", "kind", "what")
    for event in found:
        listing.add(*_cells(event))
    output.show(found, *([listing] if found else []))


def _follow(found: Iterable[Event], reader: EventReader, show: Callable[[Iterable[Event]], None]) -> None:
    """Print each event at once, as the last may come long after the first. Does not return."""
    show(found)
    while True:
        time.sleep(_POLL_S)
        show(reader.new())


def _print_json(found: Iterable[Event]) -> None:
    for event in found:
        print(event.to_json(), flush=True)


def _print_lines(found: Iterable[Event]) -> None:
    for event in found:
        when, instance, kind, what = _cells(event)
        print(f"{when}  {instance:>3}  {kind:<17}  {what}", flush=True)


def _cells(event: Event) -> tuple[str, str, str, str]:
    when = datetime.fromtimestamp(event.time_ms / 1000, UTC).astimezone()
    return when.strftime("%Y-%m-%d %H:%M:%S"), str(event.instance), str(event.kind), printable_line(event.what)
