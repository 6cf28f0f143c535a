"""Stored rows: what is written is read back, also numbers that JSON does not have."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import TaskCorrupted
from tidemark.tasks.rows import DELETED, decode_rows, encode_rows, value_schema
from tidemark.topology.plan import Column

COLUMNS = (Column("d", "DOUBLE"), Column("f", "FLOAT"), Column("n", "BIGINT"), Column("s", "STRING"))
DOUBLES = st.none() | st.floats()
FLOATS = st.none() | st.floats(width=32)


@given(
    st.lists(
        st.tuples(DOUBLES, FLOATS, st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text()), max_size=5
    )
)
def test_should_read_every_row_as_it_was_written(rows):
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    schema = value_schema(COLUMNS)
    table = pa.table([pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema)
    written = encode_rows(table.append_column(DELETED, pa.array([False] * len(rows), pa.bool_())), COLUMNS)
    # As text, because NaN does not equal itself.
    assert repr(decode_rows(written, COLUMNS).to_pylist()) == repr(table.to_pylist())


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b'"NaN"', math.nan), (b"NaN", math.nan), (b'"Infinity"', math.inf), (b'"+INF"', math.inf), (b"1e400", math.inf),
        (b'"-Infinity"', -math.inf), (b'"-INF"', -math.inf), (b"-1e400", -math.inf),
    ],
)  # fmt: skip
def test_should_read_the_numbers_of_a_source_topic_as_spark_reads_them(text, number):
    values = [b'{"d":1,"n":9007199254740993}', None, b'{"d":' + text + b',"f":' + text + b',"s":"Infinity","more":[1]}']
    found = decode_rows(values, COLUMNS).to_pylist()
    assert found[0] == {"d": 1.0, "f": None, "n": 9007199254740993, "s": None}
    assert repr(found[2]) == repr({"d": number, "f": number, "n": None, "s": "Infinity"})


@pytest.mark.parametrize(
    "value", [b'{"d":"1.5"}', b'{"d":true}', b'{"d":[1]}', b"[1]", b'{"d":', b'{"d":"NaN","n":"a"}']
)
def test_should_report_a_stored_row_that_does_not_fit_its_columns(value):
    with pytest.raises(TaskCorrupted, match="a stored row is not JSON of d, f, n, s"):
        decode_rows([b'{"d":1.5}', value], COLUMNS)
