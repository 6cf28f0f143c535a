"""Show what runs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tidemark.devstack import record
from tidemark.devstack.stack import instance_files
from tidemark.operations.times import format_time
from tidemark.settings import Settings
from tidemark.supervision.hold import HOLD_SUFFIX, read_hold, stale_because
from tidemark.supervision.outage_file import recorded_outages
from tidemark.supervision.run_file import RunView


def status(as_json: Annotated[bool, typer.Option("--json", help="print JSON, for a program")] = False) -> None:
    """Show the stack, the stream instances, outages, holds, and leftovers of killed commands and of other instances.

    Ends with 1 if a part is dead or no stack is recorded.
    """
    settings = Settings.load()
    services = service_rows(settings)
    instances = instance_rows(settings, time.time())
    holds, leftovers, outages = hold_rows(settings), leftover_rows(settings), outage_rows(settings)
    if as_json:
        shown = {
            "services": services,
            "instances": instances,
            "outages": outages,
            "holds": holds,
            "leftovers": leftovers,
        }
        print(json.dumps(shown, indent=2))
    else:
        show(services, instances, settings)
        show_outages(outages)
        show_holds(holds)
        show_leftovers(leftovers, settings, time.time())
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


def instance_rows(settings: Settings, now: float) -> list[dict[str, Any]]:
    """Return one row per instance with a run file; `state` is LOST if its process is gone."""
    rows = []
    for file in instance_files(settings):
        try:
            run = RunView.read(file)
            if run is None:
                continue
            said, alive = run.values, run.process.is_alive()
            commit_ms = said.get("last_commit_ms")
            rows.append(
                {
                    "application": said["application_id"],
                    "instance": said["instance"],
                    "pid": said["pid"],
                    "alive": alive,
                    "state": run.shown_state(is_alive=alive),
                    "batch": said.get("batch"),
                    "seconds_since_commit": round(now - commit_ms / 1000, 1) if commit_ms else None,
                    "records_per_second": said.get("records_per_second"),
                    "partitions": said.get("partitions"),
                    "generation": said.get("generation"),
                    "changelog_generation": said.get("changelog_generation"),
                    "useful": said.get("useful") if alive else None,
                    "useless_because": said.get("useless_because"),
                }
            )
        except (OSError, ValueError, KeyError, TypeError):
            # The file was just removed, or is of another version: it says nothing about a stream.
            continue
    return rows


def outage_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return one row per instance that waits for its brokers."""
    return [
        {"instance": name, "since_ms": outage.since_ms, "why": outage.why}
        for name, outage in recorded_outages(settings.var_dir).items()
    ]


def hold_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return one row per hold; `stale` is the reason if no command works under it any more."""
    rows = []
    for file in sorted((settings.var_dir / "instances").glob(f"*{HOLD_SUFFIX}")):
        application = file.name.removesuffix(HOLD_SUFFIX)
        hold = read_hold(settings.var_dir, application)
        if hold is not None:
            rows.append(
                {
                    "application": application,
                    "by": hold.by,
                    "reason": hold.reason,
                    "since_ms": hold.since_ms,
                    "stale": stale_because(settings.var_dir, application, hold),
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


def show_outages(outages: list[dict[str, Any]]) -> None:
    """Print which instance waits for its brokers, and why."""
    table = Table("instance", "since", "why", title="waiting for brokers", title_justify="left")
    for row in outages:
        table.add_row(row["instance"], format_time(row["since_ms"]), row["why"])
    if outages:
        Console(markup=False).print(table)


def show_holds(holds: list[dict[str, Any]]) -> None:
    """Print which application is held by which command."""
    table = Table(
        "application", "held by", "since", "why", "", title="holds: nothing is launched", title_justify="left"
    )
    for row in holds:
        stale = "" if row["stale"] is None else f"[red]stale[/red]: {row['stale']}; `tidemark clean run` removes it"
        table.add_row(row["application"], row["by"], format_time(row["since_ms"]), row["reason"], stale)
    if holds:
        Console().print(table)


def show_leftovers(leftovers: list[dict[str, Any]], settings: Settings, now: float) -> None:
    """Print leftovers, with the age since they were last written."""
    table = Table(
        "application", "what", "where", "MB", "days", "why",
        title="leftovers: `tidemark clean plan NAME` shows which can be removed", title_justify="left",
    )  # fmt: skip
    for row in leftovers:
        path = Path(row["path"])
        place = path.relative_to(settings.state_dir) if path.is_relative_to(settings.state_dir) else path
        size, days = f"{row['bytes'] / 1_000_000:.1f}", f"{(now - row['since_ms'] / 1000) / 86_400:.1f}"
        table.add_row(row["application"], row["kind"], str(place), size, days, row["why"])
    if leftovers:
        Console().print(table)


def show(services: list[dict[str, Any]], instances: list[dict[str, Any]], settings: Settings) -> None:
    """Print the tables of services and of instances."""
    console = Console()
    if not services:
        console.print(f"no stack is recorded in {settings.var_dir}: `tidemark up` starts one")
    else:
        table = Table(
            "service", "pid", "alive", "port", title=f"broker {settings.bootstrap_servers}", title_justify="left"
        )
        for row in services:
            alive = "[green]yes[/green]" if row["alive"] else "[red]no[/red], `tidemark up` starts it again"
            table.add_row(row["service"], str(row["pid"]), alive, str(row["port"] or ""))
        console.print(table)
    if instances:
        table = Table(
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
            since = row["seconds_since_commit"]
            colour = {"RUNNING": "green", "LOST": "red", "ERROR": "red"}.get(row["state"], "yellow")
            table.add_row(
                row["application"],
                str(row["instance"]),
                str(row["pid"]),
                f"[{colour}]{row['state']}[/{colour}]",
                "" if row["generation"] is None else str(row["generation"]),
                "" if row["partitions"] is None else str(len(row["partitions"])),
                "" if row["batch"] is None else str(row["batch"]),
                "" if since is None else f"{since:.1f} s ago",
                "" if row["records_per_second"] is None else f"{row['records_per_second']:.0f}",
                _copies(row),
            )
        console.print(table)


def _copies(row: dict[str, Any]) -> str:
    """Return, for a running standby, the changelog generation that it follows, and whether an instance could use its copies."""
    if row["useful"] is None:
        return ""
    use = "[green]useful[/green]" if row["useful"] else f"[red]not useful[/red]: {row['useless_because']}"
    return f"generation {row['changelog_generation']}, {use}"
