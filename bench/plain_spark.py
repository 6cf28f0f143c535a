"""The topology `pulse_counting` written for Spark alone, with Spark's own state: `python -m bench.plain_spark FILE`.

`FILE` is JSON with the fields of `Options`. Spark keeps its offsets in the checkpoint, so a listener commits those of each
finished batch to a consumer group, where the benchmark looks for them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from bench.case import GRACE_MS, INPUT_TOPIC, OUTPUT_TOPIC, PARTITIONS, QUIET, WINDOW_MS

GROUP = "spark-peer"
RUNNING = "the query is RUNNING"
"""The line that tells that a batch is finished, or that there is nothing to read."""
_SCHEMA = "patient_id STRING, beat_ms BIGINT, ibi_ms INT, recording STRING"


@dataclass(frozen=True)
class Options:
    """The options of one run. `jars` and `folder` are paths."""

    bootstrap: str
    jars: list[str]
    folder: str
    heap: str
    max_batch_records: int

    def write(self, file: Path) -> None:
        """Write them for `read`."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Options:
        """Return what `write` has written."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


class Commits(StreamingQueryListener):
    """Commits the offsets of each finished batch to the group, and tells once that the query runs."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **QUIET})
        self._was_told = False

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the query has not read anything yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Tell that the query runs."""
        self._tell()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Commit the end of a batch."""
        self._tell()
        for source in event.progress.sources:
            offsets = json.loads(source.endOffset)[INPUT_TOPIC]
            ends = [TopicPartition(INPUT_TOPIC, int(partition), offset) for partition, offset in offsets.items()]
            self._consumer.commit(offsets=ends, asynchronous=False)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Close the connection."""
        self._consumer.close()

    def _tell(self) -> None:
        if not self._was_told:
            self._was_told = True
            print(RUNNING, flush=True)


def session(options: Options) -> SparkSession:
    """Return a session on all cores. The state is in RocksDB, of which Spark writes the changes of each batch."""
    settings: dict[str, Any] = {
        "spark.jars": ",".join(options.jars),
        "spark.driver.memory": options.heap,
        "spark.ui.enabled": "false",
        # As many as the input has partitions: Spark's default of 200 would be a state store for 250 patients each.
        "spark.sql.shuffle.partitions": PARTITIONS,
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    builder = SparkSession.builder.master("local[*]").appName(GROUP)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(options: Options) -> None:
    """Run until the process ends. The results are those of the topology; each may be written more than once."""
    spark = session(options)
    spark.sparkContext.setLogLevel("WARN")
    spark.streams.addListener(Commits(options.bootstrap))
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", INPUT_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.max_batch_records)
        .load()
    )
    pulses = records.select(f.from_json(f.col("value").cast("string"), _SCHEMA).alias("pulse")).select("pulse.*")
    counts = (
        pulses.withColumn("at", f.timestamp_millis("beat_ms"))
        .withWatermark("at", f"{GRACE_MS} milliseconds")
        .groupBy("patient_id", f.window("at", f"{WINDOW_MS} milliseconds"))
        .count()
    )
    value = f.to_json(
        f.struct(
            "patient_id",
            f.unix_millis("window.start").alias("window_start"),
            f.unix_millis("window.end").alias("window_end"),
            f.col("count").alias("pulses"),
        )
    )
    query = (
        counts.select(f.col("patient_id").alias("key"), value.alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("topic", OUTPUT_TOPIC)
        .option("checkpointLocation", f"{options.folder}/checkpoint")
        .outputMode("update")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Options.read(Path(sys.argv[1])))
