"""Values of which Spark would make something that they do not say are not parsed.

These are numbers that it would write out for minutes, times that it would complete by the clock, and bytes that it would wrap
around. All other values are parsed as `from_json` does.
"""

from __future__ import annotations

import pytest
from spark_jobs.audit import recomputation
from spark_jobs.compile import dead_letter_places_sql
from spark_jobs.json_values import parsed_json_sql

from tidemark.tasks.update import UNPARSABLE
from tidemark.topology.builder import Topology
from tidemark.topology.schema import parse_schema

pytestmark = pytest.mark.spark

SCHEMA = (
    "code STRING, x DOUBLE, price DECIMAL(10,2), lots ARRAY<DECIMAL(5,1)>, rates MAP<STRING, DECIMAL(38,10)>, "
    "deal STRUCT<note: STRING, parts: ARRAY<STRUCT<cost: DECIMAL(8,0)>>>, "
    "at TIMESTAMP, ats ARRAY<TIMESTAMP>, visit STRUCT<day: DATE, times: MAP<STRING, TIMESTAMP>>, local TIMESTAMP_NTZ, "
    "day DATE, level TINYINT, levels ARRAY<TINYINT>, graded STRUCT<marks: MAP<STRING, TINYINT>>, small SMALLINT"
)
HUGE = [
    '{"price": 1e-3000}', '{"price":-0.5E+3000}', '{"price": "1e-3000"}', '{"price": 1e-0003000}', '{"lots": [1, 1e-3000]}',
    '{"lots": ["1", "1e-3000"]}', '{"rates": {"eur": 1e-3000}}', '{"rates": {"eur": "1e-3000"}}',
    '{"deal": {"parts": [{"cost": "1"}, {"cost": "1e-3000"}]}}', '{"price": "1\\u0065-3000"}',
    '{"price": "1e-\u0663\u0660\u0660\u0660"}',
    '{"code": "a\\"", "price": 1e-3000}', '{"code": "1e-3000", "price": 1e-3000}', "{'code': '\"', 'price': 1e-3000}",
    '{"price": 1e300000000}', '{"price": 1e-300000000}', '{"price": "1e300000000"}', '{"price": "1e300000000"',
    # Spark removes commas from a text that it reads as a DECIMAL.
    '{"price": "1e-3,00,0"}', '{"price": "1,e,-,3,0,0,0,"}', '{"lots": ["1e-3,00,0"]}',
    # Spark converts a repeated field each time, and each object of an array, though only one of them counts.
    '{"price": "1e-3000", "price": "1"}', '{"price": "1e-3000", "price": null}', '{"rates": {"eur": "1e-3000", "eur": "1"}}',
    '{"lots": ["1e-3000"], "lots": []}', '{"deal": {"parts": [{"cost": "1e-3000"}]}, "deal": {"parts": []}}',
    '{"deal": {"parts": [{"cost": "1e-3000", "cost": "1"}]}}', '[{"price": "1"}, {"price": "1e-3000"}]',
]  # fmt: skip
COMPLETED = [
    '{"at": "12:30"}', '{"at": "12:30:00"}', '{"at": "1:2:3.5Z"}', '{"at": "T12"}', '{"at": "T12:30+02:00"}', '{"at": "12:"}',
    '{"at": " 12:30 "}', '{"at": "\\t12:30"}', '{"at": "\\u0031\\u0032:30"}', '{"at": "\\u005412"}', "{'at': '12:30'}",
    '{"at": "\x7f12:30"}',
    '{"ats": ["2024-01-15", "12:30"]}', '{"visit": {"times": {"a": "12:30"}}}', '{"at": "12:30", "at": "2024-01-15"}',
    '{"code": "a\\"", "price": 1, "at": "12:30"}',
]  # fmt: skip
WRAPPED = [
    '{"level": 128}', '{"level":129}', '{"level": 199}', '{"level": 200}', '{"level": 249}', '{"level": 250}', '{"level": 255}',
    '{"level":\n 255 , "code": "a"}', '{"levels": [1, 128]}', '{"levels": [128, 1]}',
    '{"graded": {"marks": {"a": 1, "b": 200}}}',
    '{"code": "a\\"", "price": 1, "level": 130}', '{"level": 256}', '{"level": -129}', '{"level": 1280}', '{"level": "200"}',
]  # fmt: skip
TOO_MANY_SECONDS = [
    '{"at": 18448444073710}', '{"at":9223372036855}', '{"at": -9223372036855}', '{"ats": [0, 18448444073710]}',
    '{"visit": {"times": {"a": -18448444073710}}}', '{"at": 18448444073710, "at": 0}', '{"at": 100000000000000000000}',
    '{"code": "a\\"", "price": 1, "at":\n 18448444073710}',
]  # fmt: skip
HARMLESS = [
    '{"price": 1.5}', '{"price": 1e3}', '{"price": "1.5e-999"}', '{"code": "A1e12345", "price": 1}',
    '{"code": "1e12345", "price": 1}',
    '{"code": "a, 1e12345 [1e12345] :1e12345", "price": 1}', '{"code": "\\", 1e12345", "price": 1}',
    '{"code": "\\u0041", "price": "2"}', '{"code": "1e12345", "price": "1,234.5", "lots": ["1,0", 2e1, 3, 4, 5]}',
    '{"code": "1e12345", "price": 1, "price": "2"}', '{"code": "1e12345", "code": "2e12345", "price": "NaN"}',
    '{"code": "1e12345", "lots": null, "rates": null, "deal": null}',
    '{"code": "1e12345", "rates": {"eur": 12345678901234567.5}}',
    '{"code": "1e12345", "lots": {}}', '{"code": "1e12345", "deal": "x"}', '{"code": "1e12345", "price": true}',
    '{"code": "1e12345", "lots": [], "rates": {}, "deal": {}}', '{"code": "1e12345", "lots": "1", "rates": []}',
    '{"code": "1e12345", "price": ""}', '{"code": "1e12345", "Price": "1e3000", "price": "3"}',
    '{"deal": {"note": "1e12345", "parts": [{"cost": 3}, {}, null]}}', '{"rates": {"1e12345": 1}, "lots": [null]}',
    '{"price": "x"}',
    '{"small": 200, "level": 127, "levels": [-128, 0, null], "graded": {"marks": {"200": 99}}}',
    '{"small": 128, "level": null}',
    '{"code": "x:200", "level": -128}', '{"small": 255, "Level": 255}', '{"small": 200, "levels": {}}',
    '{"price": 200, "level": 1}',
    '{"code": "12:30", "at": "2024-01-15T12:30:00Z"}', '{"code": "12:30", "at": 1700000000}', '{"code": "12:30", "ats": []}',
    '{"code": "12:30", "at": null, "visit": null}', '{"code": "T1", "at": "2024-01-15 1:30"}', '{"code": "12:30", "at": "x"}',
    '{"code": "12:30", "visit": {"day": "2024-01-15", "times": {"12:30": "2024-01-15"}}}',
    '{"code": "12:30", "local": "12:30"}',
    '{"code": "x:18448444073710", "at": 1700000000}', '{"local": 18448444073710, "at": 0}', '{"x": 18448444073710, "at": 1}',
    '{"At": 18448444073710}',
    '{"at": " T12:30"}', '{"at": "T"}', '{"at": "123:30"}', '{"at": "\\u0032024-01-15"}', '{"code": "12:30", "ats": {}}',
    '{"code": "12:30", "At": "12:30"}', '{"code": "12:30", "day": "12:30"}',
    '{"code": "1e12345", "price": 1', "", "{}", "null", None,
]  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [HUGE, COMPLETED, TOO_MANY_SECONDS, WRAPPED],
    ids=["many digits", "times of day", "many seconds", "large bytes"],
)
def test_should_not_parse_what_spark_would_change_or_complete(spark, values):
    sql = parsed_json_sql("v", parse_schema(SCHEMA, "test"))
    found = spark.createDataFrame([(v,) for v in values], "v STRING").selectExpr("v", f"{sql} AS r")
    assert [row.v for row in found.where("r IS NOT NULL AND r.__corrupt IS NULL").select("v").collect()] == []


