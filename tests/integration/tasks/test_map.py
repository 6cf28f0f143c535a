"""SQL after a stateful node gives Spark's results, value by value, or is refused when the topology is built."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from tidemark.errors import InvalidTopology
from tidemark.settings import SQL_MEMORY_BYTES
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.operators.map import MapOperator
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Column, Map
from tidemark.topology.sql.expressions import expression_type

COLUMNS = tuple(
    Column(name, kind)
    for name, kind in (
        ("i", "INT"), ("j", "INT"), ("l", "BIGINT"), ("t", "TINYINT"), ("d", "DOUBLE"), ("f", "FLOAT"),
        ("s", "STRING"), ("u", "STRING"), ("b", "BOOLEAN"), ("c", "BOOLEAN"),
    )
)  # fmt: skip
NAN, INF = float("nan"), float("inf")
ROWS = [
    (1, 2, 3, 4, 1.5, 2.5, "abc", "b", True, False),
    (-7, 2, -3, -4, -1.5, -2.5, "12", "12", True, None),
    (0, 0, 0, 0, 0.0, 0.0, "", "", False, False),
    (None,) * 10,
    (2147483647, -1, 9223372036854775807, 127, 1e308, 3.4e38, "1.5", "x%y", None, True),
    (-2147483648, -1, -9223372036854775808, -128, NAN, INF, "Straße", "ß", False, None),
    (7, -2, 10, 3, 2.675, 0.1, "true", "a_c", True, True),
    (5, 3, 1000000007, 5, -0.5, NAN, " 42 ", "4", None, False),
    (3, 7, 1700000040000, 9, 1234567.891, -0.0, "1e3", "NaN", None, None),
    (10, 0, 2, 1, INF, 1e-3, "2147483648", "9223372036854775808", True, True),
    (4, 4, 4, 4, 0.1, 0.2, "äöü-x\n", "\\", False, True),
    (12, 5, 12, 12, -INF, 1e10, "+5", "-0", False, False),
    (2, 1, 300, 2, 1e-7, -3e38, ".5", "-Infinity", True, False),
    (6, 6, 5000000000, 6, 0.125, 1.0, "-", "1e400", False, True),
    (8, 9, -1, -1, -2147483649.5, 0.5, ".", "1.5d", True, None),
    (9, 8, 2147483648, 8, 9.3e18, 7.0, "300", "\tYes", None, False),
    (-5, 3, 128, -128, 123456789012345.678, 2.0, "-12.9", "😀b", True, True),
    (1, 1, 1, 1, 1.0, 1.0, "1\x7f", "-NaN", True, True),
    (1, 1, 1, 1, 1.0, 1.0, "\x1f+NaN", "\x7ftrue\x7f", True, True),
    (1, 1, 1, 1, 1.0, 1.0, "-nan", "\x7f.5d", True, True),
]
ARITHMETIC = """i + j; i - l; i * j; l + 1; l * 2; t + t; t * t; i + d; f + d; f * f; f + i; l + f; d * 0; -i; -l; -d; +i
i / j; d / i; l / 0; f / j; i / 3; d / 2.5; i % j; l % 3; d % 2; f % d; i % 0; d % 0; i div j; l div 0; l div -1; t div 2
d + 0.1; d * 1.5; CAST(i + NULL AS INT); abs(i); abs(d); abs(l); abs(t); floor(d); ceil(d); ceiling(d); floor(i)
floor(l / 7); floor(f)
round(d); round(d, 1); round(d, 2); round(d / 3, 4); greatest(i, j); least(i, l); greatest(d, f); greatest(s, u); isnan(d)
1 / 3; 1e3; 10L; 1.5D; -1; i * 1e-3; (i + 1) * (j - 1); mod(i, j)"""
CASTS = """CAST(s AS INT); CAST(s AS BIGINT); CAST(s AS TINYINT); CAST(s AS DOUBLE); CAST(u AS DOUBLE); CAST(u AS FLOAT)
CAST(s AS BOOLEAN); CAST(u AS BOOLEAN); CAST(d AS INT); CAST(d AS BIGINT); CAST(d AS TINYINT); CAST(f AS INT); CAST(l AS INT)
CAST(i AS TINYINT); CAST(l AS TINYINT); CAST(i AS BIGINT); CAST(i AS STRING); CAST(l AS STRING); CAST(b AS STRING)
CAST(b AS INT); CAST(i AS BOOLEAN); CAST(d AS BOOLEAN); CAST(f AS DOUBLE); CAST(d AS FLOAT); CAST(l AS DOUBLE); CAST(l AS FLOAT)
CAST(u AS BIGINT); CAST(d AS SMALLINT); double(s); string(i); int(d); CAST('7' AS INT) + i; CAST(0.5 AS DOUBLE)"""
CONDITIONS = """CASE WHEN i > 3 THEN 'big' WHEN i < 0 THEN 'neg' ELSE 'small' END; CASE WHEN b THEN i END; if(b, i, j)
CASE i WHEN 1 THEN 'one' WHEN NULL THEN 'null' ELSE 'other' END; CASE WHEN i > 0 THEN i ELSE d END; coalesce(i, j, 0)
coalesce(i, d); nullif(i, j); ifnull(i, 0); nvl(s, 'none'); i > j; i = j; i <> j; i >= NULL; i = NULL; d = d; d > 1; d >= f
f = d; f > 0.1; l > 1.5; i < 2.5; d < CAST('NaN' AS DOUBLE); s = u; s < u; b = c; i IS NULL; i IS NOT NULL; b AND c; b OR c
NOT b; b AND NULL; b OR NULL; NOT (b AND c); i IN (1, 2, 3); i IN (1, NULL); i NOT IN (1, NULL); s IN ('abc', 'x'); i IN (l, 7L)
i BETWEEN 1 AND 5; i NOT BETWEEN 1 AND 5; i BETWEEN j AND l; i <=> j; i <=> NULL; d <=> f; NOT (i <=> j); s <=> u; l = f
l <> -9223372036854775808; l > -9223372036854775808
l > 1.000000000000000000; l < 9223372036854775806.999999999999999999; l IN (1.5, 9223372036854775807, 1.000000000000000001)
l BETWEEN 1.000000000000000001 AND 9223372036854775806.5; l > 3.14159265358979323846D; d * 3.14159265358979323846D"""
TEXTS = r"""concat(s, u); concat(s, i); s || u; concat(s, '-', b, l); substring(s, 2); substring(s, 1, 2); substring(s, -2)
substring(s, 0, 2); substr(s, -2, 1); substring(s, -5, 4); substring(s, 2, 0); upper(s); lower(s); length(s); length(u)
trim(s); ltrim(s); rtrim(s); s LIKE 'a%'; s LIKE '%b_'; u LIKE 'x\\%y'; s NOT LIKE 'a%'; u LIKE 'a\\_c'; u LIKE '_b'; s LIKE ''
startswith(s, 'a'); endswith(s, 'c'); contains(s, 'b'); startswith(s, u); 'it\'s'; "dq"; 'a\nb'; s LIKE '%\n'"""
EXPRESSIONS = [e.strip() for part in (ARITHMETIC, CASTS, CONDITIONS, TEXTS) for e in part.replace("\n", ";").split(";")]
REFUSED = [
    ("i * 0.1", "1.5D"),
    ("1.0 / 3", "1.5D"),
    ("i % 0.5", "1.5D"),
    ("coalesce(i, 0.5)", "1.5D"),
    ("l > 1.0000000000000000000", "1.5D"),
    ("l <= 3.14159265358979323846", "1.5D"),
    ("l IN (1, 1.0000000000000000000)", "1.5D"),
    ("l BETWEEN 0.5 AND 1.0000000000000000000", "1.5D"),
    ("l < 9223372036854775808", "1.5D"),
    ("l < 9223372036854775807.5", "1.5D"),
    ("CAST(d AS STRING)", "BIGINT first"),
    ("concat(s, f)", "BIGINT first"),
    ("CAST(i AS DECIMAL(9, 2)) > 1", "cast to one of"),
    ("s = i", "STRING and INT cannot be combined; cast one"),
    ("s > 5", "STRING and INT cannot be combined; cast one"),
    ("i = '1'", "INT and STRING cannot be combined; cast one"),
    ("b = 1", "BOOLEAN and INT cannot be combined; cast one"),
    ("i IN ('1', '7')", "cast one"),
    ("s + 1", "not a number; cast it"),
    ("d div 2", "whole numbers"),
    ("round(i, -1)", "cast to DOUBLE"),
    ("round(f)", "cast to DOUBLE"),
    ("s RLIKE '^a'", "not known"),
    ("s LIKE u", "must be a text literal"),
    ("s LIKE 'a\\\\b'", "before %"),
    ("s LIKE 'a/%' ESCAPE '/'", "not known"),
    ("substring(s, i)", "whole numbers"),
    ("trim(BOTH 'x' FROM s)", "blanks"),
    ("'it''s'", "a quote"),
    ("sqrt(d)", "not known"),
    ("nosuch(i) > 1", "not known"),
    ("i & j", "not known"),
    ("s IS TRUE", "not known"),
    ("md5(s)", "not known"),
    ("from_utc_timestamp(s, 'Asia/Tokyo')", "not known"),
    ("to_utc_timestamp(s, 'Asia/Tokyo') IS NULL", "not known"),
]


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    hidden = [[f"k{n}" for n in range(len(ROWS))], range(len(ROWS)), range(len(ROWS)), [False] * len(ROWS)]
    return pa.table([*hidden, *(list(column) for column in zip(*ROWS, strict=True))], rows_schema(COLUMNS))


@pytest.fixture(scope="module")
def spark_values(spark, rows):
    spark.createDataFrame(rows).createOrReplaceTempView("map_rows")
    listed = ", ".join(
        f"CAST(({e}) AS {expression_type(e, COLUMNS, 'test')}) AS `{n}`" for n, e in enumerate(EXPRESSIONS)
    )
    table = spark.sql(f"SELECT {listed} FROM map_rows ORDER BY __seq").toArrow()
    return {expression: table.column(n).to_pylist() for n, expression in enumerate(EXPRESSIONS)}


def a_map(expression: str, kind: str) -> MapOperator:
    column = Column("result", kind)
    return MapOperator(
        Map("MAP", ("in",), (column,), (), None, ((column.name, expression),), None), COLUMNS, SQL_MEMORY_BYTES
    )


def shown(value: object) -> str:
    """Floats by all their digits; NaN is NaN, and both zeros are one."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value + 0.0)
    return repr(value)


