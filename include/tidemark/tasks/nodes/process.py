"""Runs a user's processor, record by record or an Arrow table at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.errors import InvalidTopology
from tidemark.processors import ArrowProcessor, Processor, Record
from tidemark.stores.pending import PendingStore
from tidemark.tasks.code import load_code
from tidemark.tasks.nodes.context import TaskContext
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.records import rows_of, to_dicts
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, value_schema
from tidemark.topology.plan import Process


class ProcessOperator:
    """An `Operator` over one input of rows, made once per task; the processor's instance lives as long.

    Emits what the processor gives back or forwards, in its order; rows that an `ArrowProcessor` gives back come before
    those that it forwards. What the processor raises goes on, with a note of node and record.
    """

    def __init__(self, node: Process) -> None:
        self.node = node
        self._where = f"{node.node}: {node.processor}"
        made = load_code(node.processor, node.node)()
        wanted = ArrowProcessor if node.is_batched else Processor
        if not isinstance(made, wanted):
            raise InvalidTopology(f"{self._where} is no {wanted.__name__}; derive the class from tidemark.processors")
        self._processor: Processor | ArrowProcessor = made
        self._context = TaskContext(node)
        self._processor.init(self._context)

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """The batch's rows in the order of `__seq`, then the callbacks that are due."""
        rows = inputs[0].sort_by(SEQUENCE)
        self._context.begin(stores, rows.column(KEY).to_pylist(), at)
        given_back = None
        if isinstance(self._processor, Processor):
            self._each(self._processor, rows)
        elif rows.num_rows:
            given_back = self._whole(self._processor, rows)
        self._context.punctuate(at)
        forwarded = self._context.end()
        if given_back is None:
            return Emitted(forwarded)
        both = pa.concat_tables([given_back, forwarded])
        return Emitted(both.set_column(2, SEQUENCE, pa.array(np.arange(both.num_rows))))

    def _each(self, processor: Processor, rows: Rows) -> None:
        columns = (rows.column(name).to_pylist() for name in (KEY, TIMESTAMP, DELETED))
        for key, timestamp_ms, deleted, row in zip(*columns, to_dicts(rows), strict=True):
            self._context.timestamp_ms = timestamp_ms
            try:
                processor.process(Record(key, None if deleted else row, timestamp_ms))
            except Exception as error:
                error.add_note(f"{self._where}, key {key!r}, timestamp {timestamp_ms}, row {row}")
                raise

    def _whole(self, processor: ArrowProcessor, rows: Rows) -> Rows | None:
        try:
            given: Any = processor.process(rows)
        except Exception as error:
            error.add_note(f"{self._where}, a batch of {rows.num_rows} rows")
            raise
        if given is None:
            return None
        if not isinstance(given, pa.Table):
            raise InvalidTopology(f"{self._where} gave {type(given).__name__}; return a pyarrow.Table or None")
        schema = value_schema(self.node.columns)
        if missing := {KEY, TIMESTAMP, *schema.names} - set(given.column_names):
            raise InvalidTopology(f"{self._where}: the table has no column {', '.join(sorted(missing))}")
        deleted = given.column(DELETED) if DELETED in given.column_names else pa.repeat(False, given.num_rows)
        try:
            values = given.select(schema.names).cast(schema)
            keys, times = given.column(KEY).cast(pa.string()), given.column(TIMESTAMP).cast(pa.int64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidTopology(f"{self._where}: the table's columns are not {schema}: {error}") from error
        if keys.null_count or times.null_count:
            raise InvalidTopology(
                f"{self._where}: the table has rows without {KEY} or {TIMESTAMP}; each row needs both"
            )
        return rows_of(keys, times, deleted, values)
