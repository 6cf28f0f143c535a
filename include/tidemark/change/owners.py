"""Whose a stored key is: the record's key inside a store's key, which decides the task that owns it (rule 16)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidemark.change.description import StoreState
from tidemark.change.roles import JOIN_SIDES, ORDER, PROCESS, SUPPRESS
from tidemark.errors import StartRefused
from tidemark.stores.layout import WINDOW_START_BYTES
from tidemark.topology.plan import StoreKind

_TIME, _COUNTER, _SIDE = 8, 4, 1
_ENDS: Mapping[StoreKind, int] = {
    StoreKind.KEY_VALUE: 0,
    StoreKind.WINDOW: WINDOW_START_BYTES,
    StoreKind.SESSION: 2 * WINDOW_START_BYTES,
}
"""Bytes behind the record's key, by the kind of a store."""

Owner = Callable[[Sequence[bytes]], list[bytes]]
"""Store keys in, the records' keys out."""


def owner_of(store: StoreState) -> Owner:
    """Raises `StartRefused` for a store whose keys do not say whose they are, or whose values count a task's keys."""
    if store.role == PROCESS:
        raise StartRefused(
            f"store {store.name} belongs to a processor, whose keys may be anything: nobody knows which task they belong "
            "to; the application cannot be rescaled with it"
        )
    if store.role == ORDER:
        return _of_order
    if store.spec.max_entries is not None:
        raise StartRefused(
            f"store {store.name} keeps max_entries keys per task, so other tasks would keep others: the application cannot "
            "be rescaled with it; use ttl"
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
    """`0 time key` and `2 key`, as `tasks.nodes.expiry` writes them where there is a TTL."""
    return [key[1 + _TIME :] if key[:1] == b"\0" else key[1:] for key in keys]
