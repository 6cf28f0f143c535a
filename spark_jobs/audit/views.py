"""Temporary views of one audit, and the path from the source's records to partial results. Each view is created once."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from enum import Enum, auto
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from spark_jobs.audit import recomputation
from spark_jobs.audit.reading import DLQ, SOURCE, AuditRange
from spark_jobs.sql_text import literal
from tidemark.audit.cut import Cut
from tidemark.audit.derivable import Derived
from tidemark.audit.ranges import COMPUTING
from tidemark.tasks.update import REFUSED_BY_SQL, UNPARSABLE
from tidemark.topology.plan import SubTopology

_FEW_ROWS = 20_000
_CLAIMED = ("batch", "commit_time_ms", "rows", "filtered_rows", "bad_rows", "late_rows")
_TIMES = "before_ms BIGINT, stream_time_ms BIGINT"
_BATCHES = ", ".join([*(f"{name} BIGINT" for name in _CLAIMED), _TIMES, "sub INT", "p INT"])
_NODE_BATCHES = f"batch BIGINT, p INT, {_TIMES}"


class Rows(Enum):
    """The kind of a table: `FEW` rows are fetched, `MANY` are computed once and kept, `SCANNED` are read from a kept table."""

    FEW = auto()
    MANY = auto()
    SCANNED = auto()


class Views:
    """The temporary views of one audit. Their names have a unique token, so audits in one session do not collide."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._token = uuid.uuid4().hex[:8]
        self._made: list[str] = []

    def name(self, name: str) -> str:
        """Return the full name of a view. Every character except letters and digits becomes an underscore."""
        return f"audit_{self._token}_" + "".join(c if c.isalnum() else "_" for c in name)

    def add(self, name: str, made: DataFrame | str, *, keep: bool = False) -> str:
        """Create a view if it does not exist, and return its name. With `keep`, its rows are also computed only once."""
        view = self.name(name)
        if view not in self._made:
            frame = self.spark.sql(made) if isinstance(made, str) else made
            (frame.persist() if keep else frame).createOrReplaceTempView(view)
            self._made.append(view)
        return view

    def table(self, name: str, made: DataFrame, rows: Rows) -> DataFrame:
        """Create a view and return it. A few rows become part of the plans of its queries.

        Then a query on it needs no Spark job; each job takes tens of milliseconds.
        """
        if rows is Rows.FEW:
            few = made.limit(_FEW_ROWS + 1).toArrow()
            if few.num_rows <= _FEW_ROWS:
                local = self.spark.createDataFrame(few, made.schema) if few.num_rows else made.limit(0)
                return self.spark.table(self.add(name, local))
        return self.spark.table(self.add(name, made, keep=rows is not Rows.SCANNED))

    def rows(self, name: str, rows: Iterable[tuple[object, ...]], schema: str) -> str:
        """Create a view of local rows and return its name. Spark knows their number, and joins them without a shuffle."""
        listed = list(rows)
        made = cast(StructType, StructType.fromDDL(schema))
        if not listed:
            return self.add(name, self.spark.createDataFrame([], made))
        columns = [
            pa.array(column, to_arrow_type(f.dataType))
            for column, f in zip(zip(*listed, strict=True), made, strict=True)
        ]
        return self.add(name, self.spark.createDataFrame(pa.table(columns, names=made.names), made))

    def release(self, names: Iterable[str]) -> None:
        """Free the kept rows of views that are not read again."""
        for name in names:
            self.spark.table(name).unpersist()

    def close(self) -> None:
        """Drop all views and free their kept rows."""
        for view in reversed(self._made):
            self.spark.table(view).unpersist()
            self.spark.catalog.dropTempView(view)
        self._made.clear()


