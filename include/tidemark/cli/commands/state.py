"""Read the stores of a running application."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

app = typer.Typer(no_args_is_help=True)

_Store = Annotated[str, typer.Argument(help="name of the store")]
_Hex = Annotated[bool, typer.Option("--hex", help="keys are given in hexadecimal")]
_Limit = Annotated[int, typer.Option(min=1, help="maximum number of results; more are read page by page")]
_Url = Annotated[str | None, typer.Option(help="address of the process to ask; by default one of this machine")]
_LagRecords = Annotated[
    int | None, typer.Option("--max-lag-records", min=0, help="maximum lag of the state in records")
]
_LagMs = Annotated[int | None, typer.Option("--max-lag-ms", min=0, help="maximum lag of the state in milliseconds")]
_AtLeast = Annotated[str | None, typer.Option("--at-least", help="position that the state must contain")]


@app.command(epilog=examples("tidemark state get shopping purchase-totals customer-7"))
def get(
    topology: TopologyName,
    store: _Store,
    key: Annotated[str, typer.Argument(help="the key")],
    as_hex: _Hex = False,
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the value of one key of a key-value store. Ends with 1 if the key does not exist."""
    from tidemark.cli import state
    from tidemark.cli.output import Output

    asked = state.store_of(topology, store, url, max_lag_records, max_lag_ms, at_least)
    state.show_key(asked, state.key_bytes(key, as_hex), Output(as_json=as_json))


@app.command(epilog=examples("tidemark state keys shopping purchase-totals customer-7 customer-8"))
def keys(
    topology: TopologyName,
    store: _Store,
    keys: Annotated[list[str], typer.Argument(help="the keys")],
    as_hex: _Hex = False,
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the values of several keys of a key-value store. A key that does not exist is left out."""
    from tidemark.cli import state
    from tidemark.cli.output import Output

    asked = state.store_of(topology, store, url, max_lag_records, max_lag_ms, at_least)
    found = asked.get_many([state.key_bytes(key, as_hex) for key in keys])
    state.show_result(asked, found, Output(as_json=as_json))


@app.command("range", epilog=examples("tidemark state range shopping purchase-totals --prefix customer-"))
def range_(
    topology: TopologyName,
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
    as_json: AsJson = False,
) -> None:
    """Show the keys of a key-value store: all, those that begin with a prefix, or those from one key to before another."""
    from tidemark.cli import state
    from tidemark.cli.output import Output

    asked = state.store_of(topology, store, url, max_lag_records, max_lag_ms, at_least)
    first, before, last = (state.optional_key(key, as_hex) for key in (prefix, start, end))
    found = asked.range(prefix=first, start=before, end=last, limit=limit)
    state.show_result(asked, found, Output(as_json=as_json))


@app.command(epilog=examples("tidemark state windows patient_monitoring pulse-counts p1 --from=-10m"))
def windows(
    topology: TopologyName,
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
    as_json: AsJson = False,
) -> None:
    """Show the windows of one key, or of all keys, by their start."""
    from tidemark.cli import state
    from tidemark.cli.output import Output

    asked = state.store_of(topology, store, url, max_lag_records, max_lag_ms, at_least)
    found = asked.windows(state.optional_key(key, as_hex), **state.times(first, last), limit=limit)
    state.show_result(asked, found, Output(as_json=as_json))


@app.command(epilog=examples("tidemark state sessions clicks user-sessions visitor-3"))
def sessions(
    topology: TopologyName,
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
    as_json: AsJson = False,
) -> None:
    """Show the sessions of one key, or of all keys, that have any time between two times."""
    from tidemark.cli import state
    from tidemark.cli.output import Output

    asked = state.store_of(topology, store, url, max_lag_records, max_lag_ms, at_least)
    found = asked.sessions(state.optional_key(key, as_hex), **state.times(first, last), limit=limit)
    state.show_result(asked, found, Output(as_json=as_json))


@app.command(epilog=examples("tidemark state count patient_monitoring pulse-counts --approximate"))
def count(
    topology: TopologyName,
    store: _Store,
    approximate: Annotated[bool, typer.Option("--approximate", help="estimate, without reading the store")] = False,
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the number of keys, windows or sessions of a store."""
    from tidemark.cli import state
    from tidemark.cli.output import Output

    asked = state.store_of(topology, store, url, max_lag_records, max_lag_ms, at_least)
    state.show_count(asked, approximate, Output(as_json=as_json))


@app.command(epilog=examples("tidemark state watch patient_monitoring pulse-counts p1"))
def watch(
    topology: TopologyName,
    store: _Store,
    key: Annotated[str | None, typer.Argument(help="the key; without it, all keys")] = None,
    after: Annotated[str | None, typer.Option(help="position after which the watch begins; by default now")] = None,
    as_hex: _Hex = False,
    limit: Annotated[int | None, typer.Option(min=1, help="end after so many changes; by default never")] = None,
    url: _Url = None,
    as_json: AsJson = False,
) -> None:
    """Show changes of a key, or of all keys, each after its commit. With `--json`, one line for each."""
    from tidemark.cli import state
    from tidemark.cli.output import Output

    asked = state.store_of(topology, store, url)
    state.show_changes(asked, state.optional_key(key, as_hex), after, limit, Output(as_json=as_json))


@app.command(epilog=examples("tidemark state export shopping purchase-totals --parquet totals.parquet"))
def export(
    topology: TopologyName,
    store: _Store,
    parquet: Annotated[Path, typer.Option(help="the Parquet file to write, which is replaced")],
    max_lag_records: _LagRecords = None,
    max_lag_ms: _LagMs = None,
    at_least: _AtLeast = None,
    url: _Url = None,
    as_json: AsJson = False,
) -> None:
    """Write a whole store to a Parquet file: each task at one position, which is kept in the file."""
    from tidemark.cli import state, state_export
    from tidemark.cli.output import Output

    asked = state.store_of(topology, store, url, max_lag_records, max_lag_ms, at_least)
    state_export.export_store(asked, parquet, Output(as_json=as_json))


@app.command(epilog=examples("tidemark state metadata patient_monitoring pulse-counts p1"))
def metadata(
    topology: TopologyName,
    store: _Store,
    key: Annotated[str | None, typer.Argument(help="the key; without it, all tasks of the store")] = None,
    as_hex: _Hex = False,
    url: _Url = None,
    as_json: AsJson = False,
) -> None:
    """Show which processes hold the tasks of a store, or the task of a key, and how far each copy is."""
    from tidemark.cli import state
    from tidemark.cli.output import Output

    asked = state.store_of(topology, store, url)
    state.show_metadata(asked, state.optional_key(key, as_hex), Output(as_json=as_json))
