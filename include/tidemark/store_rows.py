"""The contents of a store in readable form: keys as text, window times, values by field name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tidemark.errors import TaskCorrupted
from tidemark.stores.layout import split_window_key
from tidemark.stores.protocol import Store
from tidemark.stores.session_keys import split_session_key
from tidemark.tasks.fold import result_columns
from tidemark.tasks.rows import with_numbers
from tidemark.tasks.values import value_layouts
from tidemark.topology.plan import Aggregation, StoreKind, StoreSpec, SubTopology

_AT_ONCE = 1000
_LONGEST_CHARACTER_BYTES = 4


@dataclass(frozen=True)
class StoreRow:
    """One key of a store. Times are epoch milliseconds, None if the store has no windows.

    `window_end` is the time of a session's last record. A key that is not text, as in stores that nodes keep for
    themselves, is hexadecimal after `0x`.
    """

    key: str
    window_start: int | None
    window_end: int | None
    value: dict[str, Any]


def rows_of(subtopology: SubTopology, spec: StoreSpec, store: Store) -> Iterator[StoreRow]:
    """Yield all rows of a store, segment by segment, in the order of the keys. Raises `TaskCorrupted`."""
    aggregation = next((a for a in subtopology.aggregations if a.store.name == spec.name), None)
    for segment in store.segments():
        items = store.items(segment)
        while chunk := list(islice(items, _AT_ONCE)):
            values = _values(subtopology, aggregation, spec, [value for _, value in chunk])
            for (key, _), value in zip(chunk, values, strict=True):
                yield StoreRow(*_key(spec, key), value)


def _key(spec: StoreSpec, key: bytes) -> tuple[str, int | None, int | None]:
    if spec.kind is StoreKind.WINDOW:
        name, start = split_window_key(key)
        return shown_bytes(name), start, None
    if spec.kind is StoreKind.SESSION:
        name, start, end = split_session_key(key)
        return shown_bytes(name), start, end
    return shown_bytes(key), None, None


def shown_bytes(data: bytes) -> str:
    """Return bytes as text, or in hexadecimal after `0x` if they are no text or could control a terminal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"


def shown_value(value: object) -> str:
    """Return a value of a column as text, or in hexadecimal after `0x` if it could control a terminal."""
    # A string may have half of a surrogate pair.
    return shown_bytes(str(value).encode(errors="surrogatepass"))


def printable(content: bytes, most_characters: int) -> str:
    """Return bytes as text of at most so many characters, and `…` if something is missing.

    What is not UTF-8, and what is not printable, appears as an escape such as `\\xff` or `\\n`.
    """
    # More bytes than this cannot be shown. The end may cut a character in two, so one more is read and dropped.
    text = content[: (most_characters + 1) * _LONGEST_CHARACTER_BYTES].decode(errors="backslashreplace")
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return shown if len(shown) <= most_characters else f"{shown[:most_characters]}…"


def printable_line(text: str, most_characters: int = 4096) -> str:
    """Return text on one line, with escapes for what is not printable, as `printable` does with bytes."""
    return printable(text.encode(errors="surrogatepass"), most_characters)


def _values(
    subtopology: SubTopology, aggregation: Aggregation | None, spec: StoreSpec, values: Sequence[bytes]
) -> list[dict[str, Any]]:
    layout = value_layouts(subtopology)[spec.name]
    if aggregation is not None and layout is not None:
        columns = result_columns(layout, aggregation.aggregates, layout.decode(values))
        named = [(name, column.to_pylist()) for name, column in columns]
        return [{name: listed[row] for name, listed in named} for row in range(len(values))]
    return [_row(spec, value) for value in values]


def _row(spec: StoreSpec, value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value) if value else {}
        return with_numbers(found, spec.columns) if isinstance(found, dict) else {"value": found}
    except ValueError as error:
        raise TaskCorrupted(f"store {spec.name} holds a row that is not JSON of its columns: {value!r}") from error
