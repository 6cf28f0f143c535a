"""All contents of one task's store as one Arrow stream, from one snapshot: the state at one position."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import httpx
import pyarrow as pa

from tidemark.errors import SnapshotReleased, TaskCorrupted
from tidemark.names import TaskId
from tidemark.queries.answer_form import META
from tidemark.queries.catalog import QueryableStore
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.hosts import ASK_AGAIN, StoreHost
from tidemark.queries.position import ReadBounds
from tidemark.queries.query import RangeQuery, ScanQuery, SessionQuery, WindowQuery
from tidemark.queries.store_reader import Deadline, Place, read_page
from tidemark.stores.protocol import StoreSnapshot
from tidemark.topology.plan import StoreKind

_PART_RECORDS = 5_000


def whole_store(store: QueryableStore) -> ScanQuery:
    """Return the query of everything that a store holds."""
    if store.spec.kind is StoreKind.KEY_VALUE:
        return RangeQuery()
    return WindowQuery(None) if store.spec.kind is StoreKind.WINDOW else SessionQuery(None)


class TaskExport:
    """A `PartSource` of what this process holds. The position is in the metadata of the stream's schema."""

    def __init__(
        self, host: StoreHost, task: TaskId, store: QueryableStore, bounds: ReadBounds, timeout_ms: int
    ) -> None:
        """Take the snapshot. Each part is read for `timeout_ms` at most. Raises what `StoreHost.open` and `bounds` raise."""
        self._name = f"store {store.spec.name} of task {task} in {host.holder}"
        self._store = store
        self._query = whole_store(store)
        self._timeout_ms = timeout_ms
        self._after: Place | None = None
        self._buffer = io.BytesIO()
        self._snapshot: StoreSnapshot | None = None
        found = host.open(task, store.spec.name)
        try:
            bounds.require(found.position)
            meta = {"position": found.position.to_dict(), "approximate_count": found.snapshot.approximate_count}
            self._schema = store.schema.with_metadata({META: json.dumps(meta)})
            self._writer = pa.ipc.new_stream(self._buffer, self._schema)
        except BaseException:
            found.snapshot.release()
            raise
        self._snapshot = found.snapshot

    @property
    def keep_alive(self) -> bytes:
        return b""

    def read(self) -> bytes | None:
        snapshot = self._snapshot
        if snapshot is None:
            return None
        deadline = Deadline.after(self._timeout_ms)
        try:
            page = read_page(self._store, snapshot, self._query, self._after, _PART_RECORDS, deadline)
            self._writer.write_table(self._store.table(page.items).cast(self._schema))
        except SnapshotReleased as released:
            raise StateUnavailable(f"{self._name} was closed while it was read", ASK_AGAIN) from released
        except TaskCorrupted as error:
            raise StateUnavailable(f"{self._name} holds bytes that cannot be read: {error}", ASK_AGAIN) from error
        self._after = page.last
        if page.last is None:
            self._writer.close()
            self.close()
        part = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return part

    def last_part(self, kind: str, why: str) -> bytes | None:
        # A body that ends is a whole export.
        return None

    def close(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.release()


class PeerExport:
    """A `PartSource` of an export that another process makes."""

    def __init__(self, holder: str, answer: httpx.Response) -> None:
        """`answer` is a response whose body was not read yet."""
        self._holder = holder
        self._answer = answer
        self._parts: Iterator[bytes] = answer.iter_raw()

    @property
    def keep_alive(self) -> bytes:
        return b""

    def read(self) -> bytes | None:
        try:
            return next(self._parts, None)
        except httpx.HTTPError as error:
            raise StateUnavailable(
                f"{self._holder} has stopped to answer ({type(error).__name__})", ASK_AGAIN
            ) from error

    def last_part(self, kind: str, why: str) -> bytes | None:
        return None

    def close(self) -> None:
        self._answer.close()
