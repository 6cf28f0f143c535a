"""Read the stores of a running application."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode
from tidemark.operations.times import format_time, parse_time
from tidemark.queries.client import ask
from tidemark.settings import Settings
from tidemark.topology_loader import load

app = typer.Typer(no_args_is_help=True)

_Topology = Annotated[str, typer.Argument(help="module in include/topologies")]
_Store = Annotated[str, typer.Argument(help="name of the store")]
_Hex = Annotated[bool, typer.Option("--hex", help="keys are given in hexadecimal")]
_Limit = Annotated[int, typer.Option(min=1, help="maximum number of results; more are read page by page")]
_Url = Annotated[str | None, typer.Option(help="address of the process to ask; by default one of this machine")]
_LagRecords = Annotated[
    int | None, typer.Option("--max-lag-records", min=0, help="maximum lag of the state in records")
]
_LagMs = Annotated[int | None, typer.Option("--max-lag-ms", min=0, help="maximum lag of the state in milliseconds")]
_AtLeast = Annotated[str | None, typer.Option("--at-least", help="position that the state must contain")]
_Json = Annotated[bool, typer.Option("--json", help="print JSON, for a program")]


@app.command()
def get(
    topology: _Topology,
    store: _Store,
    key: Annotated[str, typer.Argument(help="the key")],
    as_hex: _Hex = False,
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: _Json = False,
) -> None:
    """Show the value of one key of a key-value store. Ends with 1 if the key does not exist."""
    asked = _Asked(topology, store, url, max_lag_records, max_lag_ms, at_least)
    answer = asked.get("key", {_name("key", as_hex): key})
    entries = [] if answer["entry"] is None else [answer["entry"]]
    if as_json:
        print(json.dumps(answer, indent=2))
    else:
        _show(store, entries, answer)
    if not entries:
        sys.exit(ExitCode.FAILED)


@app.command()
def keys(
    topology: _Topology,
    store: _Store,
    keys: Annotated[list[str], typer.Argument(help="the keys")],
    as_hex: _Hex = False,
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: _Json = False,
) -> None:
    """Show the values of several keys of a key-value store. A key that does not exist is left out."""
    asked = _Asked(topology, store, url, max_lag_records, max_lag_ms, at_least)
    answer = asked.post("keys", {_name("keys", as_hex): keys})
    _print(store, answer["entries"], answer, as_json)


@app.command("range")
def range_(
    topology: _Topology,
    store: _Store,
    prefix: Annotated[str | None, typer.Option(help="only keys that begin with this")] = None,
    start: Annotated[str | None, typer.Option(help="first key")] = None,
    end: Annotated[str | None, typer.Option(help="key before which the range ends")] = None,
    as_hex: _Hex = False,
    limit: _Limit = 1000,
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: _Json = False,
) -> None:
    """Show the keys of a key-value store: all, those that begin with a prefix, or those from one key to before another."""
    asked = _Asked(topology, store, url, max_lag_records, max_lag_ms, at_least)
    given = {"prefix": prefix, "start": start, "end": end}
    _scan(asked, "range", {_name(name, as_hex): value for name, value in given.items()}, limit, as_json)


@app.command()
def windows(
    topology: _Topology,
    store: _Store,
    key: Annotated[str | None, typer.Argument(help="the key; without it, all keys")] = None,
    first: Annotated[str | None, typer.Option("--from", help="least start of a window: TIME or -10m")] = None,
    last: Annotated[str | None, typer.Option("--to", help="greatest start of a window: TIME or -10m")] = None,
    as_hex: _Hex = False,
    limit: _Limit = 1000,
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: _Json = False,
) -> None:
    """Show the windows of one key, or of all keys, by their start."""
    asked = _Asked(topology, store, url, max_lag_records, max_lag_ms, at_least)
    _scan(asked, "windows", {_name("key", as_hex): key, **_times(first, last)}, limit, as_json)


@app.command()
def sessions(
    topology: _Topology,
    store: _Store,
    key: Annotated[str | None, typer.Argument(help="the key; without it, all keys")] = None,
    first: Annotated[str | None, typer.Option("--from", help="least end of a session: TIME or -10m")] = None,
    last: Annotated[str | None, typer.Option("--to", help="greatest start of a session: TIME or -10m")] = None,
    as_hex: _Hex = False,
    limit: _Limit = 1000,
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: _Json = False,
) -> None:
    """Show the sessions of one key, or of all keys, that have any time between two times."""
    asked = _Asked(topology, store, url, max_lag_records, max_lag_ms, at_least)
    _scan(asked, "sessions", {_name("key", as_hex): key, **_times(first, last)}, limit, as_json)


@app.command()
def count(
    topology: _Topology,
    store: _Store,
    approximate: Annotated[bool, typer.Option("--approximate", help="estimate, without reading the store")] = False,
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: _Json = False,
) -> None:
    """Show the number of keys, windows or sessions of a store."""
    asked = _Asked(topology, store, url, max_lag_records, max_lag_ms, at_least)
    answer = asked.get("count", {"approximate": approximate})
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    print(f"{'about ' if approximate else ''}{answer['count']}")
    _show_positions(answer)


@app.command()
def metadata(
    topology: _Topology,
    store: _Store,
    key: Annotated[str | None, typer.Argument(help="the key; without it, all tasks of the store")] = None,
    as_hex: _Hex = False,
    url: _Url = None,
    as_json: _Json = False,
) -> None:
    """Show which processes hold the tasks of a store, or the task of a key, and how far each copy is."""
    asked = _Asked(topology, store, url, None, None, None)
    answer = asked.metadata({_name("key", as_hex): key})
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    table = Table("task", "holder", "state", "address", title=f"store {store} of {asked.application_id}")
    for heading in ("offset", "end", "lag", "lag ms"):
        table.add_column(heading, justify="right")
    for task in answer["tasks"]:
        for copy in task["copies"] or [{"holder": "—", "state": "not held", "url": ""}]:
            at = copy.get("position") or {}
            figures = ("changelog_offset", "end_offset", "lag_records", "lag_ms")
            numbers = [f"{at[name]:,}" if name in at else "—" for name in figures]
            table.add_row(task["task"], copy["holder"], copy["state"], copy["url"] or "the asked one", *numbers)
    Console(highlight=False).print(table)


class _Asked:
    """A query of one store of one application."""

    def __init__(
        self,
        topology: str,
        store: str,
        url: str | None,
        max_lag_records: int | None,
        max_lag_ms: int | None,
        at_least: str | None,
    ) -> None:
        self.application_id = load(topology).plan().application_id
        self.store = store
        self._settings = Settings.load()
        self._url = url
        self._bounds = {"max_lag_records": max_lag_records, "max_lag_ms": max_lag_ms, "at_least": at_least}

    def get(self, route: str, params: dict[str, Any]) -> dict[str, Any]:
        return self._ask(f"/v1/stores/{self.store}/{route}", {**self._bounds, **params})

    def post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._ask(f"/v1/stores/{self.store}/{route}", self._bounds, body)

    def metadata(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._ask("/v1/metadata", {"store": self.store, **params})

    def _ask(self, path: str, params: dict[str, Any], body: dict[str, Any] | None = None) -> dict[str, Any]:
        return ask(self._settings, self.application_id, self._url, path, params, body)

    def pages(self, route: str, params: dict[str, Any], limit: int) -> Iterator[dict[str, Any]]:
        """Yield pages until `limit` results were returned or there are no more."""
        given = {name: value for name, value in params.items() if value is not None}
        left, most = limit, self._settings.query_page_records
        while True:
            page = self.post(route, {**given, "limit": min(left, most)})
            yield page
            left -= len(page["entries"])
            if page["cursor"] is None or left <= 0:
                return
            given["cursor"] = page["cursor"]


def _times(first: str | None, last: str | None) -> dict[str, int | None]:
    """Return the bounds in epoch milliseconds."""
    now_ms, found = wall_clock_ms(), dict[str, int | None]()
    for name, text in (("from_ms", first), ("to_ms", last)):
        try:
            found[name] = None if text is None else parse_time(text, now_ms)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=f"--{name.removesuffix('_ms')}") from error
    return found


def _name(name: str, as_hex: bool) -> str:
    return f"{name}_hex" if as_hex else name


def _scan(asked: _Asked, route: str, params: dict[str, Any], limit: int, as_json: bool) -> None:
    pages = list(asked.pages(route, params, limit))
    entries = [entry for page in pages for entry in page["entries"]]
    # A task that was read on two pages has the position of the last one.
    newest = {position["task"]: position for page in pages for position in page["positions"]}
    answer = {
        "entries": entries,
        "cursor": pages[-1]["cursor"],
        "position": ",".join(f"{task}:{newest[task]['promised_offset']}" for task in sorted(newest)),
        "positions": list(newest.values()),
    }
    _print(asked.store, entries, answer, as_json)
    if pages[-1]["cursor"] is not None and not as_json:
        print(f"there are more than {limit} results: raise --limit")


def _print(store: str, entries: list[dict[str, Any]], answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer, indent=2))
    else:
        _show(store, entries, answer)


def _show(store: str, entries: list[dict[str, Any]], answer: dict[str, Any]) -> None:
    times = [name for name in ("window_start_ms", "window_end_ms") if entries and name in entries[0]]
    columns = list(entries[0]["value"]) if entries else []
    table = Table("key", *(name.removesuffix("_ms") for name in times), *columns, title=f"store {store}")
    for entry in entries:
        key = entry["key"] if "key" in entry else f"0x{entry['key_hex']}"
        shown = ["—" if entry[name] is None else format_time(entry[name]) for name in times]
        table.add_row(key, *shown, *("—" if v is None else str(v) for v in entry["value"].values()))
    Console(highlight=False, markup=False).print(table)
    _show_positions(answer)


def _show_positions(answer: dict[str, Any]) -> None:
    for at in answer["positions"]:
        print(
            f"task {at['task']}: {at['role']} in {at['holder']}, changelog offset {at['changelog_offset']} of "
            f"{at['end_offset']}, lag {at['lag_records']} records, {at['lag_ms']} ms"
        )
    print(f"position {answer['position']}")
