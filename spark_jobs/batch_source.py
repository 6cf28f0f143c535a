"""Structured Streaming as the source of batches: stateless, one query per sub-topology, one batch computed ahead.

Spark's checkpoint carries nothing from one start to the next: each start has a fresh folder and explicit offsets. Its
offset log tells the batch's end offsets, which the data cannot (markers and gaps have offsets too).
"""

from __future__ import annotations

import itertools
import json
import logging
import queue
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.compile import branch_sql, dead_letters_sql
from spark_jobs.kafka_reading import as_they_come, assignment, offsets_json, read_between
from tidemark.errors import OutcomeUnknown
from tidemark.instance.source import SourceBatch
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.tasks.task import Status
from tidemark.tasks.update import DeadLetter
from tidemark.topology.plan import SubTopology, TopologyPlan

log = logging.getLogger(__name__)

_WAIT_S = 0.2
# Spark shares its bound out among partitions and rounds down.
_FULL_SHARE = 0.9
# Of a read that is made once, the records of the last poll stay in memory for a while.
_WITH_HEADERS = {
    "includeHeaders": "true",
    "kafka.max.poll.records": "500",
    "kafka.max.partition.fetch.bytes": str(1 << 20),
}


class SparkBatchSource:
    """Implements `BatchSource`.

    `folder` is the instance's alone; what a killed process left in it is taken away.
    """

    def __init__(self, spark: SparkSession, plan: TopologyPlan, settings: Settings, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._starts = itertools.count()
        self._spark = spark
        self._plan = plan
        self._settings = settings
        self._queries: list[StreamingQuery] = []
        self._run: _Run | None = None
        # The first query of a JVM takes a second to start: meanwhile the group settles and stores are restored.
        self._warming_up = threading.Thread(target=self._warm_up, name="warm-up")
        self._warming_up.start()

    def _warm_up(self) -> None:
        """Start and end a query that reads nothing. Whatever fails here fails again, and is told, when it counts."""
        folder = self._folder / "warm-up"
        lead = self._plan.subtopologies[0].lead.topic
        try:
            latest = {"assign": assignment([TopicPartition(lead, 0)]), "startingOffsets": "latest"}
            stream = as_they_come(self._spark, self._settings, latest)
            stream.writeStream.foreachBatch(_nothing).option("checkpointLocation", folder.as_uri()).start().stop()
        except (Py4JError, PySparkException, OSError) as error:
            log.info("the warm-up of Spark failed: %s", error)
        shutil.rmtree(folder, ignore_errors=True)

    def start(self, next_offsets: Mapping[TopicPartition, int], max_batch_records: int) -> None:
        self.stop()
        self._warming_up.join()
        run = self._run = _Run(self._folder / str(next(self._starts)))
        for subtopology in self._plan.subtopologies:
            offsets = {p: offset for p, offset in next_offsets.items() if p.topic in subtopology.source_topics}
            if offsets:
                self._queries.append(self._start_query(run, subtopology, offsets, max_batch_records))

    def _start_query(
        self, run: _Run, subtopology: SubTopology, offsets: Mapping[TopicPartition, int], max_batch_records: int
    ) -> StreamingQuery:
        wanted = {
            "assign": assignment(offsets),
            "startingOffsets": offsets_json(offsets),
            "maxOffsetsPerTrigger": str(max_batch_records),
        }
        stream = as_they_come(self._spark, self._settings, wanted)
        checkpoint = run.folder / str(subtopology.index)
        handler = _Handler(run, subtopology, dict(offsets), checkpoint, self._settings, max_batch_records)
        return (
            stream.writeStream.foreachBatch(handler)
            .option("checkpointLocation", checkpoint.as_uri())
            # As soon as there is something: the handler keeps the commit interval, and only for batches that are not full.
            .trigger(processingTime="0 seconds")
            .start()
        )

    def next(self, timeout_s: float) -> SourceBatch | None:
        run = self._run
        if run is None:
            return None
        try:
            return run.batches.get(timeout=timeout_s)
        except queue.Empty:
            self._check()
            return None

    def _check(self) -> None:
        try:
            for query in self._queries:
                if not query.isActive:
                    raise OutcomeUnknown(f"the Spark query ended: {query.exception()}")
        except Py4JError as error:
            raise OutcomeUnknown(f"Spark's JVM is gone: {error}") from error

    def stop(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        run.stopped.set()
        for query in self._queries:
            try:
                query.stop()
            except (Py4JError, PySparkException, OSError) as error:
                log.warning("stopping a query: %s", error)
        self._queries.clear()
        shutil.rmtree(run.folder, ignore_errors=True)


def _nothing(_frame: DataFrame, _batch_id: int) -> None:
    """A handler of no batches."""


class _Run:
    """One start of the queries: what they share until it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.batches: queue.Queue[SourceBatch] = queue.Queue(maxsize=1)
        self.stopped = threading.Event()

    def hand_over(self, batch: SourceBatch) -> None:
        """Wait for the task loop to take the batch before; give up when stopped."""
        while not self.stopped.is_set():
            try:
                self.batches.put(batch, timeout=_WAIT_S)
                return
            except queue.Full:
                continue


class _Handler:
    """What foreachBatch calls: two actions at the most, the second only when there were bad records."""

    def __init__(
        self,
        run: _Run,
        subtopology: SubTopology,
        offsets: dict[TopicPartition, int],
        checkpoint: Path,
        settings: Settings,
        max_batch_records: int,
    ) -> None:
        self._run = run
        self._subtopology = subtopology
        self._next = offsets
        self._checkpoint = checkpoint
        self._full_batch_offsets = _FULL_SHARE * max_batch_records
        self._commit_interval_s = settings.commit_interval_ms / 1000
        self._settings = settings
        self._view = f"batch_{subtopology.index}"
        ahead_ms = settings.max_timestamp_ahead_ms
        self._branches = [branch_sql(subtopology, branch, self._view, ahead_ms) for branch in subtopology.branches]
        self._letters_view = f"dead_letters_{subtopology.index}"
        self._dead_letters = [dead_letters_sql(source, self._letters_view, ahead_ms) for source in subtopology.sources]

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Compute and hand over; where the stream is not behind, keep the commit interval before the next batch."""
        if self._run.stopped.is_set():
            return
        started = time.monotonic()
        try:
            offsets = self._hand_over(frame, batch_id)
            if offsets < self._full_batch_offsets:
                self._run.stopped.wait(max(0.0, started + self._commit_interval_s - time.monotonic()))
        except Exception:
            # Spark reports the failure through the query; while stopping it is of no interest to anybody.
            if not self._run.stopped.is_set():
                log.exception("batch %d of sub-topology %d failed", batch_id, self._subtopology.index)
                raise

    def _hand_over(self, frame: DataFrame, batch_id: int) -> int:
        """Returns how many offsets the batch spans."""
        started = time.monotonic()
        ends = self._end_offsets(batch_id)
        session = frame.sparkSession
        frame.createOrReplaceTempView(self._view)
        several = len(self._branches) > 1
        if several:
            frame.persist()
        tables = [session.sql(sql).toArrow() for sql in self._branches]
        letters = self._read_dead_letters(session, ends) if any(map(_bad_rows, tables)) else []
        if several:
            frame.unpersist()
        batch = SourceBatch(
            subtopology=self._subtopology.index,
            starts=self._next,
            ends=ends,
            branches=tables,
            dead_letters=letters,
        )
        spanned = sum(end - self._next[p] for p, end in ends.items())
        log.info(
            "batch: subtopology=%d id=%d offsets=%d partials=%d seconds=%.3f",
            self._subtopology.index, batch_id, spanned, sum(t.num_rows for t in tables), time.monotonic() - started,
        )  # fmt: skip
        self._next = ends
        self._run.hand_over(batch)
        return spanned

    def _end_offsets(self, batch_id: int) -> dict[TopicPartition, int]:
        """From Spark's offset log: version, batch metadata, then a line of JSON per source."""
        lines = (self._checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        logged = json.loads(lines[-1])
        return {TopicPartition(t, int(p)): int(end) for t, ends in logged.items() for p, end in ends.items()}

    def _read_dead_letters(self, session: SparkSession, ends: Mapping[TopicPartition, int]) -> list[DeadLetter]:
        """Read the batch once more, now with headers, which the stream does without: they cost time per record."""
        frame = read_between(session, self._settings, {p: self._next[p] for p in ends}, ends, _WITH_HEADERS)
        frame.createOrReplaceTempView(self._letters_view)
        rows = [row for sql in self._dead_letters for row in session.sql(sql).collect()]
        return [
            DeadLetter(
                reason=row.reason,
                topic=row.topic,
                partition=row.p,
                offset=row.record_offset,
                key=None if row.key is None else bytes(row.key),
                value=None if row.value is None else bytes(row.value),
                headers=tuple((h.key, bytes(h.value or b"")) for h in row.headers or ()),
            )
            for row in sorted(rows, key=lambda row: (row.topic, row.p, row.record_offset))
        ]


def _bad_rows(table: pa.Table) -> bool:
    return bool(pc.any(pc.equal(table.column("status"), Status.BAD)).as_py())
