"""Measures the cost of a record in both forms of a processor: `python -m bench.processors`.

It uses RocksDB, but neither Kafka nor Spark. Each form adds the amounts of a batch to a sum per key in one store and emits
the sums: the record form one row per record, the Arrow form one row per key. Only the time of the operator is measured, batch
after batch, and the store is committed after each batch.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.processors import ArrowProcessor, Context, Processor, Record
from tidemark.stores.pending import PendingStore
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.operators.process import ProcessOperator
from tidemark.tasks.rows import Rows, rows_schema
from tidemark.topology.plan import Column, Process, StoreKind, StoreSpec

COLUMNS = (Column("total", "BIGINT"),)
STORE = StoreSpec("totals", StoreKind.KEY_VALUE, None, None, columns=COLUMNS)
MARKER = StoreCheckpoint("bench", "1", "totals", "", 1, 1, {}, 1, 1)
RECORDS, BATCHES = 100_000, 7


class ByRecord(Processor):
    def init(self, context: Context) -> None:
        self.context = context
        self.totals = context.store("totals")

    def process(self, record: Record) -> None:
        known = self.totals.get(record.key) or {"total": 0}
        row = {"total": known["total"] + (record.row or {})["amount"]}
        self.totals.put(record.key, row)
        self.context.forward(record.key, row)


class ByBatch(ArrowProcessor):
    def init(self, context: Context) -> None:
        self.totals = context.store("totals")

    def process(self, rows: pa.Table) -> pa.Table:
        new = rows.group_by("__k").aggregate([("amount", "sum"), ("__ts", "max")])
        old = self.totals.get_many(new["__k"])
        total = pc.add(new["amount_sum"], pc.fill_null(old["total"], 0))
        self.totals.put_many(new["__k"], pa.table({"total": total}))
        return pa.table({"__k": new["__k"], "__ts": new["__ts_max"], "total": total})


def a_batch(keys: int, seed: int) -> Rows:
    """Return `RECORDS` rows over `keys` keys."""
    chosen = np.random.default_rng(seed).integers(0, keys, RECORDS)
    columns = [
        pa.array([f"key-{key:07d}" for key in chosen]),
        pa.array(np.arange(RECORDS)),
        pa.array(np.arange(RECORDS)),
        pa.array(np.zeros(RECORDS, dtype=np.bool_)),
        pa.array(np.ones(RECORDS, dtype=np.int64)),
    ]
    return pa.table(columns, rows_schema([Column("amount", "BIGINT")]))


def microseconds_per_record(processor: str, is_batched: bool, keys: int, folder: Path) -> float:
    """Return the median microseconds per record over all batches but the first, which is the warm-up."""
    operator = ProcessOperator(
        Process("bench", ("in",), COLUMNS, (STORE,), f"{__name__}:{processor}", is_batched, False), 0
    )
    store = RocksStore(folder, write_buffer_bytes=64 << 20)
    times = []
    for number in range(BATCHES):
        rows, pending = a_batch(keys, number), PendingStore(store)
        start = time.perf_counter()
        operator.run([rows], {"totals": pending}, BatchTime(number, number, number))
        times.append(time.perf_counter() - start)
        store.put_many(pending.writes(), MARKER, None)
    store.close()
    return statistics.median(times[1:]) / RECORDS * 1e6


def main(show: Callable[[str], None] = print) -> None:
    """Print the table of `docs/processors.md`."""
    show("| keys per 100 000 records | `Processor` | `ArrowProcessor` |")
    show("|---|---|---|")
    for keys in (1_000, 100_000, 1_000_000):
        cells = []
        for processor, is_batched in (("ByRecord", False), ("ByBatch", True)):
            with tempfile.TemporaryDirectory() as folder:
                cells.append(f"{microseconds_per_record(processor, is_batched, keys, Path(folder) / 'store'):.2f} µs")
        show(f"| of {keys} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
