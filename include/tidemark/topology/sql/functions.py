"""Spark functions that an expression on one record must not use, under the names that sqlglot or Spark gives them."""

from __future__ import annotations

NON_DETERMINISTIC = frozenset(
    {
        "rand",
        "random",
        "randn",
        "randstr",
        "uniform",
        "uuid",
        "shuffle",
        "now",
        "curdate",
        "monotonically_increasing_id",
        "spark_partition_id",
        "current_timestamp",
        "current_date",
        "current_time",
        "current_datetime",
        "current_timestamp_l_t_z",
        "localtimestamp",
        "localtime",
        "current_user",
        "user",
        "session_user",
        "current_database",
        "current_schema",
        "current_catalog",
        "current_timezone",
        "current_path",
        "version",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "reflect",
        "java_method",
        "try_reflect",
        "getdate",
        "sysdate",
        "curtime",
        "aes_encrypt",
    }
)

GENERATORS = frozenset(
    [
        "json_tuple",
        "inline_outer",
        "explode_outer",
        "posexplode_outer",
        "stack",
        "explode",
        "variant_explode",
        "variant_explode_outer",
        "range",
        "collations",
        "sql_keywords",
        "python_worker_logs",
    ]
)

WINDOWS = frozenset(["window", "session_window", "window_time"])
"""Functions for which Spark leaves rows out of a batch, or repeats them, instead of computing a value for each record."""

ANALYTIC = frozenset(["row_number"])
"""Functions that need a window of rows, of those that sqlglot does not treat as aggregates."""

# Aggregates that sqlglot treats as unknown functions; those it knows are instances of its AggFunc.
AGGREGATES = frozenset(
    {
        "every",
        "some",
        "any",
        "bool_and",
        "bool_or",
        "std",
        "mean",
        "average",
        "try_avg",
        "try_sum",
        "hll_sketch_agg",
        "hll_union_agg",
        "count_min_sketch",
        "histogram_numeric",
        "approx_percentile",
        "collect_list",
        "collect_set",
        "collect",
        "kll_sketch_agg_bigint",
        "kll_sketch_agg_double",
        "kll_sketch_agg_float",
        "grouping_id",
        "schema_of_json_agg",
        "percentile",
        "theta_sketch_agg",
        "theta_union_agg",
        "theta_intersection_agg",
        "bitmap_and_agg",
        "kll_merge_agg_bigint",
        "kll_merge_agg_double",
        "kll_merge_agg_float",
        "schema_of_variant_agg",
        "tuple_sketch_agg_double",
        "tuple_sketch_agg_integer",
        "tuple_union_agg_double",
        "tuple_union_agg_integer",
        "tuple_intersection_agg_double",
        "tuple_intersection_agg_integer",
        "vector_avg",
        "vector_sum",
        "measure",
    }
)
