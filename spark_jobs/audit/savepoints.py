"""Compares the savepoint of a store with its folded changelog, for every key that a batch of the cut wrote (docs/audit.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from spark_jobs.audit.views import PipelineView
from tidemark.errors import CopyUnusable, TaskCorrupted
from tidemark.names import TaskId
from tidemark.recovery.evidence import StateCopy
from tidemark.savepoints.copies import SavepointCopies
from tidemark.stores.rocksdb import opened
from tidemark.tasks.task import changelog_of
from tidemark.tasks.values import first_live_segment
from tidemark.topology.plan import StoreKind, StoreSpec, TopologyPlan

_AT_ONCE = 100_000
_SCHEMA = pa.schema([("topic", pa.string()), ("p", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])
_MARKERS = "topic STRING, p INT, batch BIGINT, live_from_ms BIGINT, time_at INT"
# The position, counted in bytes from the end of a key, of the time that decides the key's segment.
_TIME_AT = {StoreKind.WINDOW: 8, StoreKind.SESSION: 16}


@dataclass(frozen=True)
class Saved:
    """The stores of the newest savepoint whose batch is in the cut, copied to `folder` for Spark.

    `unreadable` collects, by task and store, why a store's savepoint could not be read.
    """

    path: PipelineView
    plan: TopologyPlan
    copies: SavepointCopies
    folder: Path
    unreadable: dict[str, str] = field(default_factory=dict)

    def table(self) -> DataFrame | None:
        """Return one row per key that the cut's changelogs wrote up to the savepoint. Blocks.

        Returns None if the cut has no savepoint that can be read.
        """
        checkpoints = []
        for task in self.path.cut.ranges:
            for spec in self.plan.subtopologies[task.subtopology].stores:
                if spec.has_changelog and (copy := self._copy(task, spec)) is not None:
                    try:
                        self._write(task, spec, copy)
                    except (CopyUnusable, TaskCorrupted) as error:
                        self.unreadable[f"{task}/{spec.name}"] = str(error)
                        continue
                    checkpoints.append(self._checkpoint(task, spec, copy))
        if not checkpoints:
            return None
        spark, add = self.path.views.spark, self.path.views.add
        marked = self.path.views.rows("checkpoints", checkpoints, _MARKERS)
        saved = add("saved", spark.read.parquet((self.folder / "rows").as_uri()))
        time_ms = "CAST(conv(hex(substring(r.key, length(r.key) - m.time_at + 1, 8)), 16, -10) AS BIGINT)"
        folded = (
            f"SELECT r.topic, r.p, r.key, max_by(struct(r.value, r.partition, r.offset), r.offset) AS last "
            f"FROM {self.path.records} r JOIN {marked} m ON m.topic = r.topic AND m.p = r.p AND r.batch <= m.batch "
            f"WHERE r.role = 'changelog' AND (m.time_at = 0 OR {time_ms} >= m.live_from_ms) GROUP BY r.topic, r.p, r.key"
        )
        return spark.sql(
            f"SELECT f.topic, f.last.partition AS partition, f.last.offset AS offset, hex(f.key) AS k, "
            f"hex(f.last.value) AS folded, hex(s.value) AS saved, f.last.value <=> s.value AS is_equal "
            f"FROM ({folded}) f LEFT JOIN {saved} s ON s.topic = f.topic AND s.p = f.p AND s.key = f.key"
        )

    def _copy(self, task: TaskId, spec: StoreSpec) -> StateCopy | None:
        run = self.path.cut.ranges[task]
        found = self.copies.find([task])[task].get(spec.name, [])
        first, last = run.records[0].batch, run.records[-1].batch
        return next((copy for copy in found if first <= copy.checkpoint.batch <= last), None)

    def _write(self, task: TaskId, spec: StoreSpec, copy: StateCopy) -> None:
        store = self.folder / "stores" / f"{task}-{spec.name}"
        self.copies.fetch(copy, task, spec.name, store)
        rows = self.folder / "rows"
        rows.mkdir(exist_ok=True)
        topic = changelog_of(self.plan.application_id, spec)
        with pq.ParquetWriter(rows / f"{task}-{spec.name}.parquet", _SCHEMA) as file:
            for keys, values in _items(store):
                columns = [[topic] * len(keys), [task.partition] * len(keys), keys, values]
                file.write_table(pa.table(columns, schema=_SCHEMA))

    def _checkpoint(self, task: TaskId, spec: StoreSpec, copy: StateCopy) -> tuple[str, int, int, int, int]:
        segment = first_live_segment(spec, copy.checkpoint.stream_time_ms)
        # Windows that have expired in the store may still be in its changelog.
        live_from_ms = 0 if segment is None or spec.segment_ms is None else segment * spec.segment_ms
        topic = changelog_of(self.plan.application_id, spec)
        return topic, task.partition, copy.checkpoint.batch, live_from_ms, _TIME_AT.get(spec.kind, 0)


def _items(folder: Path) -> Iterator[tuple[list[bytes], list[bytes]]]:
    with opened(folder) as store:
        for segment in store.segments():
            items = store.items(segment)
            while chunk := list(islice(items, _AT_ONCE)):
                keys, values = zip(*chunk, strict=True)
                yield list(keys), list(values)
