"""One read of one task's store, as one process asks another, and its answer as an Arrow stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tidemark.errors import SnapshotReleased, TaskCorrupted
from tidemark.names import TaskId
from tidemark.queries.answer_form import Results, arrow_stream, read_arrow_stream
from tidemark.queries.catalog import QueryableStore
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.hosts import ASK_AGAIN, StoreHost, opened
from tidemark.queries.position import Position, ReadBounds
from tidemark.queries.query import MAX_TIME_MS, KeyQuery, RangeQuery, ScanQuery, SessionQuery, WindowQuery
from tidemark.queries.store_reader import Deadline, Place, count, read_keys, read_page
from tidemark.stores.protocol import StoreSnapshot


@dataclass(frozen=True)
class CountQuery:
    """The number of keys, windows or sessions of a store."""

    is_approximate: bool


Query = KeyQuery | ScanQuery | CountQuery


@dataclass(frozen=True)
class TaskRead:
    """A query of one task. `limit` bounds the results of a scan, which continues after `after`."""

    query: Query
    bounds: ReadBounds
    after: Place | None = None
    limit: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with bytes in hexadecimal."""
        bounds = self.bounds
        at_least = [f"{task}:{offset}" for task, offset in bounds.least_offsets.items()]
        at_least += [f"{task}@{batch}" for task, batch in bounds.least_batches.items()]
        return {
            "kind": _KINDS[type(self.query)],
            "query": {name: _plain(value) for name, value in vars(self.query).items()},
            "after": None if self.after is None else [self.after.segment, self.after.key.hex()],
            "limit": self.limit,
            "max_lag_records": bounds.max_lag_records,
            "max_lag_ms": bounds.max_lag_ms,
            "at_least": ",".join(at_least),
        }

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> TaskRead:
        """Read what `to_dict` returned.

        Raises `ValueError`, `TypeError`, `LookupError` or `OverflowError` for anything else.
        """
        kind, given = body["kind"], dict(body["query"])
        if kind == "keys":
            given["keys"] = tuple(bytes.fromhex(key) for key in given["keys"])
        for name in {"from_ms", "to_ms"} & given.keys():
            if not 0 <= _whole(name, given[name]) <= MAX_TIME_MS:
                raise ValueError(f"{name} {given[name]} is not a time")
        for name in ("start", "end", "key"):
            # A range begins somewhere; the others may be left out.
            if name in given and (name == "start" or given[name] is not None):
                given[name] = bytes.fromhex(given[name])
        after, at_least = body["after"], body["at_least"]
        lags = {name: body[name] for name in ("max_lag_records", "max_lag_ms")}
        for name, lag in lags.items():
            if lag is not None:
                _whole(name, lag)
        if not isinstance(at_least, str):
            raise TypeError("at_least is not a text")
        return cls(
            _QUERIES[kind](**given),
            ReadBounds.of(lags["max_lag_records"], lags["max_lag_ms"], at_least),
            None if after is None else Place(int(after[0]), bytes.fromhex(after[1])),
            _whole("limit", body["limit"]),
        )

    def at_most(self, results: int) -> TaskRead:
        """Return the read with this limit, if it has a larger one. Raises `ValueError` for more keys or for no results."""
        if self.limit < 1 or (isinstance(self.query, KeyQuery) and len(self.query.keys) > results):
            raise ValueError(f"it asks for no results, or for more than {results} keys")
        return replace(self, limit=min(self.limit, results))


_QUERIES: dict[str, type[Query]] = {
    "keys": KeyQuery,
    "range": RangeQuery,
    "windows": WindowQuery,
    "sessions": SessionQuery,
    "count": CountQuery,
}
_KINDS = {made: name for name, made in _QUERIES.items()}


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is not a whole number")
    return value


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [key.hex() for key in value]
    return value.hex() if isinstance(value, bytes) else value


@dataclass(frozen=True)
class TaskAnswer:
    """The results of one task. `last` is where a scan continues, `count` that of a `CountQuery`."""

    results: Results
    position: Position
    last: Place | None = None
    count: int | None = None

    @property
    def table(self) -> pa.Table:
        """The results as a table."""
        return self.results.table()

    def to_arrow(self) -> bytes:
        """Return the answer as an Arrow stream."""
        last = None if self.last is None else [self.last.segment, self.last.key.hex()]
        meta = {"position": self.position.to_dict(), "last": last, "count": self.count}
        return arrow_stream(self.table, meta)

    @classmethod
    def from_arrow(cls, data: bytes) -> TaskAnswer:
        """Read what `to_arrow` returned."""
        table, meta = read_arrow_stream(data)
        last = meta["last"]
        return cls(
            Results.of(table),
            Position.from_dict(meta["position"]),
            None if last is None else Place(last[0], bytes.fromhex(last[1])),
            meta["count"],
        )


def read_task(host: StoreHost, task: TaskId, store: QueryableStore, asked: TaskRead, deadline: Deadline) -> TaskAnswer:
    """Answer from what this process holds. Blocks while it reads.

    Raises `StateUnavailable` if it does not hold the task or not with the freshness that is asked for, `PositionGone`,
    `QueryTimedOut`.
    """
    name = store.spec.name
    try:
        with opened(host, task, name) as found:
            asked.bounds.require(found.position)
            return _answer(found.position, store, asked, deadline, found.snapshot)
    except SnapshotReleased as released:
        raise StateUnavailable(f"task {task} left {host.holder} while store {name} was read", ASK_AGAIN) from released
    except TaskCorrupted as error:
        raise StateUnavailable(
            f"store {name} of task {task} in {host.holder} holds bytes that cannot be read: {error}",
            "look at the log of that process; `tidemark restore` builds the store again from its changelog",
        ) from error


def _answer(
    position: Position, store: QueryableStore, asked: TaskRead, deadline: Deadline, snapshot: StoreSnapshot
) -> TaskAnswer:
    query = asked.query
    if isinstance(query, CountQuery):
        counted = snapshot.approximate_count if query.is_approximate else count(snapshot, deadline)
        return TaskAnswer(store.results([]), position, count=counted)
    if isinstance(query, KeyQuery):
        return TaskAnswer(store.results(read_keys(snapshot, query)), position)
    page = read_page(store, snapshot, query, asked.after, asked.limit, deadline)
    return TaskAnswer(store.results(page.items), position, page.last)
