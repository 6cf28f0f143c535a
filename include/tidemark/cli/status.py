"""Show what runs, waits, is held, and was left over on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.text import Text

from tidemark.cli.output import Output, View
from tidemark.devstack import record
from tidemark.listing import Listing
from tidemark.operations.times import format_time
from tidemark.settings import Settings
from tidemark.supervision.hold import HOLD_SUFFIX, read_hold, stale_because, stale_remedy
from tidemark.supervision.local_instances import LocalInstance, local_instances
from tidemark.supervision.outage_file import recorded_outages
from tidemark.supervision.run_file import LOST


def show_status(output: Output) -> None:
    """Show what runs, and what was left. Ends with 1 if a part is dead or no stack is recorded."""
    settings, now = Settings.load(), time.time()
    services = service_rows(settings)
    instances = local_instances(settings.var_dir, now)
    holds, leftovers, outages = hold_rows(settings), leftover_rows(settings), outage_rows(settings)
    output.show(
        {
            "services": services,
            "instances": [instance_form(instance, now) for instance in instances],
            "outages": outages,
            "holds": holds,
            "leftovers": leftovers,
        },
        *_service_views(services, settings),
        *([instance_listing(instances, now)] if instances else []),
        *_unwatched_views(instances),
        *_outage_views(outages),
        *_hold_views(holds),
        *_leftover_views(leftovers, settings, now),
    )
    if not services or not all(row["alive"] for row in services):
        sys.exit(1)


def service_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return one row per recorded part."""
    known = record.load(settings.var_dir)
    return [
        {
            "service": name,
            "pid": service.pid,
            "alive": service.identity.is_alive(),
            "port": service.port,
            "log": service.log,
        }
        for name, service in (known.services if known else {}).items()
    ]


def outage_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return one row per instance that waits for its brokers."""
    return [
        {"instance": name, "since_ms": outage.since_ms, "why": outage.why}
        for name, outage in recorded_outages(settings.var_dir).items()
    ]


def hold_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return one row per hold; `stale` is the reason if no command works under it any more, `remedy` what to do then."""
    rows = []
    for file in sorted((settings.var_dir / "instances").glob(f"*{HOLD_SUFFIX}")):
        application = file.name.removesuffix(HOLD_SUFFIX)
        hold = read_hold(settings.var_dir, application)
        if hold is not None:
            stale = stale_because(settings.var_dir, application, hold)
            rows.append(
                {
                    "application": application,
                    "by": hold.by,
                    "reason": hold.reason,
                    "since_ms": hold.since_ms,
                    "stale": stale,
                    "remedy": None if stale is None else stale_remedy(hold),
                }
            )
    return rows


