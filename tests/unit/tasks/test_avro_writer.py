"""Values of a sink as Avro: what fastavro reads of them again is what the JSON says."""

from __future__ import annotations

import datetime
import decimal
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.schema_registry import read_avro

from tidemark.tasks.avro_writer import AvroWriter
from tidemark.topology.avro_schema import schema_of_sink
from tidemark.topology.schema import parse_schema

COLUMNS = (
    "s STRING, n BIGINT, i INT, small SMALLINT, x DOUBLE, b BOOLEAN, price DECIMAL(12,2), at TIMESTAMP, day DATE, raw BINARY, "
    "lots ARRAY<DECIMAL(5,1)>, rates MAP<STRING, DOUBLE>, deal STRUCT<note: STRING, parts: ARRAY<STRUCT<cost: DECIMAL(8,0)>>>"
)
SCHEMA = json.dumps(schema_of_sink("out", parse_schema(COLUMNS, "test"), "test"))
NAMES = [column.name for column in parse_schema(COLUMNS, "test")]


def read_again(**record: object) -> dict[str, object]:
    number, found = read_avro(AvroWriter(SCHEMA, 70_000).encode(json.dumps(record).encode()), SCHEMA)
    assert number == 70_000
    return {name: found[name] for name in record}


@given(st.fixed_dictionaries({}, optional={
    "s": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    "n": st.none() | st.integers(-(2**63), 2**63 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "small": st.integers(-(2**15), 2**15 - 1),
    "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "b": st.none() | st.booleans(),
    "rates": st.none() | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.floats(0, 1)),
}))  # fmt: skip
def test_should_keep_plain_values(record):
    assert read_again(**record) == record


def test_should_write_null_for_what_the_record_lacks():
    _, found = read_avro(AvroWriter(SCHEMA, 1).encode(b"{}"), SCHEMA)
    assert found == dict.fromkeys(NAMES)


def test_should_convert_what_json_writes_in_another_way():
    at = datetime.datetime(2026, 2, 28, 23, 59, 59, 123_000, tzinfo=datetime.UTC)
    assert read_again(
        price=-1234567.05, at="2026-02-28T23:59:59.123Z", day="1969-12-31", raw="AP8=", lots=[1.5, None, 2],
        deal={"note": None, "parts": [{"cost": 7}, None]},
    ) == {
        "price": decimal.Decimal("-1234567.05"), "at": at, "day": datetime.date(1969, 12, 31), "raw": b"\x00\xff",
        "lots": [decimal.Decimal("1.5"), None, decimal.Decimal("2.0")],
        "deal": {"note": None, "parts": [{"cost": decimal.Decimal(7)}, None]},
    }  # fmt: skip
    assert read_again(x="Infinity") == {"x": math.inf}
    assert read_again(x="-Infinity") == {"x": -math.inf}
    assert math.isnan(read_again(x="NaN")["x"])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [
    b'{"n": "seven"}', b'{"n": 9223372036854775808}', b'{"i": 2147483648}', b'{"price": 0.001}', b'{"price": 10000000000}',
    b'{"at": "yesterday"}', b'{"raw": "*"}', b'{"lots": 1}', b'{"s": 1}', b"{", b"[]",
])  # fmt: skip
def test_should_refuse_what_the_schema_does_not_have(value):
    with pytest.raises(ValueError, match="does not fit the schema"):
        AvroWriter(SCHEMA, 1).encode(value)
