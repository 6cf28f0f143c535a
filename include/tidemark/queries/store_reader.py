"""Reading of one task's store: a page of results from one snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidemark.queries.catalog import Item, QueryableStore
from tidemark.queries.errors import QueryTimedOut
from tidemark.queries.query import KeyQuery, ScanQuery, Span, matches, spans
from tidemark.stores.protocol import WHOLE, StoreSnapshot


@dataclass(frozen=True)
class Place:
    """A stored key, in its segment. Reading continues after it."""

    segment: int
    key: bytes


@dataclass(frozen=True)
class Page:
    """Some results, in the order of segments and stored keys. `last` is where the next page continues; None at the end."""

    items: list[Item]
    last: Place | None


_LEAST_LEFT_S = 0.5


@dataclass(frozen=True)
class Deadline:
    """The time by which a query must be answered."""

    at_s: float
    timeout_ms: int
    monotonic: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, timeout_ms: int) -> Deadline:
        """Return the deadline of a query that begins now."""
        return cls(time.monotonic() + timeout_ms / 1000, timeout_ms)

    @property
    def remaining_s(self) -> float:
        """The time that is left; 0 if there is none."""
        return max(0.0, self.at_s - self.monotonic())

    def has_passed(self) -> bool:
        """Return whether the time is over."""
        return self.monotonic() >= self.at_s

    def is_nearly_over(self) -> bool:
        """Return whether there is too little time left to begin with anything more."""
        return self.remaining_s < min(_LEAST_LEFT_S, self.timeout_ms / 4000)

    def require(self, what: str, remedy: str) -> None:
        """Raise `QueryTimedOut` if the time is over."""
        if self.has_passed():
            raise QueryTimedOut(f"{what} took longer than {self.timeout_ms} ms", remedy)


_LOOK_EVERY = 1024
"""Keys between two looks at the clock."""
PAGE_BYTES = 16 << 20
"""A page ends when its keys and values have so many bytes, because its process has all of it in memory several times."""


def read_keys(snapshot: StoreSnapshot, query: KeyQuery) -> list[Item]:
    """Return the items of the keys that exist, in the order of the query."""
    found = snapshot.get_many(WHOLE, query.keys)
    return [(key, value) for key, value in zip(query.keys, found, strict=True) if value is not None]


def read_page(
    store: QueryableStore,
    snapshot: StoreSnapshot,
    query: ScanQuery,
    after: Place | None,
    limit: int,
    deadline: Deadline,
) -> Page:
    """Return up to `limit` results after `after`.

    A page ends early with the result that fills `PAGE_BYTES`, and when the time is over, possibly without results.
    """
    items: list[Item] = []
    seen, size_bytes = 0, 0
    for span in _from(spans(store, query, snapshot.segments()), after):
        for key, value in snapshot.range(span.segment, span.start, span.end):
            seen += 1
            if matches(query, key):
                items.append((key, value))
                size_bytes += len(key) + len(value)
            is_full = len(items) == limit or size_bytes >= PAGE_BYTES
            if is_full or (seen % _LOOK_EVERY == 0 and deadline.has_passed()):
                return Page(items, Place(span.segment, key))
    return Page(items, None)


def count(snapshot: StoreSnapshot, deadline: Deadline) -> int:
    """Return the exact number of keys, windows or sessions. Reads all of them. Raises `QueryTimedOut`."""
    counted = 0
    for segment in snapshot.segments():
        for _ in snapshot.range(segment, b"", None):
            counted += 1
            if counted % _LOOK_EVERY == 0:
                deadline.require("counting", "ask for the approximate count, or raise TIDEMARK_QUERY_TIMEOUT_MS")
    return counted


def _from(parts: list[Span], after: Place | None) -> Iterator[Span]:
    """Yield what is left of the spans after a place."""
    for span in parts:
        if after is None or span.segment > after.segment:
            yield span
        elif span.segment == after.segment:
            yield Span(span.segment, max(span.start, after.key + b"\0"), span.end)
