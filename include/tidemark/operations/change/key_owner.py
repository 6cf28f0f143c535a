"""Extraction of the record's key from a stored key, which decides the task that owns it. See invariant: rescale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidemark.errors import StartRefused
from tidemark.registry.description import StoreState
from tidemark.registry.store_roles import JOIN_SIDES, ORDER, PROCESS, SUPPRESS
from tidemark.stores.layout import WINDOW_START_BYTES
from tidemark.topology.plan import StoreKind

_TIME, _COUNTER, _SIDE = 8, 4, 1
_ENDS: Mapping[StoreKind, int] = {
    StoreKind.KEY_VALUE: 0,
    StoreKind.WINDOW: WINDOW_START_BYTES,
    StoreKind.SESSION: 2 * WINDOW_START_BYTES,
}
"""The number of bytes after the record's key, by the kind of store."""

Owner = Callable[[Sequence[bytes]], list[bytes]]
"""The function that maps keys of a store to the keys of their records."""


def owner_of(store: StoreState) -> Owner:
    """Return the function that extracts records' keys from the keys of a store.

    Raises `StartRefused` for a store whose keys do not contain the record's key, or that limits its number of keys per
    task.
    """
    if store.role == PROCESS:
        raise StartRefused(
            f"store {store.name} belongs to a processor, whose keys may be anything, so the tasks that they belong "
            "to are not known; the application cannot be rescaled with it"
        )
    if store.role == ORDER:
        return _of_order
    if store.spec.max_entries is not None:
        raise StartRefused(
            f"store {store.name} keeps max_entries keys per task, so with other tasks it would keep other keys: the "
            "application cannot be rescaled with it; use ttl"
        )
    if store.role == SUPPRESS:
        return _cut(_TIME, WINDOW_START_BYTES)
    if store.role in JOIN_SIDES[:2]:
        return _cut(0, _TIME + _COUNTER + _TIME)
    if store.role == JOIN_SIDES[2]:
        return _cut(_TIME + _SIDE, _COUNTER)
    return _cut(0, _ENDS[store.spec.kind])


def _cut(before: int, behind: int) -> Owner:
    return lambda keys: [key[before : len(key) - behind] for key in keys]


def _of_order(keys: Sequence[bytes]) -> list[bytes]:
    """Extract from `0 time key` and `2 key`, which `tasks.operators.expiry` writes for a store with a TTL."""
    return [key[1 + _TIME :] if key[:1] == b"\0" else key[1:] for key in keys]
