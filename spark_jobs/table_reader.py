"""Reads a table's source topic in the form in which its store keeps it, with the SQL statement that the stream uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from spark_jobs.compile import pipeline_sql, reads_headers
from spark_jobs.kafka_reading import KafkaReader
from spark_jobs.refused_records import RefusedRecords, Span
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.stores.layout import bytes_list
from tidemark.tasks.operators.sink import entering_rows
from tidemark.tasks.partials import Partial, Status
from tidemark.tasks.rows import KEY, STORED_TIME, encode_rows, rows_schema
from tidemark.topology.plan import Pipeline, StoreSpec, SubTopology, TableSource, TopologyPlan


def read_table(
    spark: SparkSession,
    plan: TopologyPlan,
    settings: Settings,
    spec: StoreSpec,
    partition: TopicPartition,
    start: int,
    end: int,
    should_continue: Callable[[], bool],
) -> Iterator[ChangelogBatch]:
    """Implement `TableReader`, reading `max_batch_records` offsets at a time."""
    subtopology, pipeline = _pipeline_of(plan, spec)
    view = f"table_{subtopology.index}_{partition.partition}_{spec.name}".replace("-", "_").replace(".", "_")
    sql = pipeline_sql(subtopology, pipeline, view, settings.max_timestamp_ahead_ms)
    reader = KafkaReader(spark, settings, has_headers=reads_headers(subtopology))
    refused = RefusedRecords()

    def run(spans: Sequence[Span], _is_careful: bool) -> pa.Table:
        reader.rows_in(spans).frame().createOrReplaceTempView(view)
        return spark.sql(sql).toArrow()

    while start < end and should_continue():
        upto = min(end, start + settings.max_batch_records)
        refused.forget_before({partition: start})
        yield _stored(refused.read({partition: start}, {partition: upto}, run), pipeline, upto)
        start = upto


def _pipeline_of(plan: TopologyPlan, spec: StoreSpec) -> tuple[SubTopology, Pipeline]:
    """Return the pipeline that feeds the table's node."""
    for subtopology in plan.subtopologies:
        for node in subtopology.nodes:
            if isinstance(node, TableSource) and spec.name in {store.name for store in node.stores}:
                return subtopology, next(b for b in subtopology.pipelines if b.enters and b.end in node.inputs)
    raise ValueError(f"store {spec.name} is not a table of {plan.application_id}")


def _stored(table: pa.Table, pipeline: Pipeline, next_offset: int) -> ChangelogBatch:
    good = table.filter(pc.equal(table.column(Partial.STATUS), Status.GOOD)).sort_by(Partial.RECORD_OFFSET)
    rows = entering_rows(good, [column.name for column in pipeline.columns], rows_schema(pipeline.columns))
    return ChangelogBatch(
        bytes_list(rows.column(KEY)), encode_rows(rows, (*pipeline.columns, STORED_TIME)), next_offset
    )
