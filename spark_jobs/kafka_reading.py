"""Reads Kafka records through Spark between two offsets of each partition, read_committed.

The reads use the RDD of Spark's Kafka source, which needs no planning. `spark.read` would create an admin client for each read,
to ask for offsets that are known already (`docs/decisions/0029-reads-without-planning.md`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.prepared import SparkRows
from spark_jobs.refused_records import Span
from tidemark.kafka.clients import java_properties
from tidemark.names import TopicPartition
from tidemark.settings import Settings

KAFKA_RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of Spark's Kafka source that statements use, for records that do not come from a broker."""

_CLIENT_OPTIONS = {
    "isolation.level": "read_committed",
    "max.poll.records": "20000",
    "max.partition.fetch.bytes": str(8 << 20),
}
_FAIL_ON_DATA_LOSS = True


class KafkaReader:
    """Reads in one Spark session, with the same options each time. A read continues in the consumers of the one before.

    Its consumers have partitions assigned and commit nothing, so brokers see neither a member nor an offset of their group.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        *,
        group: str | None = None,
        has_headers: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Blocks for some milliseconds. Raises `InvalidSettings`.

        Without a `group`, the consumers have a group id that nothing else uses. `has_headers` adds the column `headers`, which
        costs time per record. `options` are options of a Java consumer that override the usual ones.
        """
        jvm: Any = spark._jvm
        self._spark = spark
        self._context = spark.sparkContext._jsc.sc()
        self._env = jvm.org.apache.spark.SparkEnv
        self._kafka = kafka = jvm.org.apache.spark.sql.kafka010
        # Each name of a class costs several calls into the JVM, so those of a read are looked up once.
        self._new_rdd, self._new_range = kafka.KafkaSourceRDD, kafka.KafkaOffsetRange
        self._new_partition, self._new_list = jvm.org.apache.kafka.common.TopicPartition, jvm.java.util.ArrayList
        self._to_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
        self._option = jvm.scala.Option.apply
        self._anywhere = self._option(None)
        self._is_local = self._context.isLocal()
        client = jvm.java.util.HashMap()
        for name, value in {**java_properties(settings), **_CLIENT_OPTIONS, **(options or {})}.items():
            client.put(name, value)
        self._client = kafka.KafkaSourceProvider.kafkaParamsForExecutors(
            getattr(jvm.scala.collection.immutable.Map, "from")(self._to_scala(client)),
            group or f"spark-kafka-relation-{uuid.uuid4()}",
        )
        self._poll_ms = self._context.conf().getTimeAsMs("spark.network.timeout", "120s")
        rows = kafka.KafkaRecordToRowConverter()
        self._to_row = rows.toInternalRowWithHeaders() if has_headers else rows.toInternalRowWithoutHeaders()
        self._schema = kafka.KafkaRecordToRowConverter.kafkaSchema(has_headers)
        self._row_tag = jvm.scala.reflect.ClassTag.apply(
            jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow")
        )
        self._partitions: dict[TopicPartition, Any] = {}

    def between(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> DataFrame:
        """Return the records from `starts` up to but excluding `ends`. Both name the same partitions.

        Its columns are those of Spark's Kafka source. Records that are missing, because they were deleted, fail the Spark job.
        """
        return self.rows_between(starts, ends).frame()

    def rows_between(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most_tasks: int | None = None
    ) -> SparkRows:
        """Return the same records as rows. They are read by a task per partition, or by at most `most_tasks` tasks."""
        return self.rows_in([(place, starts[place], ends[place]) for place in sorted(ends)], most_tasks)

    def rows_in(self, spans: Sequence[Span], most_tasks: int | None = None) -> SparkRows:
        """Return the records of spans as rows. One task reads all of them if a partition has several spans."""
        executors = self._executors()
        ranges = self._new_list()
        for place, start, end in spans:
            if start < end:
                location = self._anywhere
                if executors:
                    location = self._option(executors[crc32(str(place).encode()) % len(executors)])
                ranges.add(self._new_range(self._partition(place), start, end, location))
        rdd = self._new_rdd(
            self._context, self._client, self._to_scala(ranges).toSeq(), self._poll_ms, _FAIL_ON_DATA_LOSS
        ).map(self._to_row, self._row_tag)
        if len({place for place, _, _ in spans}) < len(spans):
            # Rows with the same partition must be in one of Spark's partitions.
            most_tasks = 1
        if most_tasks is not None:
            rdd = rdd.coalesce(most_tasks, False, self._anywhere, None)
        # Partitions of several topics may have the same number.
        has_one_topic = len({place.topic for place, _, _ in spans}) <= 1
        return SparkRows(self._spark, rdd, self._schema, clustered_by="partition" if has_one_topic else None)

    def _partition(self, place: TopicPartition) -> Any:
        if place not in self._partitions:
            self._partitions[place] = self._new_partition(place.topic, place.partition)
        return self._partitions[place]

    def _executors(self) -> list[str]:
        """Return the executors in the form of preferred locations, so that a partition stays with the consumer that it has.

        There is none if tasks run in this JVM.
        """
        if self._is_local:
            return []
        blocks = self._env.get().blockManager()
        peers = blocks.master().getPeers(blocks.blockManagerId())
        found = (peers.apply(number) for number in range(peers.size()))
        return sorted(f"executor_{peer.host()}_{peer.executorId()}" for peer in found)
