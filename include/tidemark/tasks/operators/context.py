"""A processor's context: its stores, its forwarded rows, and the schedules of its callbacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.errors import InvalidTopology
from tidemark.processors import KeyValueStore, Punctuate
from tidemark.stores.pending import PendingStore
from tidemark.stream_times import LATEST_TIMESTAMP_MS, NO_STREAM_TIME
from tidemark.tasks.code import code_failed
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.operators.columns import Numbers, with_sequence
from tidemark.tasks.operators.row_store import RowStore
from tidemark.tasks.records import from_dicts, rows_of
from tidemark.tasks.refused_rows import NOT_THE_ROWS_FAULT, FoundLate, UnusableValue
from tidemark.tasks.rows import SEQUENCE, Rows
from tidemark.topology.plan import Process

NEEDS_POSITIONS = (
    "a join, a window, suppress() or a topic that several paths write needs the position of each row downstream"
)

_Forwarded = tuple[str | None, int, int, Mapping[str, Any] | None]
"""Key, timestamp, position, row."""


@dataclass(frozen=True)
class Schedule:
    """One call of `Context.schedule`: due at `since_ms` and every `every_ms` from then on, as in Kafka Streams.

    Kafka Streams' `StreamTask.schedule` counts stream time from 0, and wall-clock time from the call of `schedule`.
    """

    every_ms: int
    time: Punctuate
    callback: Callable[[int], None]
    since_ms: int

    def next_ms(self, last_ms: int) -> int:
        """Return the first due time after `last_ms`, the time of the last commit. Times missed before are skipped."""
        # At NO_STREAM_TIME, -1, no time has passed: the first due time is then 0, so the first record causes a call.
        return self.since_ms + ((last_ms - self.since_ms) // self.every_ms + 1) * self.every_ms


class TaskContext:
    """Implements `tidemark.processors.Context`; the operator moves it from batch to batch."""

    def __init__(self, node: Process, wall_ms: int, needs_positions: bool) -> None:
        """`wall_ms` is the clock when the task is opened. `needs_positions` is as for `ProcessOperator`."""
        self._node = node
        self._needs_positions = needs_positions
        self._where = f"{node.node}: {node.processor}"
        self._specs = {spec.name: spec for spec in node.stores}
        self._stores: dict[str, RowStore] = {}
        self._schedules: list[Schedule] = []
        self._is_initialised = False
        self._opened_ms = wall_ms
        self._committed_wall_ms = wall_ms
        self._stream_time_ms = NO_STREAM_TIME
        self._timestamp_ms = NO_STREAM_TIME
        self._forwarded: list[_Forwarded] = []
        self._kept = 0
        self._is_careful = False
        self._bound: Mapping[str, PendingStore] | None = None
        self._batch_keys: Sequence[str | None] = ()
        self._own_keys: Collection[str | None] = ()
        self._now: str | None = ""
        """When the processor runs, for messages; None while it processes the record with the key in `_own_keys`."""
        self._batch_places: Numbers | None = None
        """`__seq` of the rows that an `ArrowProcessor` processes, ascending; None while it does not process rows."""
        self.place = 0
        """`__seq` of the current record, and of rows forwarded without one of their own."""

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

    def forward(
        self,
        key: str | None,
        row: Mapping[str, Any] | None,
        timestamp_ms: int | None = None,
        sequence: int | None = None,
    ) -> None:
        if self._bound is None:
            raise InvalidTopology(
                f"{self._where}: forward() outside of process() and callbacks, where there is no batch that its row could "
                "belong to; use it there"
            )
        if not self._node.columns:
            raise InvalidTopology(
                f"{self._where}: forward() by a processor that declares no columns; declare them in the topology, as in "
                "process(..., emits='column TYPE')"
            )
        if key is not None and not isinstance(key, str):
            raise UnusableValue(f"{self._where}: forward() with key {key!r}; keys are str, or None for no key")
        if self._node.keeps_key and key not in self._own_keys:
            raise self._another_key("forward() with", key)
        if timestamp_ms is None:
            timestamp_ms = self._timestamp_ms
        else:
            self.check_time(timestamp_ms)
        is_known = sequence is None and self._batch_places is None
        place = self.place if is_known else self._place_in_batch(sequence)
        # The first test alone costs a tenth of the second.
        if type(row) is dict or isinstance(row, Mapping):
            row = dict(row)
        forwarded = (key, timestamp_ms, place, row)
        if self._is_careful:
            self._made([forwarded])
        self._forwarded.append(forwarded)

    def schedule(self, every_ms: int, time: Punctuate, callback: Callable[[int], None]) -> None:
        if self._is_initialised:
            # A batch may be discarded and processed again, and a schedule that it made would then exist twice.
            raise InvalidTopology(f"{self._where}: schedule() while records are processed; call it in init()")
        if every_ms <= 0:
            raise InvalidTopology(f"{self._where}: schedule() every {every_ms} ms; give a time above zero")
        try:
            time = Punctuate(time)
        except ValueError:
            raise InvalidTopology(
                f"{self._where}: schedule() by {time!r}; give Punctuate.STREAM_TIME or Punctuate.WALL_CLOCK"
            ) from None
        since_ms = self._opened_ms if time is Punctuate.WALL_CLOCK else 0
        self._schedules.append(Schedule(every_ms, time, callback, since_ms))

    def initialised(self) -> None:
        """Record that the processor's `init` has returned, so that its schedules are complete."""
        self._is_initialised = True

    def is_due(self, wall_ms: int) -> bool:
        """Return whether the clock has reached the due time of a callback since the last commit."""
        last_ms = self._committed_wall_ms
        return any(s.time is Punctuate.WALL_CLOCK and s.next_ms(last_ms) <= wall_ms for s in self._schedules)

    def committed(self, wall_ms: int) -> None:
        """Record that the update prepared at this clock is committed, so that its callbacks count as made."""
        self._committed_wall_ms = wall_ms

    def begin(
        self, stores: Mapping[str, PendingStore], batch_keys: Sequence[str | None], at: BatchTime, is_careful: bool
    ) -> None:
        """Begin a batch and bind the stores. Everything left by a failed batch is discarded.

        With `is_careful`, each row is checked when it is forwarded, so that an unusable one is attributed to its record.
        """
        self._forwarded, self._kept, self._is_careful = [], 0, is_careful
        self._batch_places = None
        self._stream_time_ms, self._timestamp_ms = at.before_ms, at.after_ms
        self._bound = stores
        self._batch_keys = batch_keys
        for name, store in self._stores.items():
            store.begin(stores[name], batch_keys)

    def take_record(self, key: str | None, timestamp_ms: int, stream_time_ms: int, place: int) -> None:
        """Set the record that `process` gets next, its `__seq`, and the stream time that it sees."""
        self._timestamp_ms, self._stream_time_ms, self.place = timestamp_ms, stream_time_ms, place
        self._own_keys, self._now = (key,), None

    def take_batch(self, places: Numbers) -> None:
        """Prepare for an `ArrowProcessor` that gets the batch or a part of it next; `places` are its rows' `__seq`."""
        self._own_keys = frozenset(self._batch_keys)
        self._now = ", which none of the batch's records has"
        self._batch_places, self.place = places, int(places[-1])

    def keep(self) -> None:
        """Keep what was put and forwarded since the last `keep` or `drop`."""
        self._kept = len(self._forwarded)
        for store in self._stores.values():
            store.keep()

    def drop(self) -> None:
        """Undo what was put and forwarded since the last `keep` or `drop`, because its record was refused."""
        del self._forwarded[self._kept :]
        for store in self._stores.values():
            store.drop()

    def abandon(self) -> None:
        """Undo all puts of the batch."""
        self._bound = None
        for store in self._stores.values():
            store.abandon()

    def check_time(self, timestamp_ms: int) -> None:
        """Raise `UnusableValue` for a time that no record may have (see invariant: impossible timestamps)."""
        if not 0 <= timestamp_ms <= LATEST_TIMESTAMP_MS:
            raise UnusableValue(
                f"{self._where}: a row with timestamp {timestamp_ms}; give one in epoch milliseconds, from 0 to "
                f"{LATEST_TIMESTAMP_MS}"
            )

    def check_keys(self, keys: pa.ChunkedArray) -> None:
        """Raise `InvalidTopology` for a key that is not one of the batch's, if the processor promises to keep keys."""
        if self._node.keeps_key:
            for key in keys.unique().to_pylist():
                if key not in self._own_keys:
                    raise self._another_key("the table has", key)

    def punctuate(self, at: BatchTime) -> None:
        """Make the calls that are due, as Kafka Streams' `PunctuationQueue` does, in the order of their due times."""
        self._stream_time_ms = at.after_ms
        self._batch_places = None
        self._own_keys, self._now = (), " in a callback, where there is no record whose key it could keep"
        for time, last_ms, now_ms in (
            (Punctuate.STREAM_TIME, at.before_ms, at.after_ms),
            (Punctuate.WALL_CLOCK, self._committed_wall_ms, at.wall_ms),
        ):
            due = [s for s in self._schedules if s.time is time and s.next_ms(last_ms) <= now_ms]
            self._timestamp_ms = now_ms
            for schedule in sorted(due, key=lambda s: s.next_ms(last_ms)):
                try:
                    schedule.callback(now_ms)
                except NOT_THE_ROWS_FAULT as error:
                    error.add_note(f"{self._where}, callback by {time.value}, time {now_ms}")
                    raise
                except (Exception, SystemExit) as error:
                    what = f"the callback by {time.value} at time {now_ms}"
                    raise code_failed(self._where, what, error) from error

    def end(self) -> Rows:
        """Write the stores, and return the forwarded rows in the order of the calls.

        Raises `FoundLate` if one of them cannot be used; the batch can then still be abandoned.
        """
        for store in self._stores.values():
            store.write()
        try:
            made = self._made(self._forwarded)
        except UnusableValue as error:
            raise FoundLate(str(error)) from error
        for store in self._stores.values():
            store.end()
        self._bound, self._forwarded = None, []
        return made

    def _made(self, forwarded: Sequence[_Forwarded]) -> Rows:
        """Convert forwarded rows to an Arrow table.

        Raises `UnusableValue` for a value, key or time that cannot be used, and `InvalidTopology` for columns other than the
        node's.
        """
        where = f"{self._where}: forward()"
        keys, times, places, rows = zip(*forwarded, strict=True) if forwarded else ((), (), (), ())
        values = from_dicts(rows, self._node.columns, where)
        try:
            names, at = pa.array(keys, pa.string()), pa.array(times, pa.int64())
        except (ValueError, TypeError, OverflowError) as error:
            raise UnusableValue(
                f"{where} with a key that is not text, or a time that is not a number: {error}"
            ) from error
        deleted = pa.array([row is None for row in rows], pa.bool_())
        return with_sequence(rows_of(names, at, deleted, values), np.array(places, dtype=np.int64))

    def _place_in_batch(self, sequence: int | None) -> int:
        """Return the `__seq` of a row that is forwarded with this one.

        Raises `InvalidTopology` if it is not that of a row of the batch, or is needed downstream and missing.
        """
        if self._batch_places is None:
            raise InvalidTopology(
                f"{self._where}: forward() with sequence={sequence!r}; only ArrowProcessor.process chooses the record from "
                f"which a row comes"
            )
        if sequence is None:
            if not self._needs_positions:
                return self.place
            raise InvalidTopology(
                f"{self._where}: forward() without sequence, but {NEEDS_POSITIONS}; give sequence, the {SEQUENCE} of the "
                f"record from which the row comes"
            )
        if not isinstance(sequence, int | np.integer):
            raise InvalidTopology(
                f"{self._where}: forward() with sequence={sequence!r}, which is {type(sequence).__name__}; give an int"
            )
        found = np.searchsorted(self._batch_places, sequence)
        if found == len(self._batch_places) or self._batch_places[found] != sequence:
            raise InvalidTopology(
                f"{self._where}: forward() with sequence={sequence!r}, which is not the {SEQUENCE} of a row of the batch"
            )
        return int(sequence)

    def _another_key(self, what: str, key: str | None) -> InvalidTopology:
        now, quoted = self._now, f"key {key!r}"
        if now is None:
            (own,) = self._own_keys
            now = " while it processes a record"
            quoted = f"key {key!r} of a record with key {own!r}"
        return InvalidTopology(
            f"{self._where}: {what} another key{now}; the topology promises process(..., keeps_key=True): keep the "
            f"record's own key, or remove keeps_key and put repartition() after process()",
            records=quoted,
        )
