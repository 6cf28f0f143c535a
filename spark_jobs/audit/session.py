"""Spark's settings for one audit, depending on how much it reads."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from spark_jobs.session import configured

_OFFSETS_PER_PARTITION = 1_000_000


def sized(spark: SparkSession, offsets: int) -> AbstractContextManager[None]:
    """Configure the session for an audit of `offsets` offsets inside the block, and restore it afterwards."""
    return configured(
        spark,
        {
            "spark.sql.shuffle.partitions": str(max(1, -(-offsets // _OFFSETS_PER_PARTITION))),
            # Records and results are partitioned by key once; the joins by key and batch then need no other shuffle.
            "spark.sql.requireAllClusterKeysForCoPartition": "false",
            # Finding the best compression of a column takes as long as computing the column.
            "spark.sql.inMemoryColumnarStorage.compressed": "false",
        },
    )
