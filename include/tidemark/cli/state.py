"""Queries of the stores of a running application, and how their answers are shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from tidemark.cli.output import Output
from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode
from tidemark.listing import Listing
from tidemark.operations.times import format_time, parse_time
from tidemark.queries.client import ask
from tidemark.queries.position import Position, position_token
from tidemark.settings import Settings
from tidemark.topology_loader import load


class StoreQueries:
    """Queries of one store of one application, each within the same bounds. All raise what `queries.client.ask` raises."""

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
        """Return the answer of one of the store's routes."""
        return self._ask(f"/v1/stores/{self.store}/{route}", {**self._bounds, **params})

    def post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of one of the store's routes to a body."""
        return self._ask(f"/v1/stores/{self.store}/{route}", self._bounds, body)

    def metadata(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the holders of the store's tasks."""
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


def times(first: str | None, last: str | None) -> dict[str, int | None]:
    """Return the bounds in epoch milliseconds."""
    now_ms, found = wall_clock_ms(), dict[str, int | None]()
    for name, text in (("from_ms", first), ("to_ms", last)):
        try:
            found[name] = None if text is None else parse_time(text, now_ms)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=f"--{name.removesuffix('_ms')}") from error
    return found


def named(name: str, as_hex: bool) -> str:
    """Return the name of a parameter for keys in this form."""
    return f"{name}_hex" if as_hex else name


def show_key(asked: StoreQueries, name: str, key: str, output: Output) -> None:
    """Show the value of a key. Ends with 1 if the key does not exist."""
    answer = asked.get("key", {name: key})
    entries = [] if answer["entry"] is None else [answer["entry"]]
    _show(asked.store, entries, answer, output)
    if not entries:
        sys.exit(ExitCode.FAILED)


def show_keys(asked: StoreQueries, name: str, keys: list[str], output: Output) -> None:
    """Show the values of the keys that exist."""
    answer = asked.post("keys", {name: keys})
    _show(asked.store, answer["entries"], answer, output)


def show_scan(asked: StoreQueries, route: str, params: dict[str, Any], limit: int, output: Output) -> None:
    """Show at most `limit` results of a query with pages."""
    pages = list(asked.pages(route, params, limit))
    entries = [entry for page in pages for entry in page["entries"]]
    # A task that was read on two pages has the position of the last one.
    newest = {position["task"]: position for page in pages for position in page["positions"]}
    answer = {
        "entries": entries,
        "cursor": pages[-1]["cursor"],
        "position": position_token(map(Position.from_dict, newest.values())),
        "positions": list(newest.values()),
    }
    _show(asked.store, entries, answer, output)
    if answer["cursor"] is not None:
        output.people(f"there are more than {limit} results: raise --limit")


def show_count(asked: StoreQueries, approximate: bool, output: Output) -> None:
    """Show the number of keys, windows or sessions."""
    answer = asked.get("count", {"approximate": approximate})
    output.show(answer, f"{'about ' if approximate else ''}{answer['count']}", *_positions(answer))


def show_metadata(asked: StoreQueries, params: dict[str, Any], output: Output) -> None:
    """Show which processes hold which tasks."""
    answer = asked.metadata(params)
    figures = {"offset": "changelog_offset", "end": "end_offset", "lag": "lag_records", "lag ms": "lag_ms"}
    table = Listing(
        "task",
        "holder",
        "state",
        "address",
        *figures,
        right=(*figures,),
        title=f"store {asked.store} of {asked.application_id}",
    )
    for task in answer["tasks"]:
        for copy in task["copies"] or [{"holder": "—", "state": "not held", "url": ""}]:
            at = copy.get("position") or {}
            numbers = [f"{at[name]:,}" if name in at else "—" for name in figures.values()]
            table.add(task["task"], copy["holder"], copy["state"], copy["url"] or "the asked one", *numbers)
    output.show(answer, table)


def _show(store: str, entries: list[dict[str, Any]], answer: dict[str, Any], output: Output) -> None:
    times = [name for name in ("window_start_ms", "window_end_ms") if entries and name in entries[0]]
    columns = list(entries[0]["value"]) if entries else []
    table = Listing("key", *(name.removesuffix("_ms") for name in times), *columns, title=f"store {store}")
    for entry in entries:
        key = entry["key"] if "key" in entry else f"0x{entry['key_hex']}"
        shown = ["—" if entry[name] is None else format_time(entry[name]) for name in times]
        table.add(key, *shown, *("—" if v is None else str(v) for v in entry["value"].values()))
    output.show(answer, table, *_positions(answer))


def _positions(answer: dict[str, Any]) -> list[str]:
    return [
        *(
            f"task {at['task']}: {at['role']} in {at['holder']}, changelog offset {at['changelog_offset']} of "
            f"{at['end_offset']}, lag {at['lag_records']} records, {at['lag_ms']} ms"
            for at in answer["positions"]
        ),
        f"position {answer['position']}",
    ]