@pytest.mark.spark
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_should_compute_the_same_as_spark(rows, spark_values, expression):
    found = (
        a_map(expression, expression_type(expression, COLUMNS, "test"))
        .run([rows], {}, BatchTime(0, 0, 0))
        .rows.column("result")
        .to_pylist()
    )
    wrong = [
        (row, f"got {got!r}, Spark {wanted!r}")
        for row, got, wanted in zip(ROWS, found, spark_values[expression], strict=True)
        if shown(got) != shown(wanted)
    ]
    assert wrong == []


@pytest.mark.spark
def test_should_read_a_hexadecimal_fraction_as_null_which_is_a_number_for_spark(spark, rows):
    """The one difference that `docs/semantics.md` lists."""
    expression = "CAST('0x1p3' AS DOUBLE)"
    found = a_map(expression, "DOUBLE").run([rows.slice(0, 1)], {}, BatchTime(0, 0, 0)).rows.column("result")
    assert (found.to_pylist(), spark.sql(f"SELECT {expression}").first()[0]) == ([None], 8.0)


@pytest.mark.parametrize(("expression", "says"), REFUSED)
def test_should_refuse_expressions_that_duckdb_and_spark_may_evaluate_differently(expression, says):
    with pytest.raises(InvalidTopology, match="comes after a stateful node: ") as refused:
        a_map(expression, "STRING")
    assert says in str(refused.value)
    assert "in Spark" in str(refused.value)


