"""Spark's settings for one audit, by how much it reads."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from spark_jobs.session import configured

_OFFSETS_PER_PARTITION = 1_000_000


def sized(spark: SparkSession, offsets: int) -> AbstractContextManager[None]:
    """The session as it should be to audit so many offsets; as it was afterwards."""
    return configured(
        spark,
        {
            "spark.sql.shuffle.partitions": str(max(1, -(-offsets // _OFFSETS_PER_PARTITION))),
            # Records and results are ordered by key once; that order serves the joins by key and batch too.
            "spark.sql.requireAllClusterKeysForCoPartition": "false",
            # Looking for the best compression of each column takes as long as computing it.
            "spark.sql.inMemoryColumnarStorage.compressed": "false",
        },
    )
