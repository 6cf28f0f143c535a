"""The Spark metrics of the audit's own expectation. Importing this module registers them with Great Expectations."""

from __future__ import annotations

from typing import Any

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.metrics.metric_provider import metric_partial
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from pyspark.sql import Column
from pyspark.sql.functions import coalesce, count_if, expr, lit

from tidemark.audit.rows_where import COUNT, JUDGED


class RowsWhereCount(TableMetricProvider):
    """Counts the rows that meet a condition. It is an aggregate, so all conditions of a table are computed in one pass."""

    metric_name = COUNT
    value_keys = ("condition",)

    @metric_partial(
        engine=SparkDFExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.AGGREGATE_FN,
        domain_type=MetricDomainTypes.TABLE,
    )
    def _spark(
        cls,
        execution_engine: SparkDFExecutionEngine,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any],
    ) -> tuple[Column, dict[str, Any], dict[str, Any]]:
        counted = coalesce(count_if(expr(metric_value_kwargs[cls.value_keys[0]])), lit(0))
        return counted, metric_domain_kwargs, {}


class RowsJudgedCount(RowsWhereCount):
    """Counts the rows that an expectation can judge, in the same pass."""

    metric_name = JUDGED
    value_keys = ("judged",)