def test_should_parse_every_other_value_as_from_json_alone(spark):
    sql = parsed_json_sql("v", parse_schema(SCHEMA, "test"))
    alone = f"from_json(v, '{SCHEMA}, __corrupt STRING', map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '__corrupt'))"
    values = spark.createDataFrame([(v,) for v in HARMLESS], "v STRING")

    def is_read(row, name):
        return row[name] is not None and row[name]["__corrupt"] is None

    for row in values.selectExpr("v", f"{sql} AS found", f"{alone} AS expected").collect():
        assert is_read(row, "found") == is_read(row, "expected"), row.v
        assert not is_read(row, "expected") or row.found == row.expected


@pytest.mark.parametrize(
    ("text", "date", "timestamp"),
    [
        ("2024-01-15", "2024-01-15", "2024-01-15 00:00:00"),
        ("2024-1-5", "2024-01-05", "2024-01-05 00:00:00"),
        ("2024-01", "2024-01-01", "2024-01-01 00:00:00"),
        ("2024", "2024-01-01", "2024-01-01 00:00:00"),
        ("2024-01-15T10:00", "2024-01-15", "2024-01-15 10:00:00"),
        ("2024-01-15 10:00:00.123456", "2024-01-15", "2024-01-15 10:00:00.123456"),
        ("2024-01-15T10:00:00.1Z", "2024-01-15", "2024-01-15 10:00:00.1"),
        ("2024-01-15T10:00Z", "2024-01-15", None),
        ("20240115T100000Z", None, None),
        ("2024-01-15T10:00:00+02:00", "2024-01-15", "2024-01-15 08:00:00"),
        ("2024-01-15T10:00:00+0200", "2024-01-15", "2024-01-15 08:00:00"),
        ("2024-01-15T10:00:00GMT+02:00", "2024-01-15", "2024-01-15 08:00:00"),
        ("2024-01-15 10:00:00 Europe/Berlin", "2024-01-15", "2024-01-15 09:00:00"),
        ("20240115", None, None),
        ("1700000000", None, None),
        ("-1", None, None),
        ("15/01/2024", None, None),
        ("today", None, None),
        ("12:30", None, None),
        ("T12:30:00Z", None, None),
        ("", None, None),
    ],
)
def test_should_read_texts_of_iso_8601_as_dates_and_timestamps_and_no_other(spark, text, date, timestamp):
    columns = [f"{parsed_json_sql('v', parse_schema(f'x {kind}', 'test'))} AS {kind}" for kind in ("DATE", "TIMESTAMP")]
    read = [f"IF({kind}.__corrupt IS NULL, CAST({kind}.x AS STRING), NULL)" for kind in ("DATE", "TIMESTAMP")]
    values = spark.createDataFrame([(f'{{"x": "{text}"}}',)], "v STRING")
    assert values.selectExpr(*columns).selectExpr(*read).collect() == [(date, timestamp)]


