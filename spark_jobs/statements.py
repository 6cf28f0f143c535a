"""Computes the partial results of a sub-topology's records with the cheapest statements that can read them.

A statement for canonical records alone is one stage of generated code. A second statement reads the records that the first one
leaves unread, and runs only for batches that have such records. If many records of a source are not canonical, one statement
reads all of them for the next batches (`docs/decisions/0020-one-stage-for-canonical-records.md`).

Spark groups the records of each partition by themselves, so it needs no shuffle. For a small batch even that takes longer than
its work, and where nearly every record has a key and window of its own there is nothing to group. Such batches are read without
grouping, and Arrow merges the partial results of each key and window (`docs/decisions/0025-grouping-in-arrow.md`).

If the results of an aggregation are merged with records of other sources, one more statement reads the event times of its
source: the place of a result depends on the times of all records before it (`Partial.NEWEST`).

A statement with a small result is planned once and then run again (see `prepared`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from spark_jobs import canonical
from spark_jobs.avro_values import AvroValues
from spark_jobs.compile import MERGEABLE, TIME_COLUMNS, has_row_per_record, pipeline_sql, times_sql, unread_sql
from spark_jobs.prepared import PreparedStatements, SparkRows
from spark_jobs.sql_text import literal
from tidemark.stores.layout import slots_of
from tidemark.tasks.partials import Partial, Status, with_newest
from tidemark.topology.paths import RecordPaths
from tidemark.topology.plan import Aggregation, Fold, Number, Source, SubTopology, Window

log = logging.getLogger(__name__)

_MUCH = 0.1
"""If a larger share of the records is unread, one statement reads all records of the source."""

_TRY_AGAIN_BATCHES = 100
"""After this many batches, the statements for canonical records are tried again."""

_MERGED = {fold: fold.value if fold in (Fold.MIN, Fold.MAX) else "sum" for fold in MERGEABLE}
"""The function that merges two partial results of one key. Sketches and lists cannot be merged here."""

FEW_ROWS = 20_000
"""Spark does not group a batch that cannot have more rows, which are the records times the windows of each."""

_MANY_GROUPS = 0.5
"""After a larger batch in which the groups were a larger share of the rows, Spark does not group the next one."""


class Statements:
    """Runs the statements of one sub-topology. Not thread-safe; `tables` blocks for at least one Spark job."""

    def __init__(
        self, subtopology: SubTopology, view: str, max_timestamp_ahead_ms: int, values: AvroValues | None = None
    ) -> None:
        """`values` are those of sources of Avro. Without it, all values are JSON."""
        self._subtopology = subtopology
        self._values = values
        self._view = view
        self._ahead_ms = max_timestamp_ahead_ms
        paths = RecordPaths(subtopology)
        self._merged = {
            number
            for number, pipeline in enumerate(subtopology.pipelines)
            if pipeline.aggregation is not None and paths.are_merged(pipeline.aggregation)
        }
        """The numbers of the pipelines whose results are merged with records of other sources."""
        self._waits: dict[int, int] = {}
        """For each source that can be canonical, the number of batches until the statements for canonical records are tried."""
        self._has_many_groups: set[int] = set()
        """The numbers of the pipelines whose last large batch had many groups."""
        self.forget_kinds_of_records()
        self._prepared = PreparedStatements()

    def forget_kinds_of_records(self) -> None:
        """Choose among the statements for the next records as if no others had been read. Planned statements are kept."""
        self._waits = {
            n: 0 for n, source in enumerate(self._subtopology.sources) if canonical.is_possible(source.schema)
        }
        self._has_many_groups.clear()

    def tables(
        self, rows: SparkRows, pipelines: Sequence[int], records: int, *, is_careful: bool = False
    ) -> dict[int, pa.Table]:
        """Return the tables of pipelines by their numbers, in the order given. `rows` are as Spark's Kafka source gives them.

        They are at most `records` records, and have the same columns at each call. If it `is_careful`, these and the next
        batches are read with the statements for all records. They select from no record that was filtered, and read each
        record's own values, whatever its form is.
        """
        read = _Read(rows, self._view, records, is_shared=len(pipelines) > 1 or not self._merged.isdisjoint(pipelines))
        try:
            found: dict[int, pa.Table] = {}
            for source in sorted({self._subtopology.pipelines[number].source for number in pipelines}):
                own = [number for number in pipelines if self._subtopology.pipelines[number].source == source]
                if is_careful and source in self._waits:
                    self._waits[source] = _TRY_AGAIN_BATCHES
                found |= self._with_newest(read, source, self._of_source(read, source, own))
            return {number: found[number] for number in pipelines}
        finally:
            read.end()

    def _of_source(self, read: _Read, source: int, pipelines: Sequence[int]) -> dict[int, pa.Table]:
        waits = self._waits.get(source)
        if waits is None or waits > 0:
            if waits:
                self._waits[source] = waits - 1
            return {number: self._grouped(read, number) for number in pipelines}
        tables = {number: self._grouped(read, number, canonical_only=True) for number in pipelines}
        all_records, unread = _unread(tables[pipelines[0]])
        if not unread:
            return tables
        if unread > all_records * _MUCH:
            log.info(
                "%d of %d records are not in the usual form: subtopology=%d source=%s, the next %d batches use the statement "
                "for all records",
                unread, all_records, self._subtopology.index, self._subtopology.sources[source].topic, _TRY_AGAIN_BATCHES,
            )  # fmt: skip
            self._waits[source] = _TRY_AGAIN_BATCHES
        return {number: self._completed(read, number, table) for number, table in tables.items()}

    def _with_newest(self, read: _Read, source: int, tables: dict[int, pa.Table]) -> dict[int, pa.Table]:
        """Add `Partial.NEWEST` to the partial results of a source that are merged with records of others. Blocks."""
        merged = self._merged.intersection(tables)
        if not merged:
            return tables
        of_source = self._subtopology.sources[source]
        sql = times_sql(of_source, source, self._records_of(of_source), self._ahead_ms)
        known = self._run(read, sql, is_small=read.records <= FEW_ROWS)
        columns = dict(zip(TIME_COLUMNS, known.columns, strict=True))
        times = pa.table(
            {
                Partial.PARTITION: columns[Partial.PARTITION],
                Partial.RECORD_OFFSET: columns[Partial.RECORD_OFFSET],
                Partial.MAX_TS: columns[TIME_COLUMNS[-1]],
            }
        ).drop_null()
        return {n: with_newest(table, times) if n in merged else table for n, table in tables.items()}

    def _grouped(self, read: _Read, number: int, *, canonical_only: bool = False) -> pa.Table:
        """Run the statement of one pipeline. Spark or Arrow groups its partial results, whichever is cheaper."""
        aggregation = self._subtopology.pipelines[number].aggregation
        has_few_rows = self._has_few_rows(read, number)
        if aggregation is None or has_row_per_record(aggregation) or not _is_mergeable(aggregation):
            return self._run(read, self._sql(number, canonical_only=canonical_only), is_small=has_few_rows)
        is_grouped = not has_few_rows and number not in self._has_many_groups
        sql = self._sql(number, canonical_only=canonical_only, is_grouped=is_grouped)
        table = self._run(read, sql, is_small=is_grouped or has_few_rows)
        rows = pc.sum(table.column(Partial.ROWS)).as_py() or 0
        if not is_grouped:
            table = _merged(table, aggregation)
        if not has_few_rows:
            is_many = table.num_rows > rows * _MANY_GROUPS
            (self._has_many_groups.add if is_many else self._has_many_groups.discard)(number)
        return table

    def _completed(self, read: _Read, number: int, table: pa.Table) -> pa.Table:
        """Add the partial results of the unread records to a table of those of the canonical ones."""
        pipeline = self._subtopology.pipelines[number]
        aggregation, has_few_rows = pipeline.aggregation, self._has_few_rows(read, number)
        if aggregation is not None and not _is_mergeable(aggregation):
            return self._run(read, self._sql(number), is_small=has_few_rows)
        source = self._subtopology.sources[pipeline.source]
        others = f"({unread_sql(source, self._records_of(source), self._ahead_ms, has_headers=read.has_headers)})"
        has_row_each = aggregation is None or has_row_per_record(aggregation)
        is_grouped = has_row_each or not has_few_rows
        sql = pipeline_sql(self._subtopology, pipeline, others, self._ahead_ms, is_grouped=is_grouped)
        rest = self._run(read, sql, is_small=has_few_rows)
        known = table.filter(pc.not_equal(table.column(Partial.STATUS), Status.UNREAD))
        both = pa.concat_tables([known, rest.select(known.column_names).cast(known.schema)])
        return both if aggregation is None or has_row_each else _merged(both, aggregation)

    @property
    def _records(self) -> str:
        """The view of the records, with JSON values."""
        return self._view if self._values is None else self._values.view(self._view)

    def _records_of(self, source: Source) -> str:
        return f"(SELECT * FROM {self._records} WHERE topic = {literal(source.topic)})"

    def _has_few_rows(self, read: _Read, number: int) -> bool:
        """Whether the statement of a pipeline has few rows, even if nothing is grouped."""
        aggregation = self._subtopology.pipelines[number].aggregation
        return read.records * (1 if aggregation is None else _windows_of_a_record(aggregation)) <= FEW_ROWS

    def _sql(self, number: int, *, canonical_only: bool = False, is_grouped: bool = True) -> str:
        return pipeline_sql(
            self._subtopology,
            self._subtopology.pipelines[number],
            self._records,
            self._ahead_ms,
            canonical_only=canonical_only,
            is_grouped=is_grouped,
        )

    def _run(self, read: _Read, sql: str, *, is_small: bool) -> pa.Table:
        """Return the result of a statement. If it is small, the statement is kept as it was planned.

        Spark sends a large result partition by partition. A statement that was kept sends all of it at once.
        """
        if is_small and not read.is_shared:
            return self._prepared.run(sql, read.rows, read.query)
        return read.query(sql).toArrow()


class _Read:
    """The rows that one call reads, and a view of them for statements that are not prepared."""

    def __init__(self, rows: SparkRows, view: str, records: int, *, is_shared: bool) -> None:
        """`is_shared`: several statements read the rows, so Spark keeps them until the end if they are many."""
        self.rows = rows
        self.records = records
        self._view = view
        # Keeping few records for the next statement takes longer than reading them from Kafka again.
        self.is_shared = is_shared and records > FEW_ROWS
        self._frame: DataFrame | None = None

    @property
    def has_headers(self) -> bool:
        """Whether the rows have the column `headers`."""
        return "headers" in list(self.rows.columns.fieldNames())

    def query(self, sql: str) -> DataFrame:
        """Return the result of a statement on the view, as a plan."""
        if self._frame is None:
            self._frame = self.rows.frame()
            if self.is_shared:
                self._frame.persist()
            self._frame.createOrReplaceTempView(self._view)
        return self.rows.spark.sql(sql)

    def end(self) -> None:
        """Forget rows that were kept."""
        if self._frame is not None and self.is_shared:
            self._frame.unpersist()


def _unread(table: pa.Table) -> tuple[int, int]:
    """Return the number of records in a table, and how many of them are unread."""
    rows = table.column(Partial.ROWS)
    unread = rows.filter(pc.equal(table.column(Partial.STATUS), Status.UNREAD))
    return pc.sum(rows).as_py() or 0, pc.sum(unread).as_py() or 0


def _is_mergeable(aggregation: Aggregation) -> bool:
    # For Spark and for stores NaN is the largest number; Arrow's maximum ignores it.
    return has_row_per_record(aggregation) or all(
        each.fold in MERGEABLE and (each.fold, each.number) != (Fold.MAX, Number.DOUBLE)
        for each in aggregation.aggregates
    )


def _windows_of_a_record(aggregation: Aggregation) -> int:
    """Return the largest number of windows that contain one record."""
    window = aggregation.window
    return -(-window.size_ms // window.advance_ms) if isinstance(window, Window) else 1


def _merged(table: pa.Table, aggregation: Aggregation) -> pa.Table:
    """Merge the rows that have the same partition, status, key and window. Sums add in the rows' order."""
    groups = (Partial.PARTITION, Partial.STATUS, Partial.KEY, Partial.WINDOW)
    keys = [name for name in groups if name in table.column_names]
    how = {Partial.ROWS: "sum", Partial.MAX_TS: "max", Partial.LAST_OFFSET: "max"}
    how |= {slot.column: _MERGED[each.fold] for each in aggregation.aggregates for slot in slots_of((each,))}
    # With threads, a sum of doubles would depend on their timing.
    found = table.group_by(keys, use_threads=False).aggregate(list(how.items()))
    names = {**{name: name for name in keys}, **{name: f"{name}_{function}" for name, function in how.items()}}
    merged = pa.table({name: found.column(names[name]) for name in table.column_names})
    # Spark says of some columns that they are never null, depending on the statement.
    return merged.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
