"""Shows the answers of queries for `tidemark state`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import typer

from tidemark.cli.output import Output
from tidemark.client import Result, StateClient, StoreClient
from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode
from tidemark.listing import Listing
from tidemark.operations.times import format_time, parse_time
from tidemark.queries.answer_form import HEX, KEY, VALUE, WINDOW_END, WINDOW_START, json_entry
from tidemark.queries.position import Position
from tidemark.store_rows import shown_bytes, shown_value
from tidemark.topology_loader import load


def store_of(
    topology: str,
    store: str,
    url: str | None,
    max_lag_records: int | None = None,
    max_lag_ms: int | None = None,
    at_least: str | None = None,
) -> StoreClient:
    """Return a reader of a store of a topology's application."""
    client = StateClient(load(topology).plan().application_id, url=url)
    return client.store(store, max_lag_records=max_lag_records, max_lag_ms=max_lag_ms, at_least=at_least)


def times(first: str | None, last: str | None) -> dict[str, int | None]:
    """Return the bounds in epoch milliseconds."""
    now_ms, found = wall_clock_ms(), dict[str, int | None]()
    for name, text in (("from_ms", first), ("to_ms", last)):
        try:
            found[name] = None if text is None else parse_time(text, now_ms)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=f"--{name.removesuffix('_ms')}") from error
    return found


def key_bytes(text: str, as_hex: bool) -> bytes:
    """Return a key as it was typed."""
    if not as_hex:
        return text.encode(errors="surrogateescape")
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not hexadecimal: write two digits per byte, such as 00ff") from error


def optional_key(text: str | None, as_hex: bool) -> bytes | None:
    """Return a key as it was typed, if one was."""
    return None if text is None else key_bytes(text, as_hex)


def show_key(asked: StoreClient, key: bytes, output: Output) -> None:
    """Show the value of a key. Ends with 1 if the key does not exist."""
    found = asked.get_many([key])
    asked.only_entry(key, found)
    entries = found.to_json()
    output.show(
        {"entry": entries[0] if entries else None, **_where(found.position, found.positions)}, *_views(asked, found)
    )
    if not entries:
        output.note(f"no key {shown_bytes(key)} in store {asked.name}")
        sys.exit(ExitCode.FAILED)


def show_result(asked: StoreClient, found: Result, output: Output) -> None:
    """Show the results of a query."""
    value = {
        "entries": found.to_json(),
        "is_complete": found.is_complete,
        **_where(found.position, found.positions),
        "resume_position": found.resume_position,
    }
    output.show(value, *_views(asked, found))
    if not found.is_complete:
        output.people(f"there are more than {len(found)} results: raise --limit")


def show_count(asked: StoreClient, approximate: bool, output: Output) -> None:
    """Show the number of keys, windows or sessions."""
    found = asked.count(approximate=approximate)
    value = {"count": found.count, "is_approximate": found.is_approximate, **_where(found.position, found.positions)}
    output.show(value, f"{'about ' if approximate else ''}{found.count}", *_lines(found.position, found.positions))


def show_metadata(asked: StoreClient, key: bytes | None, output: Output) -> None:
    """Show which processes hold which tasks."""
    answer = asked.metadata(key)
    figures = {"offset": "changelog_offset", "end": "end_offset", "lag": "lag_records", "lag ms": "lag_ms"}
    table = Listing(
        "task",
        "holder",
        "state",
        "rack",
        "address",
        *figures,
        right=(*figures,),
        title=f"store {asked.name} of {asked.client.application_id}",
    )
    for task in answer["tasks"]:
        for copy in task["copies"] or [{"holder": "—", "state": "not held", "rack": "—", "url": "—"}]:
            at = copy.get("position") or {}
            numbers = [f"{at[name]:,}" if name in at else "—" for name in figures.values()]
            place = (copy["rack"], copy["url"] or "the asked one")
            table.add(task["task"], copy["holder"], copy["state"], *place, *numbers)
    near = [task["task"] for task in answer["tasks"] if task["standby_in_other_rack"] is False]
    output.show(answer, table, *([f"without a standby in another rack: {', '.join(near)}"] if near else []))


def show_changes(asked: StoreClient, key: bytes | None, after: str | None, limit: int | None, output: Output) -> None:
    """Print changes as they are committed, at most `limit` of them."""
    for change in islice(asked.watch(key, after=after), limit):
        times = [(WINDOW_START, change.window_start_ms), (WINDOW_END, change.window_end_ms)]
        spans = {name: at for name, at in times if change.window_start_ms is not None}
        entry = json_entry({KEY: change.key, **spans, VALUE: change.value})
        if output.is_json:
            places = {"position": change.position, "resume_position": change.resume_position}
            print(json.dumps({**entry, **places}, ensure_ascii=False), flush=True)
            continue
        value = entry[VALUE]
        shown = "deleted" if value is None else ", ".join(f"{name}={shown_value(each)}" for name, each in value.items())
        span = "".join(f"  {'—' if at is None else format_time(at)}" for at in spans.values())
        print(f"{shown_key(entry)}{span}  {shown}", flush=True)


def _where(position: str, positions: Iterable[Position]) -> dict[str, Any]:
    return {"position": position, "positions": [each.to_dict() for each in positions]}


def _views(asked: StoreClient, found: Result) -> Sequence[Any]:
    entries = found.to_json()
    times = [name for name in ("window_start_ms", "window_end_ms") if entries and name in entries[0]]
    columns = list(entries[0]["value"]) if entries else []
    table = Listing("key", *(name.removesuffix("_ms") for name in times), *columns, title=f"store {asked.name}")
    for entry in entries:
        shown = ["—" if entry[name] is None else format_time(entry[name]) for name in times]
        table.add(shown_key(entry), *shown, *("—" if v is None else shown_value(v) for v in entry["value"].values()))
    return [table, *_lines(found.position, found.positions)]


def shown_key(entry: dict[str, Any]) -> str:
    """Return the key of an entry as people read it."""
    return shown_bytes(entry[KEY].encode()) if KEY in entry else f"0x{entry[f'{KEY}{HEX}']}"


def _lines(position: str, positions: Iterable[Position]) -> list[str]:
    return [
        *(
            f"task {at.task}: {at.role} in {at.holder}, changelog offset {at.changelog_offset} of "
            f"{at.end_offset}, lag {at.lag_records} records, {at.lag_ms} ms"
            for at in positions
        ),
        f"position {position}",
    ]
