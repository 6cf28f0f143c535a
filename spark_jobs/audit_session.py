"""Spark's settings for one audit, by how much it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_OFFSETS_PER_PARTITION = 1_000_000


@contextmanager
def sized(spark: SparkSession, offsets: int) -> Iterator[None]:
    """The session as it should be to audit so many offsets; as it was afterwards."""
    settings = {
        "spark.sql.shuffle.partitions": str(max(1, -(-offsets // _OFFSETS_PER_PARTITION))),
        # Records and results are ordered by key once; that order serves the joins by key and batch too.
        "spark.sql.requireAllClusterKeysForCoPartition": "false",
        # Looking for the best compression of each column takes as long as computing it.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            spark.conf.set(name, known)  # type: ignore[arg-type]
