"""A processor's context: its stores, what it forwards, and when it is called back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidemark.errors import InvalidTopology
from tidemark.processors import KeyValueStore, Punctuate
from tidemark.stores.marker import NO_STREAM_TIME
from tidemark.stores.pending import PendingStore
from tidemark.tasks.nodes.row_store import RowStore
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.records import from_dicts, rows_of
from tidemark.tasks.rows import Rows
from tidemark.topology.plan import Process


@dataclass(frozen=True)
class Schedule:
    """One call of `Context.schedule`."""

    every_ms: int
    time: Punctuate
    callback: Callable[[int], None]

    def due_ms(self, at: BatchTime, last_wall_ms: int | None) -> int | None:
        """The time to call back with, or None. `last_wall_ms` is the clock at the instance's last batch, if it had one."""
        if self.time is Punctuate.STREAM_TIME:
            before, now = at.before_ms, at.after_ms
            if now == NO_STREAM_TIME:
                return None
        else:
            before, now = (at.wall_ms if last_wall_ms is None else last_wall_ms), at.wall_ms
        multiple = now // self.every_ms
        # Nothing has passed at NO_STREAM_TIME, -1: its multiple lies before the first, so the first batch calls back.
        return multiple * self.every_ms if multiple > before // self.every_ms else None


class TaskContext:
    """Implements `tidemark.processors.Context`; the operator moves it from batch to batch."""

    def __init__(self, node: Process) -> None:
        self._node = node
        self._where = f"{node.node}: {node.processor}"
        self._specs = {spec.name: spec for spec in node.stores}
        self._stores: dict[str, RowStore] = {}
        self._schedules: list[Schedule] = []
        self._stream_time_ms = NO_STREAM_TIME
        self._last_wall_ms: int | None = None
        self._forwarded: list[tuple[str, int, Mapping[str, Any] | None]] = []
        self._bound: Mapping[str, PendingStore] | None = None
        self._batch_keys: Sequence[str] = ()
        self.timestamp_ms = NO_STREAM_TIME
        """What `forward` takes where no timestamp is given."""

    @property
    def stream_time_ms(self) -> int:
        return self._stream_time_ms

    def store(self, name: str) -> KeyValueStore:
        if name not in self._specs:
            known = ", ".join(self._specs) or "none"
            raise InvalidTopology(f"{self._where}: store '{name}' is not this processor's; it has {known}")
        if name not in self._stores:
            self._stores[name] = RowStore(self._specs[name], self._where)
            if self._bound is not None:
                self._stores[name].begin(self._bound[name], self._batch_keys)
        return self._stores[name]

    def forward(self, key: str, row: Mapping[str, Any] | None, timestamp_ms: int | None = None) -> None:
        if not isinstance(key, str):
            raise InvalidTopology(f"{self._where}: forward() with key {key!r}; keys are str")
        self._forwarded.append((key, self.timestamp_ms if timestamp_ms is None else timestamp_ms, row))

    def schedule(self, every_ms: int, time: Punctuate, callback: Callable[[int], None]) -> None:
        if every_ms <= 0:
            raise InvalidTopology(f"{self._where}: schedule() every {every_ms} ms; give a time above zero")
        self._schedules.append(Schedule(every_ms, time, callback))

    def begin(self, stores: Mapping[str, PendingStore], batch_keys: Sequence[str], at: BatchTime) -> None:
        """A batch: bind the stores. Whatever a batch that failed left behind is gone."""
        self._forwarded = []
        self._stream_time_ms, self.timestamp_ms = at.before_ms, at.after_ms
        self._bound = stores
        self._batch_keys = batch_keys
        for name, store in self._stores.items():
            store.begin(stores[name], batch_keys)

    def punctuate(self, at: BatchTime) -> None:
        """Make the calls that are due."""
        self._stream_time_ms = at.after_ms
        for schedule in self._schedules:
            if (due_ms := schedule.due_ms(at, self._last_wall_ms)) is not None:
                self.timestamp_ms = due_ms
                schedule.callback(due_ms)
        self._last_wall_ms = at.wall_ms

    def end(self) -> Rows:
        """Write the stores; what was forwarded, in the calls' order."""
        for store in self._stores.values():
            store.end()
        self._bound = None
        keys, times, rows = zip(*self._forwarded, strict=True) if self._forwarded else ((), (), ())
        self._forwarded = []
        values = from_dicts(rows, self._node.columns, f"{self._where}: forward()")
        deleted = pa.array([row is None for row in rows], pa.bool_())
        return rows_of(pa.array(keys, pa.string()), pa.array(times, pa.int64()), deleted, values)