@pytest.mark.parametrize("seconds", [9223372036854, -9223372036854, 1700000000000, 9200000000000])
def test_should_read_every_number_of_seconds_whose_microseconds_fit(spark, seconds):
    sql = parsed_json_sql("v", parse_schema("at TIMESTAMP", "test"))
    read = spark.createDataFrame([(f'{{"at": {seconds}}}',)], "v STRING").selectExpr(f"unix_micros({sql}.at) AS micros")
    assert [row.micros for row in read.collect()] == [seconds * 1_000_000]


def test_should_parse_once_without_a_type_of_which_texts_are_refused():
    assert parsed_json_sql("v", parse_schema("a STRING, x DOUBLE", "test")).count("from_json") == 1


def test_should_make_a_dead_letter_of_what_is_not_parsed_in_the_stream_and_in_the_audit(spark):
    topology = Topology("app")
    topology.stream("in", schema=f"id STRING, {SCHEMA}", key="id").group_by_key().count(store="s").to("out")
    subtopology = topology.plan().subtopologies[0]
    values = [
        b'{"id": "a", "price": 1, "at": "2024-01-15T12:30:00Z"}',
        b'{"id": "a", "price": 1e-3000}',
        b'{"id": "a", "price": 1e300000000}',
        b'{"id": "a", "price": 1, "at": "12:30:00"}',
        b'{"id": "a", "price": 1, "level": 200}',
    ]
    spark.createDataFrame(
        [(b"a", value, 0, offset) for offset, value in enumerate(values)],
        "key BINARY, value BINARY, partition INT, offset BIGINT",
    ).createOrReplaceTempView("valued")
    spark.sql(
        "SELECT *, 'in' AS topic, timestamp_millis(1700000000000) AS timestamp FROM valued"
    ).createOrReplaceTempView("batch")
    places = spark.sql(dead_letter_places_sql(subtopology, subtopology.lead, "batch", 0)).collect()
    assert sorted((row.reason, row["__record_offset"]) for row in places) == [(UNPARSABLE, n) for n in (1, 2, 3, 4)]
    spark.sql(
        "SELECT 'source' AS role, topic, partition, offset, 1700000000000 AS ts_ms, key, value, 0 AS p, 1L AS batch FROM batch"
    ).createOrReplaceTempView("audited")
    none = "(SELECT '' AS of_topic, 0 AS of_partition, 0L AS of_offset)"
    judged = spark.sql(recomputation.judged_sql(subtopology.lead, "audited", none, 0)).collect()
    assert {row["__offset"]: row["__bad"] for row in judged} == {0: False, 1: True, 2: True, 3: True, 4: True}