def the_map(condition: str | None = None, key: str | None = None) -> MapOperator:
    return MapOperator(Map("MAP", ("in",), COLUMNS, (), condition, None, key), COLUMNS, SQL_MEMORY_BYTES)


def keys(operator: MapOperator, rows: pa.Table) -> list[str]:
    return operator.run([rows], {}, BatchTime(0, 0, 0)).rows.column("__k").to_pylist()


def test_should_keep_rows_for_which_a_condition_is_true_in_their_order(rows):
    assert keys(the_map("i > 7"), rows) == ["k4", "k9", "k11", "k14", "k15"]


def test_should_drop_a_row_whose_new_key_is_null(rows):
    assert keys(the_map(key="CAST(i AS STRING)"), rows.slice(2, 3)) == ["0", "2147483647"]


@pytest.fixture
def gone(rows) -> pa.Table:
    place = rows.column_names.index("__deleted")
    return rows.slice(3, 1).set_column(place, rows.schema.field(place), pa.array([True]))


@pytest.mark.parametrize(("condition", "passes"), [("i > 7", False), ("i IS NULL", True), ("NOT (i > 7)", False)])
def test_should_evaluate_conditions_on_a_deletion_as_on_nulls(gone, condition, passes):
    assert keys(the_map(condition), gone) == ["k3"] * passes


@pytest.mark.parametrize(("key", "found"), [("s", []), ("coalesce(s, 'none')", ["none"]), ("'all'", ["all"])])
def test_should_forward_a_deletion_under_a_new_key_that_is_not_null(gone, key, found):
    passed = the_map(key=key).run([gone], {}, BatchTime(0, 0, 0)).rows
    assert (passed.column("__k").to_pylist(), passed.column("__deleted").to_pylist()) == (found, [True] * len(found))


def test_should_keep_the_columns_of_a_deletion_null_whatever_is_selected(gone):
    passed = a_map("coalesce(i, 1)", "INT").run([gone], {}, BatchTime(0, 0, 0)).rows
    assert passed.select(["__k", "__deleted", "result"]).to_pylist() == [
        {"__k": "k3", "__deleted": True, "result": None}
    ]


def test_should_keep_the_order_of_rows_with_the_same_sequence_number(rows):
    place = rows.column_names.index("__seq")
    same = pa.concat_tables([rows] * 50)
    same = same.set_column(place, rows.schema.field(place), pa.array([7] * same.num_rows))
    assert keys(the_map("i IS NULL OR i IS NOT NULL"), same) == [f"k{n}" for n in range(len(ROWS))] * 50


def test_should_return_no_rows_for_no_rows(rows):
    assert keys(the_map("i > 7"), rows.slice(0, 0)) == []