class PipelineView:
    """The audit's own path from records to partial results. `records` is the view of the records that were read.

    `thinned` are the sources from which compaction may have removed records, and `avro` the topics with values of Avro.
    """

    def __init__(
        self,
        views: Views,
        cut: Cut,
        reading: AuditRange,
        records: DataFrame,
        max_timestamp_ahead_ms: int,
        thinned: frozenset[str] = frozenset(),
        avro: Iterable[str] = (),
    ) -> None:
        self.views = views
        self.cut = cut
        self.reading = reading
        self._gone = reading.lost | thinned
        self._avro = sorted(avro)
        self._ahead_ms = max_timestamp_ahead_ms
        self._judged: list[str] = []
        self.records = views.add("records", records)
        self._refused: str | None = None
        self.batches = views.rows(
            "batches",
            (
                (
                    *(getattr(r, name) for name in _CLAIMED),
                    before.task_ms,
                    r.stream_times.task_ms,
                    r.task.subtopology,
                    r.task.partition,
                )
                for run in cut.ranges.values()
                for r, before in run.stream_times()
                if r.kind in COMPUTING
            ),
            _BATCHES,
        )

    def is_whole(self, topic: str) -> bool:
        """Return whether every record of the cut is still in this source."""
        role = self.reading.roles.get(topic)
        return role is not None and role.role == SOURCE and topic not in self._gone

    def batches_of(self, subtopology: SubTopology) -> str:
        """Return a subquery of the batches of a sub-topology's tasks with the tasks' stream times."""
        return f"(SELECT * FROM {self.batches} WHERE sub = {subtopology.index})"

    def batches_at(self, subtopology: SubTopology, store: str) -> str:
        """Return a view of the batches of a sub-topology's tasks with the stream times of the node that keeps `store`."""
        return self.views.rows(
            f"batches_{subtopology.index}_{store}",
            (
                (r.batch, r.task.partition, before.node(store), r.stream_times.node(store))
                for run in self.cut.ranges.values()
                for r, before in run.stream_times()
                if r.kind in COMPUTING and r.task.subtopology == subtopology.index
            ),
            _NODE_BATCHES,
        )

    def judged(self, subtopology: SubTopology, topic: str) -> str:
        """Return a view of every record of a source, parsed and checked."""
        source = next(s for s in subtopology.sources if s.topic == topic)
        # Kept, because accounts, dead letters and results all use it, and parsing is the slowest step.
        kept = self.views.add(
            f"judged_{topic}",
            recomputation.judged_sql(source, self.records, self._refused_places(), self._ahead_ms),
            keep=True,
        )
        self._judged.append(kept)
        return self.views.add(f"placed_{topic}", recomputation.placed_sql(source, kept))

    def _refused_places(self) -> str:
        """Return a view of the records of which only their dead letters say that the stream could not read them.

        Its SQL has raised for them, or the registry had no schema for them at that time.
        """
        if self._refused is None:
            believed = [f"of_reason = {literal(REFUSED_BY_SQL)}"]
            if self._avro:
                topics = ", ".join(map(literal, self._avro))
                believed.append(f"of_reason = {literal(UNPARSABLE)} AND of_topic IN ({topics})")
            sql = (
                f"SELECT DISTINCT of_topic, of_partition, of_offset FROM {self.records} "
                f"WHERE role = '{DLQ}' AND ({' OR '.join(believed)}) AND of_offset IS NOT NULL"
            )
            self.views.table("refused", self.views.spark.sql(sql), Rows.FEW)
            self._refused = self.views.name("refused")
        return self._refused

    def release_judged(self) -> None:
        """Free the parsed records of the sources, once only their sums are needed."""
        self.views.release(self._judged)

    def reaching(self, subtopology: SubTopology, number: int) -> str:
        """Return a view of the records that reach the end of a pipeline."""
        pipeline = subtopology.pipelines[number]
        judged = self.judged(subtopology, subtopology.sources[pipeline.source].topic)
        sql = recomputation.pipeline_records_sql(subtopology, pipeline, judged)
        return self.views.add(f"reaching_{subtopology.index}_{number}", sql)

    def in_time(self, d: Derived) -> str:
        """Return a view of the partial results of an aggregation, with `is_late`."""
        partials = self.views.add(
            f"partials_{d.name}", recomputation.partials_sql(d.aggregation, self.reaching(d.subtopology, d.number))
        )
        batches = self.batches_at(d.subtopology, d.aggregation.store.name)
        sql = recomputation.in_time_sql(d.aggregation, partials, batches)
        return self.views.add(f"in_time_{d.name}", sql, keep=True)