def leftover_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return one row per leftover of all applications with state on this disk."""
    if not settings.state_dir.exists():
        return []
    # Imported only if there is state: this imports clients, which takes a second.
    from tidemark.operations.leftovers import all_leftovers

    return [
        {
            "application": left.application_id,
            "kind": left.kind,
            "path": str(left.path),
            "bytes": left.bytes,
            "since_ms": left.since_ms,
            "why": left.why,
        }
        for left in all_leftovers(settings)
    ]


def _outage_views(outages: list[dict[str, Any]]) -> Iterator[View]:
    """Yield which instance waits for its brokers, and why."""
    listing = Listing("instance", "since", "why", title="waiting for brokers", centred=False)
    for row in outages:
        listing.add(row["instance"], format_time(row["since_ms"]), row["why"])
    if outages:
        yield listing


def _unwatched_views(instances: list[LocalInstance]) -> Iterator[View]:
    """Yield which instances and standbys Airflow has launched and does not watch."""
    for instance in instances:
        if instance.is_watched is False:
            yield (
                f"{instance.name} runs, but no trigger of Airflow watches it: it is not launched again when it ends; start a "
                "triggerer if none runs, otherwise clear its task, which adopts it, or pause the DAG, which stops it"
            )


def _hold_views(holds: list[dict[str, Any]]) -> Iterator[View]:
    """Yield which application is held by which command."""
    title = "holds: nothing is launched"
    listing = Listing("application", "held by", "since", "why", "", title=title, centred=False)
    for row in holds:
        stale = Text()
        if row["stale"] is not None:
            stale = Text.assemble(("stale", "red"), f": {row['stale']}; {row['remedy']}")
        listing.add(row["application"], row["by"], format_time(row["since_ms"]), row["reason"], stale)
    if holds:
        yield listing


def _leftover_views(leftovers: list[dict[str, Any]], settings: Settings, now: float) -> Iterator[View]:
    """Yield leftovers, with the age since they were last written."""
    title = "leftovers: `tidemark clean plan NAME` shows which can be removed"
    listing = Listing(
        "application", "what", "where", "MB", "days", "why", right=("MB", "days"), title=title, centred=False
    )
    for row in leftovers:
        path = Path(row["path"])
        place = path.relative_to(settings.state_dir) if path.is_relative_to(settings.state_dir) else path
        size, days = f"{row['bytes'] / 1_000_000:.1f}", f"{(now - row['since_ms'] / 1000) / 86_400:.1f}"
        listing.add(row["application"], row["kind"], str(place), size, days, row["why"])
    if leftovers:
        yield listing


def _service_views(services: list[dict[str, Any]], settings: Settings) -> Iterator[View]:
    """Yield the parts of the stack."""
    if not services:
        yield f"no stack is recorded in {settings.var_dir}: `tidemark up` starts one"
        return
    title = f"broker {settings.bootstrap_servers}"
    listing = Listing("service", "pid", "alive", "port", title=title, centred=False)
    for row in services:
        dead = Text.assemble(("no", "red"), ", `tidemark up` starts it again")
        alive = Text("yes", style="green") if row["alive"] else dead
        listing.add(row["service"], str(row["pid"]), alive, str(row["port"] or ""))
    yield listing


STATE_COLOURS = {"RUNNING": "green", LOST: "red", "ERROR": "red"}
"""Colours of the states of an instance; all others are yellow."""


def instance_form(instance: LocalInstance, now_s: float) -> dict[str, Any]:
    """Return the fields of an instance or standby for `--json`; `now_s` is in epoch seconds."""
    return {
        "application": instance.application,
        "instance": instance.instance,
        "host": instance.host,
        "pid": None if instance.process is None else instance.process.pid,
        "alive": instance.is_alive,
        "state": instance.state,
        "batch": instance.batch,
        "seconds_since_commit": instance.seconds_since_commit(now_s),
        "records_per_second": instance.records_per_second,
        "partitions": instance.partitions,
        "generation": instance.generation,
        "changelog_generation": instance.changelog_generation,
        "useful": instance.useful,
        "useless_because": instance.useless_because,
        "same_rack_tasks": instance.same_rack_tasks,
        "watched": instance.is_watched,
    }


def instance_listing(instances: list[LocalInstance], now_s: float) -> Listing:
    """Return a table with one row per instance or standby; `now_s` is in epoch seconds."""
    listing = Listing(
        "application",
        "instance",
        "pid",
        "state",
        "generation",
        "partitions",
        "batch",
        "last commit",
        "events/s",
        "copies",
    )
    for row in instances:
        since, rate = row.seconds_since_commit(now_s), row.records_per_second
        listing.add(
            row.application,
            str(row.instance),
            "" if row.process is None else str(row.process.pid),
            Text(row.state, style=STATE_COLOURS.get(row.state, "yellow")),
            "" if row.generation is None else str(row.generation),
            "" if row.partitions is None else str(len(row.partitions)),
            "" if row.batch is None else str(row.batch),
            "" if since is None else f"{since:.1f} s ago",
            "" if rate is None else f"{rate:.0f}",
            _copies(row),
        )
    return listing


def _copies(row: LocalInstance) -> Text:
    """Return, for a running standby, the changelog generation that it follows, and whether an instance could use its copies.

    Also which tasks' instances share its rack, although standbys have a queue of their own.
    """
    if row.useful is None:
        return Text()
    generation = "" if row.changelog_generation is None else f"generation {row.changelog_generation}, "
    said = Text("useful", "green") if row.useful else Text.assemble(("not useful", "red"), f": {row.useless_because}")
    near = [", ", ("in the rack of the instance", "red"), f" of {', '.join(row.same_rack_tasks)}"]
    return Text.assemble(generation, said, *(near if row.same_rack_tasks else ()))
