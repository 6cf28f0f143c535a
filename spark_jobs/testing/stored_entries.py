"""Keys and values of stores in the form in which `TopologyTestDriver.store` returns them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tidemark.registry.store_roles import JOIN_SIDES, ORDER, SUPPRESS, role_of
from tidemark.stores.layout import ValueLayout, split_window_key
from tidemark.tasks.fold import result_columns
from tidemark.tasks.operators.columns import TIME_BYTES
from tidemark.tasks.operators.joined_rows import COUNTER_BYTES
from tidemark.tasks.operators.suppress import GONE
from tidemark.tasks.operators.unmatched_rows import SIDE_BYTES, key_of, time_of
from tidemark.tasks.rows import TIMESTAMP, with_numbers
from tidemark.topology.plan import Aggregate, StoreKind, StoreSpec, SubTopology

_SIDES = ("left", "right")


def roles_of(subtopology: SubTopology) -> dict[str, str]:
    """Return the role of each store of a node of the task loop, by name. Stores of aggregations have none."""
    return {spec.name: role_of(node, place) for node in subtopology.nodes for place, spec in enumerate(node.stores)}


def stored_key(role: str | None, kind: StoreKind, key: bytes) -> Any:
    """Return the key of an entry. Different keys of a store stay different."""
    if role == SUPPRESS:
        rest, start_ms = split_window_key(key)
        return rest[TIME_BYTES:].decode(), start_ms, int.from_bytes(rest[:TIME_BYTES], "big")
    if role in JOIN_SIDES[:2]:
        rest, at_ms = split_window_key(key)
        text = rest[: -COUNTER_BYTES - TIME_BYTES]
        return text.decode(), at_ms, _counter(rest)
    if role == JOIN_SIDES[2]:
        side = _SIDES[SIDE_BYTES.index(key[TIME_BYTES : TIME_BYTES + 1])]
        return key_of(key).decode(), time_of(key), _counter(key), side
    return key if role == ORDER else window_key(kind, key)


def window_key(kind: StoreKind | None, key: bytes) -> Any:
    """Return a key of a store or topic of this kind as text, with its window if it has one."""
    if kind is StoreKind.WINDOW:
        text, start_ms = split_window_key(key)
        return text.decode(), start_ms
    if kind is StoreKind.SESSION:
        rest, start_ms = split_window_key(key)
        text, end_ms = split_window_key(rest)
        return text.decode(), start_ms, end_ms
    return key.decode(errors="replace")


def stored_value(
    role: str | None, spec: StoreSpec, layout: ValueLayout | None, aggregates: Sequence[Aggregate], value: bytes
) -> Any:
    """Return the value of an entry: a row without the columns that a node adds to it, None for a deletion that waits."""
    if layout is not None:
        columns = result_columns(layout, aggregates, layout.decode([value]))
        return {name: column[0].as_py() for name, column in columns}
    if value[:1] != b"{":
        return value
    row = with_numbers(json.loads(value), spec.columns)
    if role == SUPPRESS and row.pop(GONE):
        return None
    return {name: field for name, field in row.items() if name != TIMESTAMP}


def _counter(key: bytes) -> int:
    return int.from_bytes(key[-COUNTER_BYTES:], "big")
