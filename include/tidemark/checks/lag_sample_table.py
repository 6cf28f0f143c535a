"""The table `lag_samples`: the offsets of every source partition, one row for each time they were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, select

from tidemark.checks.lag import LagSample
from tidemark.database import METADATA, FactsDatabase, id_column
from tidemark.names import TopicPartition

LAG_SAMPLES = Table(
    "lag_samples",
    METADATA,
    id_column(),
    Column("application_id", String(200), nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("topic", String(249), nullable=False),
    Column("topic_partition", Integer, nullable=False),
    Column("low_offset", BigInteger, nullable=False),
    Column("stable_offset", BigInteger, nullable=False),
    Column("end_offset", BigInteger, nullable=False),
    Column("committed_offset", BigInteger, nullable=True),
    Index("lag_samples_of_application", "application_id", "time_ms"),
)


def write_lag_samples(facts: FactsDatabase, application_id: str, samples: Sequence[LagSample]) -> None:
    """Add a row per sample, all or none. Blocks. Raises `FactsUnavailable`."""
    if not samples:
        return
    facts.insert(
        LAG_SAMPLES,
        [
            {
                "application_id": application_id,
                "time_ms": sample.time_ms,
                "topic": sample.partition.topic,
                "topic_partition": sample.partition.partition,
                "low_offset": sample.low_offset,
                "stable_offset": sample.stable_offset,
                "end_offset": sample.end_offset,
                "committed_offset": sample.committed_offset,
            }
            for sample in samples
        ],
    )


def lag_samples(facts: FactsDatabase, application_id: str, since_ms: int) -> list[LagSample]:
    """Return the samples taken at `since_ms` or later, oldest first. Blocks. Raises `FactsUnavailable`."""
    columns = LAG_SAMPLES.c
    query = (
        select(LAG_SAMPLES)
        .where(columns.application_id == application_id, columns.time_ms >= since_ms)
        .order_by(columns.time_ms, columns.id)
    )
    return [_sample(row) for row in facts.read(query)]


def forget_lag_samples(facts: FactsDatabase, application_id: str, before_ms: int) -> None:
    """Remove samples older than `before_ms`. Blocks. Raises `FactsUnavailable`."""
    columns = LAG_SAMPLES.c
    facts.delete(LAG_SAMPLES.delete().where(columns.application_id == application_id, columns.time_ms < before_ms))


def _sample(row: Any) -> LagSample:
    place = TopicPartition(row.topic, row.topic_partition)
    return LagSample(row.time_ms, place, row.low_offset, row.stable_offset, row.end_offset, row.committed_offset)
