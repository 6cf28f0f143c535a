"""Reads one sub-topology's records between two offsets of each partition: partial results, dead letters, event times."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.avro_values import AvroValues
from spark_jobs.compile import DEAD_LETTERS, TIME_COLUMNS, dead_letter_places_sql, reads_headers, times_sql
from spark_jobs.kafka_reading import KafkaReader
from spark_jobs.prepared import PreparedStatements, SparkRows
from spark_jobs.refused_records import Refusal, Refused, RefusedRecords, Span, offsets_of, with_refused
from spark_jobs.statements import FEW_ROWS, Statements
from tidemark.instance.slices import NO_TIME, Offsets, Slices, Times
from tidemark.instance.source import SourceBatch
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.records_at import records_at
from tidemark.names import TopicPartition
from tidemark.operations.dead_letters.reader import headers_of
from tidemark.settings import Settings
from tidemark.tasks.partials import Partial
from tidemark.tasks.update import DeadLetter
from tidemark.topology.plan import SubTopology

log = logging.getLogger(__name__)

LETTERS_AT_ONCE = 20_000
"""The most dead letters of one batch. It limits memory and the size of a transaction, however many records are bad."""

# If a range ends in transaction markers, the consumer waits this long for more records.
_CLIENT_OPTIONS = {"fetch.max.wait.ms": "10"}

_numbers = itertools.count()


class BoundedReader:
    """Reads with one Spark session, for one thread at a time. `group` is a consumer group id that nothing else uses.

    All methods block for at least one Spark job.
    """

    def __init__(self, spark: SparkSession, settings: Settings, subtopology: SubTopology, group: str) -> None:
        def reader(part: str, *, has_headers: bool) -> KafkaReader:
            return KafkaReader(
                spark, settings, group=f"{group}-{part}", has_headers=has_headers, options=_CLIENT_OPTIONS
            )

        has_headers = reads_headers(subtopology)
        self._records = reader("records", has_headers=has_headers)
        # These read what was read already, so they would take the place of what the consumers of `records` have fetched ahead.
        self._letters = reader("letters", has_headers=has_headers)
        self._times = reader("times", has_headers=False)
        self._parallelism = spark.sparkContext.defaultParallelism
        self._spark = spark
        self._settings = settings
        self._subtopology = subtopology
        self._ahead_ms = settings.max_timestamp_ahead_ms
        # All readers of a session share its views, so the name must be unique.
        self._view = f"bounded_{next(_numbers)}"
        self._values = AvroValues.of(subtopology.sources, settings, spark)
        self._statements = Statements(subtopology, f"{self._view}_records", self._ahead_ms, self._values)
        self._found_letters = PreparedStatements()
        self._empty: dict[int, pa.Table] = {}
        self._refused = RefusedRecords()

    def tables(self, starts: Offsets, ends: Offsets) -> list[pa.Table]:
        """Return one table of partial results per pipeline, as `spark_jobs.compile` describes them.

        A record that Spark refuses is a bad one. Finding it takes many Spark jobs.
        """
        self._refused.forget_before(starts)
        found: dict[int, pa.Table] = {}
        for number, source in enumerate(self._subtopology.sources):
            pipelines = [i for i, pipeline in enumerate(self._subtopology.pipelines) if pipeline.source == number]
            first, last = ({p: of[p] for p in ends if p.topic == source.topic} for of in (starts, ends))
            if records := sum(last.values()) - sum(first.values()):
                # Each task costs some milliseconds, so for few records there are not more than Spark runs at a time.
                most_tasks = self._parallelism if records <= FEW_ROWS else None
                run = partial(self._of_source, pipelines, most_tasks)
                of_source = self._refused.read(first, last, run)
                refused = self._refused.between(first, last)
                found |= {i: with_refused(table, source.topic, refused) for i, table in of_source.items()}
                continue
            missing = [i for i in pipelines if i not in self._empty]
            if missing:
                self._empty |= self._statements.tables(self._records.rows_between(first, first), missing, records=0)
            found |= {i: self._empty[i] for i in pipelines}
        return [found[i] for i in range(len(self._subtopology.pipelines))]

    def _of_source(
        self, pipelines: Sequence[int], most_tasks: int | None, spans: Sequence[Span], is_careful: bool
    ) -> dict[int, pa.Table]:
        rows, records = self._records.rows_in(spans, most_tasks), offsets_of(spans)
        tables = self._statements.tables(rows, pipelines, records, is_careful=is_careful)
        # Records with a schema that is not known yet are bad ones.
        if self._values.topics and bad_records([*tables.values()]) and self._values.learn(rows.frame()):
            # The records that could not be read say nothing about the form of the next ones.
            self._statements.forget_kinds_of_records()
            tables = self._statements.tables(rows, pipelines, records, is_careful=is_careful)
        return tables

    def forget_kinds_of_records(self) -> None:
        """Let no record that was read so far decide how the next ones are read. What was planned is kept."""
        self._statements.forget_kinds_of_records()

    def batches(self, starts: Offsets, ends: Offsets, tables: list[pa.Table]) -> Iterator[SourceBatch]:
        """Yield the records of a range as one batch. `tables` are the partial results of this range.

        A range with more than `LETTERS_AT_ONCE` dead letters is read again in several batches, because all dead letters of a
        batch are in memory and are committed in one transaction.
        """
        bad = bad_records(tables)
        if bad <= LETTERS_AT_ONCE:
            yield self._batch(starts, ends, tables)
            return
        log.warning(
            "%d bad records in one batch, so it is split: subtopology=%d, %d offsets at a time",
            bad,
            self._subtopology.index,
            LETTERS_AT_ONCE,
        )
        slices = Slices(self._subtopology, starts, LETTERS_AT_ONCE, self.times)
        while slices.unread(ends):
            part = slices.next(ends)
            yield self._batch(part.starts, part.ends, self.tables(part.starts, part.ends))

    def _batch(self, starts: Offsets, ends: Offsets, tables: list[pa.Table]) -> SourceBatch:
        bad = bad_records(tables)
        letters = self._dead_letters(starts, ends, tables) if bad else []
        return SourceBatch(self._subtopology.index, starts, ends, tables, letters)

    def _dead_letters(self, starts: Offsets, ends: Offsets, tables: list[pa.Table]) -> list[DeadLetter]:
        """Return the bad records with their headers, in the order of topic, partition and offset.

        Spark returns only their offsets and reasons; the records themselves, however large, are never in its heap. It reads
        only the partitions that have some by the partial results.
        """
        reasons = {place: dict(of_place) for place, of_place in self._refused.between(starts, ends).items()}
        for number, source in enumerate(self._subtopology.sources):
            pipelines = zip(tables, self._subtopology.pipelines, strict=True)
            found = [kind for table, pipeline in pipelines if pipeline.source == number for kind in _bad_kinds(table)]
            places = {TopicPartition(source.topic, partition) for partition, _ in found}
            if not places:
                continue
            first, last = ({place: of[place] for place in places} for of in (starts, ends))
            rows, view = self._letters.rows_in(self._refused.readable(first, last)), f"{self._view}_letters"
            records = self._values.view(view)
            sql = dead_letter_places_sql(
                self._subtopology, source, records, self._ahead_ms, sorted({status for _, status in found})
            )
            table = self._found_letters.run(sql, rows, partial(_on, rows, view))
            for reason, partition, offset in zip(*(column.to_pylist() for column in table.columns), strict=True):
                reasons.setdefault(TopicPartition(source.topic, partition), {})[offset] = Refusal(reason)
        wanted = {place: sorted(reasons[place]) for place in sorted(reasons)}
        client, stalled_after_s = librdkafka_config(self._settings), stalled_after(self._settings)
        return [_letter(reasons, message) for message in records_at(client, wanted, stalled_after_s)]

    def times(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> Times:
        """Return the event times of all records of the spans, by which a task merges its sources."""
        starts, ends = ({p: span[i] for p, span in spans.items()} for i in (0, 1))
        table = self._refused.read(starts, ends, partial(self._times_table, {place.topic for place in spans}))
        *columns, event_times = (table.column(name) for name in TIME_COLUMNS)
        sources, partitions, offsets = (column.to_numpy() for column in columns)
        times = pc.fill_null(event_times, NO_TIME).to_numpy()
        numbers = {source.topic: number for number, source in enumerate(self._subtopology.sources)}
        found: dict[TopicPartition, tuple[np.ndarray, np.ndarray]] = {}
        for place in spans:
            rows = np.flatnonzero((sources == numbers[place.topic]) & (partitions == place.partition))
            rows = rows[np.argsort(offsets[rows], kind="stable")]
            found[place] = offsets[rows], times[rows]
        return found

    def _times_table(self, topics: Collection[str], spans: Sequence[Span], _is_careful: bool) -> pa.Table:
        views: dict[int, str] = {}
        for number, source in enumerate(self._subtopology.sources):
            if source.topic in topics:
                views[number] = view = f"{self._view}_times_{number}"
                own = [span for span in spans if span[0].topic == source.topic]
                self._times.rows_in(own).frame().createOrReplaceTempView(view)
        table = self._times_of(views)
        if table.column(TIME_COLUMNS[-1]).null_count:
            avro = [view for n, view in views.items() if self._subtopology.sources[n].topic in self._values.topics]
            learnt = [self._values.learn(self._spark.table(view)) for view in avro]
            if any(learnt):
                table = self._times_of(views)
        return table

    def _times_of(self, views: Mapping[int, str]) -> pa.Table:
        """Return the event times in the views of sources, which are by number."""
        statements = (
            times_sql(self._subtopology.sources[number], number, self._values.view(view), self._ahead_ms)
            for number, view in views.items()
        )
        return self._spark.sql(" UNION ALL ".join(statements)).toArrow()


def _on(rows: SparkRows, view: str, sql: str) -> DataFrame:
    """Return the result of a statement on a view of these rows, as a plan."""
    rows.frame().createOrReplaceTempView(view)
    return rows.spark.sql(sql)


def bad_records(tables: list[pa.Table]) -> int:
    """Return the number of dead letters in partial results. A record that reaches several pipelines counts once for each."""
    return sum(pc.sum(_bad_rows(table).column(Partial.ROWS)).as_py() or 0 for table in tables)


def _bad_rows(table: pa.Table) -> pa.Table:
    return table.filter(pc.is_in(table.column(Partial.STATUS), pa.array(DEAD_LETTERS, pa.int32())))


def _bad_kinds(table: pa.Table) -> list[tuple[int, int]]:
    """Return each partition that has dead letters with each of their statuses."""
    kinds = _bad_rows(table).group_by([Partial.PARTITION, Partial.STATUS]).aggregate([])
    return [(row[Partial.PARTITION], row[Partial.STATUS]) for row in kinds.to_pylist()]


def _letter(reasons: Refused, message: Message) -> DeadLetter:
    place, offset = TopicPartition(str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0)
    key: Any = message.key()
    value: Any = message.value()
    headers, timestamp_ms = tuple(headers_of(message)), message.timestamp()[1]
    refusal = reasons[place][offset]
    return DeadLetter(
        refusal.reason, place.topic, place.partition, offset, key, value, headers, timestamp_ms, refusal.details
    )
