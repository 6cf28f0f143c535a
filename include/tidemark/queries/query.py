"""Kinds of queries, named as in Kafka Streams, and the parts of a store that each of them reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.queries.catalog import QueryableStore
from tidemark.queries.errors import QueryInvalid
from tidemark.stores.layout import WINDOW_START_BYTES, split_window_key
from tidemark.stores.protocol import WHOLE
from tidemark.stores.session_keys import PAST_ALL_TIMES, split_session_key
from tidemark.stream_times import LATEST_TIMESTAMP_MS
from tidemark.topology.plan import StoreKind

MAX_TIME_MS = (1 << 63) - 1
_FITTING = {
    StoreKind.KEY_VALUE: "/key, /keys or /range",
    StoreKind.WINDOW: "/windows",
    StoreKind.SESSION: "/sessions",
}


@dataclass(frozen=True)
class KeyQuery:
    """The values of some keys of a key-value store."""

    keys: tuple[bytes, ...]


@dataclass(frozen=True)
class RangeQuery:
    """The keys of a key-value store from `start` to before `end` (None: to the last)."""

    start: bytes = b""
    end: bytes | None = None

    @classmethod
    def of_prefix(cls, prefix: bytes) -> RangeQuery:
        """Return the range of all keys that begin with `prefix`."""
        # The next key that does not begin with it; 0xff cannot be incremented, so it is cut off.
        head = prefix.rstrip(b"\xff")
        return cls(prefix, head[:-1] + bytes([head[-1] + 1]) if head else None)


@dataclass(frozen=True)
class WindowQuery:
    """The windows of a key (None: of all keys) whose start is from `from_ms` to `to_ms`, both included."""

    key: bytes | None
    from_ms: int = 0
    to_ms: int = MAX_TIME_MS


@dataclass(frozen=True)
class SessionQuery:
    """The sessions of a key (None: of all keys) that have any time from `from_ms` to `to_ms`, both included."""

    key: bytes | None
    from_ms: int = 0
    to_ms: int = MAX_TIME_MS


ScanQuery = RangeQuery | WindowQuery | SessionQuery
"""The queries with any number of results, which are read page by page."""


@dataclass(frozen=True)
class Span:
    """Keys of one segment from `start` to before `end` (None: to the last)."""

    segment: int
    start: bytes
    end: bytes | None


def require_fitting(store: QueryableStore, query: KeyQuery | ScanQuery) -> None:
    """Raise `QueryInvalid` if a query is for another kind of store, or if its bounds are reversed."""
    kinds: dict[type, StoreKind] = {WindowQuery: StoreKind.WINDOW, SessionQuery: StoreKind.SESSION}
    kind = store.spec.kind
    if kinds.get(type(query), StoreKind.KEY_VALUE) is not kind:
        raise QueryInvalid(
            f"store {store.spec.name} is a {kind.value} store, which this query does not read",
            f"use {_FITTING[kind]} of the store",
        )
    if isinstance(query, WindowQuery | SessionQuery) and query.from_ms > query.to_ms:
        raise QueryInvalid(f"from_ms {query.from_ms} is after to_ms {query.to_ms}", "swap the two")
    if isinstance(query, RangeQuery) and query.end is not None and query.start > query.end:
        raise QueryInvalid(
            "the first key of the range is after the last one", "swap the two: keys are ordered by bytes"
        )


def spans(store: QueryableStore, query: ScanQuery, segments: Sequence[int]) -> list[Span]:
    """Return the parts of the store that may hold results, in the order in which they are read."""
    if isinstance(query, RangeQuery):
        return [Span(WHOLE, query.start, query.end)]
    segment_ms = store.spec.segment_ms or 1
    first = query.from_ms // segment_ms
    # A session is in the segment of its end, which may be after the time that is asked for.
    last = query.to_ms // segment_ms if isinstance(query, WindowQuery) else MAX_TIME_MS
    live = [segment for segment in segments if first <= segment <= last]
    if query.key is None:
        return [Span(segment, b"", None) for segment in live]
    start = query.key + _time(query.from_ms)
    is_of_windows = isinstance(query, WindowQuery)
    # With a later time the scan would read other keys that begin with this one.
    after = _time(min(query.to_ms, LATEST_TIMESTAMP_MS)) + b"\0" if is_of_windows else PAST_ALL_TIMES
    return [Span(segment, start, query.key + after) for segment in live]


def matches(query: ScanQuery, stored_key: bytes) -> bool:
    """Return whether a key within a span is a result. A span may hold keys that begin with the key that is asked for."""
    if isinstance(query, RangeQuery):
        return True
    if isinstance(query, WindowQuery):
        key, start_ms = split_window_key(stored_key)
        return query.from_ms <= start_ms <= query.to_ms and query.key in (None, key)
    key, start_ms, end_ms = split_session_key(stored_key)
    return start_ms <= query.to_ms and end_ms >= query.from_ms and query.key in (None, key)


def _time(ms: int) -> bytes:
    return ms.to_bytes(WINDOW_START_BYTES, "big")
