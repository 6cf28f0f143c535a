"""The gear for a sub-topology that has caught up: Structured Streaming, in which each batch has all available records.

Spark's checkpoint carries nothing from one start to the next: each start has a new folder and explicit offsets. The end
offsets of a batch are read from Spark's offset log, because the records do not show them (markers and gaps have offsets,
too).
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import threading
import time
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.bounded_read import BoundedReader
from spark_jobs.compile import read_options
from spark_jobs.kafka_reading import as_they_come, assignment, offsets_json
from tidemark.errors import OutcomeUnknown
from tidemark.instance.hand_over import HandOver
from tidemark.instance.slices import Offsets
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.topology.plan import SubTopology

log = logging.getLogger(__name__)

_WAIT_S = 0.2

_numbers = itertools.count()


class LiveGear:
    """Runs one streaming query at a time. Its checkpoints are in `folder`."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        subtopology: SubTopology,
        reader: BoundedReader,
        out: HandOver,
        folder: Path,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._subtopology = subtopology
        self._reader = reader
        self._out = out
        self._folder = folder

    def run(self, starts: Offsets, size: BatchSize) -> Offsets:
        """Read from `starts` until more has arrived than fits into one batch, and return the next offsets. Blocks.

        Raises `OutcomeUnknown` if the query ends by itself.
        """
        create_checkpoint = self._folder / f"{self._subtopology.index}-{next(_numbers)}"
        handler = _Handler(self._settings, self._subtopology, self._reader, self._out, starts, size, create_checkpoint)
        # The read has no limit: a batch that is too large is not computed at all.
        wanted = {
            "assign": assignment(starts),
            "startingOffsets": offsets_json(starts),
            **read_options(self._subtopology),
        }
        query = (
            as_they_come(self._spark, self._settings, wanted)
            .writeStream.foreachBatch(handler)
            .option("checkpointLocation", create_checkpoint.as_uri())
            # A batch starts as soon as there are records; the handler keeps the commit interval.
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            while not self._out.stopped.is_set() and not handler.is_overtaken.wait(_WAIT_S):
                if not query.isActive:
                    raise OutcomeUnknown(f"the Spark query ended by itself: {query.exception()}")
        finally:
            try:
                query.stop()
            except (Py4JError, PySparkException, OSError) as error:
                log.warning("failed to stop the Spark query: %s", error)
            shutil.rmtree(create_checkpoint, ignore_errors=True)
        return handler.next_offsets


class _Handler:
    """The handler of `foreachBatch`. It runs at most two actions per source, the second one only for bad records."""

    def __init__(
        self,
        settings: Settings,
        subtopology: SubTopology,
        reader: BoundedReader,
        out: HandOver,
        starts: Offsets,
        size: BatchSize,
        create_checkpoint: Path,
    ) -> None:
        self.is_overtaken = threading.Event()
        self.next_offsets = starts
        self._reader = reader
        self._out = out
        self._checkpoint = create_checkpoint
        self._size = size
        self._commit_interval_s = settings.commit_interval_ms / 1000
        self._index = subtopology.index
        self._pipelines = len(subtopology.pipelines)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Compute a batch and hand it over, then wait for the commit interval. A batch that is too large ends this gear."""
        if self._out.stopped.is_set() or self.is_overtaken.is_set():
            return
        started = time.monotonic()
        try:
            ends = self._end_offsets(batch_id)
            spanned = sum(end - self.next_offsets[p] for p, end in ends.items())
            if spanned > self._size.records:
                # Split by offsets, it would have more of one source than of another; the catch-up gear splits it by time.
                log.info("fell behind: subtopology=%d offsets=%d", self._index, spanned)
                self.is_overtaken.set()
                return
            self._hand_over(frame, ends, spanned)
            self._out.stopped.wait(max(0.0, started + self._commit_interval_s - time.monotonic()))
        except Exception:
            # Spark reports the failure through the query. While stopping, a failure does not matter.
            if not self._out.stopped.is_set():
                log.exception("batch %d of sub-topology %d failed", batch_id, self._index)
                raise

    def _hand_over(self, frame: DataFrame, ends: Offsets, spanned: int) -> None:
        started = time.monotonic()
        tables = list(self._reader.statements.tables(frame, range(self._pipelines), spanned).values())
        # Dead letters are read again with their headers, which the stream does not read.
        for batch in self._reader.batches(self.next_offsets, ends, tables):
            log.info(
                "batch: subtopology=%d gear=live offsets=%d partials=%d seconds=%.3f",
                self._index, spanned, sum(t.num_rows for t in batch.pipelines), time.monotonic() - started,
            )  # fmt: skip
            self.next_offsets = batch.ends
            self._out.put(batch)
            if self._out.stopped.is_set():
                return

    def _end_offsets(self, batch_id: int) -> dict[TopicPartition, int]:
        """Read the end offsets of a batch from Spark's offset log: version, batch metadata, then one JSON line per source."""
        lines = (self._checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        logged = json.loads(lines[-1])
        return {TopicPartition(t, int(p)): int(end) for t, ends in logged.items() for p, end in ends.items()}
