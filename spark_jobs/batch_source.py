"""The source of batches through Spark: one thread per sub-topology, which computes one batch ahead.

Each batch is a bounded read between two offsets of each partition (`docs/decisions/0027-one-gear.md`).
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping

from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.bounded_read import BoundedReader
from spark_jobs.sliced_read import SlicedReader
from spark_jobs.table_reader import read_table
from tidemark.errors import BatchTooLarge, OutcomeUnknown, SparkEnded
from tidemark.instance.hand_over import HandOver
from tidemark.instance.slices import Offsets
from tidemark.instance.source import SourceBatch
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TopicPartition
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.topology.plan import StoreSpec, SubTopology, TopologyPlan

log = logging.getLogger(__name__)

_STOP_S = 60.0
_TOO_LARGE = (
    "spark.driver.maxResultSize", "java.lang.OutOfMemoryError", "OutOfMemoryException", "Failure allocating buffer",
)  # fmt: skip
_SHUT_DOWN = "SparkContext was shut down"
_TOLD_CHARACTERS = 500
_WARM_UP_OFFSETS = 100
_WARM_UP_S = 20.0


class SparkBatchSource:
    """Implements `BatchSource` for instance number `instance`."""

    def __init__(self, spark: SparkSession, plan: TopologyPlan, settings: Settings, instance: int) -> None:
        self._spark = spark
        self._plan = plan
        self._settings = settings
        self._group = f"{plan.application_id}-{instance}"
        self._readers = [BoundedReader(spark, settings, subtopology, self._group) for subtopology in plan.subtopologies]
        self._ends = EndOffsets(AdminClient(librdkafka_config(settings)), settings.broker_timeout_ms / 1000)
        self._out: HandOver | None = None
        self._feeders: list[_Feeder] = []
        self._warming_up = _WarmUp(spark, self._warm_up, f"{self._group}-warm-up")
        self._has_begun = False
        self._beginning = threading.Lock()

    def warm_up(self) -> None:
        with self._beginning:
            # Otherwise a batch may be read at the same time, by the same reader.
            if not self._has_begun:
                self._warming_up.start()

    def _warm_up(self) -> None:
        """Read the last records of the first sub-topology. A failure is only logged: the first batch would fail, too."""
        try:
            places = [TopicPartition(topic, 0) for topic in self._plan.subtopologies[0].source_topics]
            first, ends = self._ends.beginnings(places), self._ends.stable(places)
            starts = {place: min(end, max(first[place], end - _WARM_UP_OFFSETS)) for place, end in ends.items()}
            # The reader keeps the statements that it has planned.
            self._readers[0].tables(starts, ends)
        except (OutcomeUnknown, Py4JError, PySparkException, OSError) as error:
            log.info("the warm-up of Spark failed: %s", error)
        finally:
            self._readers[0].forget_kinds_of_records()

    def start(self, next_offsets: Mapping[TopicPartition, int], size: BatchSize) -> None:
        self.stop()
        with self._beginning:
            self._has_begun = True
        out = self._out = HandOver()
        for subtopology, reader in zip(self._plan.subtopologies, self._readers, strict=True):
            starts = {p: offset for p, offset in next_offsets.items() if p.topic in subtopology.source_topics}
            if not starts:
                continue
            sliced = SlicedReader(self._settings, subtopology, reader, self._ends, out)
            feeder = _Feeder(self._spark, subtopology, sliced, out, starts, size, self._warming_up)
            self._feeders.append(feeder)
            feeder.start()

    def next(self, timeout_s: float) -> SourceBatch | None:
        return None if self._out is None else self._out.take(timeout_s)

    def stop(self) -> None:
        out, self._out = self._out, None
        if out is None:
            return
        out.stopped.set()
        for feeder in self._feeders:
            feeder.cancel()
        for feeder in self._feeders:
            feeder.join(_STOP_S)
        alive = [feeder.name for feeder in self._feeders if feeder.is_alive()]
        self._feeders.clear()
        if alive:
            # The next start would use the same readers as that thread.
            raise OutcomeUnknown(
                f"failed to stop reading with Spark within {_STOP_S:.0f} s (thread {alive[0]}); start the instance again"
            )

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        return read_table(self._spark, self._plan, self._settings, spec, partition, start, end, should_continue)


def _explained(error: Exception, spark: SparkSession) -> Exception:
    """Return a `BatchTooLarge` if a smaller batch may help, a `SparkEnded` if the JVM is gone, else the error itself."""
    try:
        said = str(error)
        explained = _explanation(said, spark)
    except (Py4JError, OSError) as gone:
        # The text of an error is in the JVM, too.
        explained = SparkEnded(f"the JVM of Spark has ended while it computed a batch ({gone}); its log says why")
    if explained is None:
        return error
    explained.__cause__ = error
    return explained


def _explanation(said: str, spark: SparkSession) -> BatchTooLarge | None:
    if any(words in said for words in _TOO_LARGE):
        return BatchTooLarge(f"Spark cannot compute a batch of this size: {said[:_TOLD_CHARACTERS]}")
    if _SHUT_DOWN in said:
        return SparkEnded(f"Spark has ended while it computed a batch: {said[:_TOLD_CHARACTERS]}")
    # Raises an error if the JVM does not answer.
    spark.sparkContext._jsc.sc()
    return None


class _WarmUp(threading.Thread):
    """A first read, from which nothing but the code that Spark has made for it is used."""

    def __init__(self, spark: SparkSession, read: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._spark = spark
        self._read = read

    def run(self) -> None:
        self._spark.sparkContext.setJobGroup(self.name, "warm-up", interruptOnCancel=True)
        self._read()

    def wait(self, stopped: threading.Event) -> None:
        """Wait until it has ended or `stopped` is set. A batch needs its reader, and would compile the same code. Blocks.

        It is ended after `_WARM_UP_S`, because it may wait for a broker that no batch needs.
        """

        def is_over() -> bool:
            return stopped.is_set() or not self.is_alive()

        if not wait_until(is_over, _WARM_UP_S):
            _cancel_jobs(self._spark, self.name)
            wait_until(is_over, math.inf)


class _Feeder(threading.Thread):
    """Reads one sub-topology until it is stopped or fails."""

    _numbers = itertools.count()

    def __init__(
        self,
        spark: SparkSession,
        subtopology: SubTopology,
        reader: SlicedReader,
        out: HandOver,
        starts: Offsets,
        size: BatchSize,
        warming_up: _WarmUp,
    ) -> None:
        # Spark jobs are cancelled by this name, so it must be different for every start.
        super().__init__(name=f"sub-topology-{subtopology.index}-{next(self._numbers)}", daemon=True)
        self._spark = spark
        self._reader = reader
        self._out = out
        self._starts = starts
        self._size = size
        self._warming_up = warming_up

    def run(self) -> None:
        """Read until stopped, and report a failure to whoever takes the batches."""
        try:
            self._warming_up.wait(self._out.stopped)
            self._spark.sparkContext.setJobGroup(self.name, "batches", interruptOnCancel=True)
            self._reader.run(self._starts, self._size)
        except Exception as error:
            # A failure while stopping comes from the cancellation of the job.
            if not self._out.stopped.is_set():
                log.exception("thread %s failed", self.name)
                self._out.fail(_explained(error, self._spark))

    def cancel(self) -> None:
        """Cancel the running Spark job of this thread and those that would follow."""
        _cancel_jobs(self._spark, self.name)


def _cancel_jobs(spark: SparkSession, group: str) -> None:
    """Cancel the running Spark job of the thread with this name, and those that would follow."""
    try:
        spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)
    except (Py4JError, PySparkException, OSError) as error:
        log.warning("failed to cancel the Spark jobs of thread %s: %s", group, error)
