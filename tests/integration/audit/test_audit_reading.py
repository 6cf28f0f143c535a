"""The task and batch to which a record belongs, on Arrow batches, without Spark and without a broker."""

from __future__ import annotations

import pytest
from spark_jobs.audit.reading import header_sql


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_should_read_the_headers_of_a_dead_letter_and_not_those_of_its_original_record(spark):
    rows = [
        ("produced again", [("tidemark.offset", b"7"), ("trace", b"x"), ("tidemark.offset", b"42")]),
        ("plain", [("tidemark.offset", b"43")]),
        ("of somebody else", [("trace", b"x")]),
        ("empty", []),
        ("none", None),
    ]
    frame = spark.createDataFrame(rows, "name STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    found = frame.selectExpr("name", header_sql("offset", "BIGINT")).collect()
    assert {row.name: row.of_offset for row in found} == {
        "produced again": 42, "plain": 43, "of somebody else": None, "empty": None, "none": None,
    }  # fmt: skip
