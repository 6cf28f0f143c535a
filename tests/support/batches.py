"""Runs one operator batch after batch over in-memory stores, committing each, as a task does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tidemark.stores.memory import MemoryStore
from tidemark.stores.pending import PendingStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.operator import BatchTime, Emitted, Operator
from tidemark.tasks.operators.process import ProcessOperator
from tidemark.topology.plan import StoreSpec

CHECKPOINT = StoreCheckpoint("app", "1", "s", "", 1, 1, {}, 1, 1)


class Batches:
    """An operator's life: `run` commits; `restart` makes a new operator over the same stores."""

    def __init__(self, make: Callable[[], Operator], stores: Sequence[StoreSpec]) -> None:
        self._make = make
        self._specs = {spec.name: spec for spec in stores}
        self.stores = {name: MemoryStore() for name in self._specs}
        self.operator = make()
        self.stream_time_ms = NO_STREAM_TIME
        self.wall_ms = 0
        self.written: dict[str, dict[bytes, bytes | None]] = {}

    def restart(self) -> None:
        self.operator = self._make()

    def prepare(self, *inputs: pa.Table, newest_ms: int = NO_STREAM_TIME) -> Emitted:
        """A batch that is thrown away: nothing of it is committed."""
        return self._run(inputs, newest_ms)[0]

    def run(self, *inputs: pa.Table, newest_ms: int = NO_STREAM_TIME) -> Emitted:
        """A batch whose newest record has the timestamp `newest_ms`, committed."""
        emitted, pending = self._run(inputs, newest_ms)
        self.stream_time_ms = max(self.stream_time_ms, newest_ms)
        for name, store in pending.items():
            spec = self._specs[name]
            live = None
            if spec.segment_ms and spec.retention_ms is not None and self.stream_time_ms != NO_STREAM_TIME:
                live = (self.stream_time_ms - spec.retention_ms) // spec.segment_ms
            self.written[name] = {k: v for w in store.writes() for k, v in zip(w.keys, w.values, strict=True)}
            self.stores[name].put_many(store.writes(), CHECKPOINT, live)
        if isinstance(self.operator, ProcessOperator):
            self.operator.committed(self.wall_ms)
        return emitted

    def contents(self, name: str) -> dict[bytes, bytes]:
        store = self.stores[name]
        return {key: value for segment in store.segments() for key, value in store.items(segment)}

    def _run(self, inputs: Sequence[pa.Table], newest_ms: int) -> tuple[Emitted, dict[str, PendingStore]]:
        pending = {name: PendingStore(store) for name, store in self.stores.items()}
        at = BatchTime(self.stream_time_ms, max(self.stream_time_ms, newest_ms), self.wall_ms)
        return self.operator.run(inputs, pending, at), pending
