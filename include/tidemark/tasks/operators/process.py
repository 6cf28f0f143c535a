"""Running a user's processor, record by record or one Arrow table at a time."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import RECORDS_PREFIX, InvalidTopology
from tidemark.processors import ArrowProcessor, Processor, Record
from tidemark.stores.pending import PendingStore
from tidemark.tasks.code import code_failed, load_code
from tidemark.tasks.forks import after_batch
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.operators.columns import Numbers, in_sequence, last_sequence, numbers, with_sequence
from tidemark.tasks.operators.context import NEEDS_POSITIONS, TaskContext
from tidemark.tasks.records import Row, rows_of, to_dicts
from tidemark.tasks.refused_rows import NOT_THE_ROWS_FAULT, FoundLate, Refusals, UnusableValue
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, value_schema
from tidemark.topology.plan import Process

log = logging.getLogger(__name__)


class ProcessOperator:
    """An `Operator` with one input of rows, created once per task; the processor's instance lives as long.

    Emits what the processor returns or forwards, in its order. What an `ArrowProcessor` returns or forwards is in the order of
    the records from which it comes; of one record, returned rows come first. A row is refused if the processor raises for it or
    makes an `UnusableValue` of it; what the processor did for that row is undone. If it raises for a batch, each half is tried.
    Errors of the topology are raised with a note of node and record.
    """

    def __init__(self, node: Process, wall_ms: int, needs_positions: bool = False) -> None:
        """`wall_ms` is the clock when the task is opened.

        With `needs_positions`, a node or topic downstream depends on which record each row comes from, so a table that is
        returned for a batch must have `__seq`, and rows that are forwarded while it is processed must have a `sequence`.
        Raises `InvalidTopology` for code that cannot be used, `UserCodeFailed` for a processor whose `init` raises.
        """
        self.node = node
        self._needs_positions = needs_positions
        self.where = f"{node.node}: {node.processor}"
        """The processor's place in the topology, for messages."""
        made = self._of_user("creating it", load_code(node.processor, node.node))
        wanted = ArrowProcessor if node.is_batched else Processor
        if not isinstance(made, wanted):
            raise InvalidTopology(
                f"{self.where} is not a subclass of {wanted.__name__}; derive the class from tidemark.processors"
            )
        self._processor: Processor | ArrowProcessor = made
        self._context = TaskContext(node, wall_ms, needs_positions)
        self._of_user("init()", lambda: made.init(self._context))
        self._context.initialised()

    def _of_user(self, what: str, call: Callable[[], Any]) -> Any:
        """Call user code for which no record is to blame."""
        try:
            return call()
        except NOT_THE_ROWS_FAULT as error:
            error.add_note(f"{self.where}, {what}")
            raise
        except (Exception, SystemExit) as error:
            raise code_failed(self.where, what, error) from error

    def is_due(self, wall_ms: int) -> bool:
        """Return whether a callback of the processor is due by the clock alone."""
        return self._context.is_due(wall_ms)

    def committed(self, wall_ms: int) -> None:
        """Record that the batch at this clock is committed, so that its wall-clock callbacks are not made again."""
        self._context.committed(wall_ms)

    def close(self) -> None:
        """Let the processor release what it opened. Whatever its `close` raises is only logged, as more of them may follow."""
        try:
            self._processor.close()
        except BaseException as error:  # noqa: BLE001
            text = " ".join("".join(traceback.format_exception(error)).split())
            log.warning("%s: close() raised %s\n%s%s", self.where, type(error).__name__, RECORDS_PREFIX, text)

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Process the batch's rows in the order of `__seq`, then make the callbacks that are due."""
        try:
            return self._run(inputs, stores, at, is_careful=False)
        except FoundLate:
            self._context.abandon()
            return self._run(inputs, stores, at, is_careful=True)

    def _run(
        self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime, is_careful: bool
    ) -> Emitted:
        rows = inputs[0].sort_by(SEQUENCE)
        last = last_sequence(inputs)
        self._context.begin(stores, rows.column(KEY).to_pylist(), at, is_careful)
        given_back: list[Rows] = []
        refused = Refusals(self.node.node)
        if isinstance(self._processor, Processor):
            self._each(self._processor, rows, at, refused)
        elif last is not None:
            self._whole(self._processor, rows, given_back, refused)
        self._context.place = after_batch(last or 0, at.last_position)
        self._context.punctuate(at)
        forwarded = self._context.end()
        return Emitted(in_sequence(pa.concat_tables([*given_back, forwarded])), refused=refused.rows())

    def _each(self, processor: Processor, rows: Rows, at: BatchTime, refused: Refusals) -> None:
        columns = (rows.column(name).to_pylist() for name in (KEY, TIMESTAMP, SEQUENCE, DELETED))
        # As in Kafka Streams, a record sees the stream time that it advances itself. Later records of the batch do not
        # count yet: otherwise the records of a backlog would look late.
        stream_time_ms = at.before_ms
        process, take_record, keep = processor.process, self._context.take_record, self._context.keep
        unchanged = cache(partial(_as_read, rows))
        records = enumerate(zip(*columns, to_dicts(rows), strict=True))
        for number, (key, timestamp_ms, place, deleted, row) in records:
            stream_time_ms = max(stream_time_ms, min(timestamp_ms, at.after_ms))
            take_record(key, timestamp_ms, stream_time_ms, place)
            try:
                process(Record(key, None if deleted else row, timestamp_ms))
            except NOT_THE_ROWS_FAULT as error:
                error.add_note(f"{self.where}, timestamp {timestamp_ms}")
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001
                self._context.drop()
                refused.add(place, key, unchanged()[number], error)
            else:
                keep()

    def _whole(self, processor: ArrowProcessor, rows: Rows, given_back: list[Rows], refused: Refusals) -> None:
        self._context.take_batch(numbers(rows, SEQUENCE))
        try:
            given = processor.process(rows)
            made = None if given is None else self._checked(given, rows)
        except NOT_THE_ROWS_FAULT as error:
            error.add_note(f"{self.where}, a batch of {rows.num_rows} rows")
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._context.drop()
            if rows.num_rows > 1:
                half = rows.num_rows // 2
                self._whole(processor, rows.slice(0, half), given_back, refused)
                self._whole(processor, rows.slice(half), given_back, refused)
                return
            refused.add(rows.column(SEQUENCE)[0].as_py(), rows.column(KEY)[0].as_py(), _as_read(rows)[0], error)
            return
        self._context.keep()
        if made is not None:
            given_back.append(made)

    def _checked(self, given: Any, rows: Rows) -> Rows:
        """Convert the table that was returned for `rows` to rows.

        Raises `InvalidTopology` for a table without the node's columns or with a wrong `__seq`, `UnusableValue` for values
        that the columns cannot hold.
        """
        if not isinstance(given, pa.Table):
            raise InvalidTopology(f"{self.where} returned {type(given).__name__}; return a pyarrow.Table or None")
        if not self.node.columns:
            raise InvalidTopology(
                f"{self.where} returned a table, but declares no columns; return None, or declare them in the topology, as in "
                "process(..., emits='column TYPE')"
            )
        schema = value_schema(self.node.columns)
        if missing := {KEY, TIMESTAMP, *schema.names} - set(given.column_names):
            raise InvalidTopology(f"{self.where}: the table has no column {', '.join(sorted(missing))}")
        deleted = given.column(DELETED) if DELETED in given.column_names else pa.repeat(False, given.num_rows)
        try:
            deleted = pc.fill_null(deleted.cast(pa.bool_()), False)
            values = given.select(schema.names).cast(schema)
            keys, times = given.column(KEY).cast(pa.string()), given.column(TIMESTAMP).cast(pa.int64())
        except pa.ArrowNotImplementedError as error:
            raise InvalidTopology(f"{self.where}: the table's columns are not {schema}: {error}") from error
        except pa.ArrowInvalid as error:
            raise UnusableValue(f"{self.where}: the table's columns are not {schema}: {error}") from error
        if times.null_count:
            raise UnusableValue(f"{self.where}: the table has rows without {TIMESTAMP}; each row needs a timestamp")
        for bound in pc.min_max(times).as_py().values() if len(times) else ():
            self._context.check_time(bound)
        self._context.check_keys(keys)
        return with_sequence(rows_of(keys, times, deleted, values), self._positions(given, rows))

    def _positions(self, given: pa.Table, rows: Rows) -> Numbers:
        """Return `__seq` of a returned table, if it can be used; otherwise the position of the last record of `rows`.

        Raises `InvalidTopology` if positions that can be used are needed downstream.
        """
        known = numbers(rows, SEQUENCE)
        if not given.num_rows:
            return np.empty(0, np.int64)
        if SEQUENCE in given.column_names:
            column = given.column(SEQUENCE)
            own: Numbers = column.to_numpy()
            is_known = column.type == pa.int64() and not column.null_count and np.isin(own, known).all()
            if is_known and not (np.diff(own) < 0).any():
                return own
            fault = f"{SEQUENCE} of the table is not that of the batch's records in ascending order"
        else:
            fault = f"the table has no column {SEQUENCE}"
        if self._needs_positions:
            raise InvalidTopology(
                f"{self.where}: {fault}, but {NEEDS_POSITIONS}; return {SEQUENCE} of the record from which the row comes, as "
                f"BIGINT without nulls, and sort the table by it"
            )
        return np.full(given.num_rows, known[-1])


def _as_read(rows: Rows) -> list[Row | None]:
    """Return the rows as they were before user code could change their dictionaries; None for a deleted row."""
    deleted = rows.column(DELETED).to_pylist()
    return [None if gone else row for gone, row in zip(deleted, to_dicts(rows), strict=True)]
