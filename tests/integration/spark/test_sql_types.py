"""The types that the topology gives to SQL expressions are those that Spark gives to them."""

from __future__ import annotations

import itertools
import re

import pytest
from pyspark.errors import AnalysisException

from tidemark.errors import InvalidTopology
from tidemark.topology.schema import parse_schema
from tidemark.topology.sql.expressions import expression_type, parse
from tidemark.topology.sql.types import FIXED_TYPES, UNKNOWN, function_name

pytestmark = pytest.mark.spark

SCHEMA = (
    "t TINYINT, sm SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, price DECIMAL(10,2), s STRING, yes BOOLEAN, bin BINARY, "
    "dt DATE, at TIMESTAMP, n TIMESTAMP_NTZ, a ARRAY<INT>, words ARRAY<STRING>, m MAP<STRING,BIGINT>, "
    "place STRUCT<ward: STRING, bed: SMALLINT>"
)
COLUMNS = parse_schema(SCHEMA, "schema")
PLAIN = ("t", "i", "l", "f", "d", "price", "s", "at", "0.5")
OPERANDS = (*itertools.product(("t", "l", "f", "0.5"), ("i", "d", "0.5")), ("s", "s"), ("price", "i"), ("at", "at"))

CALLS = """
upper(s); lower(s); initcap(s); trim(s); regexp_extract(s, 'a', 0); regexp_replace(s, 'a', 'b'); replace(s, 'a', 'b');
translate(s, 'a', 'b'); substring_index(s, '.', 1); hex(i); md5(s); sha1(s); sha2(s, 256); base64(bin); to_json(place);
get_json_object(s, '$.a'); date_format(at, 'yyyy'); from_unixtime(l); format_number(d, 2); format_string('%s', s);
concat_ws(',', s, words); array_join(words, ','); soundex(s); typeof(i); space(3); elt(1, s, s); length(s); ascii(s);
instr(s, 'a'); year(at); month(at); day(at); dayofmonth(dt); dayofyear(dt); dayofweek(dt); weekofyear(dt); weekday(dt);
quarter(dt); hour(at); minute(at); second(at); size(a); cardinality(a); unix_date(dt); levenshtein(s, s); hash(s, i);
octet_length(s); bit_length(s); unix_timestamp(at); unix_millis(at); unix_micros(at); unix_seconds(at); xxhash64(s, i);
crc32(s); factorial(i); sqrt(i); cbrt(f); exp(i); ln(d); log(2, i); log2(d); log10(d); log1p(d); expm1(d); pow(i, 2);
sign(i); signum(i); sin(d); cos(d); tan(d); asin(d); acos(d); atan(d); atan2(d, d); radians(i); degrees(i);
months_between(at, at); rint(d); pi(); e(); hypot(i, i); isnan(d); isnull(s); isnotnull(s); startswith(s, 'a');
endswith(s, 'a'); contains(s, 'a'); array_contains(a, 1); regexp_like(s, 'a'); exists(a, x -> x > 1); to_date(s);
make_date(i, i, i); last_day(dt); trunc(dt, 'MM'); next_day(dt, 'Mon'); to_timestamp(s, 'yyyy'); date_trunc('DAY', at);
timestamp_millis(l); timestamp_seconds(l); timestamp_micros(l);
split(s, ','); unbase64(s); unhex(s); encode(s, 'utf-8'); bigint(s); smallint(s); tinyint(s); boolean(s)
"""


@pytest.fixture(scope="module")
def types_of(spark):
    """Returns a function that returns Spark's types of expressions, or None for one that Spark refuses."""
    spark.createDataFrame([], SCHEMA).createOrReplaceTempView("typed")

    def types(expressions):
        if not expressions:
            return []
        try:
            fields = spark.sql(f"SELECT {', '.join(expressions)} FROM typed").schema
            return [field.dataType.simpleString().upper() for field in fields]
        except AnalysisException:
            if len(expressions) == 1:
                return [None]
            half = len(expressions) // 2
            return types(expressions[:half]) + types(expressions[half:])

    return types


def derived(text):
    try:
        return expression_type(text, COLUMNS, "test")
    except InvalidTopology:
        return UNKNOWN


def differing(types_of, expressions):
    """Return the expressions with a certain type that is another one in Spark, and all that have a certain type."""
    certain = {text: kind for text in expressions if (kind := derived(text)) not in (UNKNOWN, "NULL")}
    in_spark = dict(zip(certain, types_of(list(certain)), strict=True))
    known = {text: kind for text, kind in in_spark.items() if kind is not None}
    # A number with a point is a DECIMAL for Spark, of which Tidemark takes the nearest DOUBLE.
    wrong = {
        text: (certain[text], kind)
        for text, kind in known.items()
        if certain[text].replace(" ", "") != kind and not (has_fraction(text) and is_decimal(certain[text], kind))
    }
    return wrong, known


def has_fraction(text):
    return re.search(r"\b[0-9]+\.[0-9]+(?!D)", text) is not None


def is_decimal(kind, in_spark):
    return kind == "DOUBLE" and in_spark.startswith("DECIMAL")


def test_should_derive_the_type_that_spark_gives_to_every_listed_function(types_of):
    calls = [call.strip() for call in CALLS.split(";")]
    called = {function_name(parse(call, "test")) for call in calls}
    assert FIXED_TYPES.keys() - called == set()
    wrong, known = differing(types_of, calls)
    assert wrong == {}
    assert known.keys() == set(calls)


def test_should_derive_the_type_that_spark_gives_to_listed_functions_of_bytes_and_lists(types_of):
    names = {call.strip().partition("(")[0] for call in CALLS.split(";")}
    wrong, known = differing(types_of, [f"{name}({column})" for name in sorted(names) for column in ("bin", "a")])
    assert wrong == {}
    assert len(known) > 20


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "%", "div", "&", "|", "^", "<<", ">>", "||"])
def test_should_derive_the_type_that_spark_gives_to_operators(types_of, operator):
    wrong, known = differing(types_of, [f"{x} {operator} {y}" for x, y in itertools.product(PLAIN, repeat=2)])
    assert wrong == {}
    assert known


@pytest.mark.parametrize(
    "form",
    [
        "coalesce({x}, {y})", "nvl({x}, {y})", "greatest({x}, {y})", "least({x}, {y})", "nullif({x}, {y})", "if(yes, {x}, {y})",
        "CASE WHEN yes THEN {x} ELSE {y} END", "CASE WHEN yes THEN {x} END", "nvl2(s, {x}, {y})", "concat({x}, {y})",
        "array({x}, {y})", "abs({x})", "-{x}", "~{x}", "round({x})", "round({x}, 1)", "ceil({x})", "floor({x})",
        "ceil({x}, 1)", "substring({x}, 1, 2)", "left({x}, 2)", "right({x}, 2)", "lpad({x}, 2)", "rpad({x}, 2, 'a')",
        "reverse({x})", "repeat({x}, 2)", "({x})", "try_cast({x} AS INT)", "CAST({x} AS STRING)", "{x}::BIGINT",
        "CAST({x} AS DECIMAL(12,3))", "CAST({x} AS VARCHAR(3))", "double({x})", "date({x})", "timestamp({x})",
        "to_timestamp({x})", "datediff({x}, {y})", "date_diff(DAY, {x}, {y})", "timestampdiff(SECOND, {x}, {y})",
        "datediff(MILLISECOND, {x}, {y})", "date_add({x}, 1)", "dateadd(HOUR, 1, {x})", "{x} IS NULL", "{x} IN ({y})",
        "{x} BETWEEN {y} AND {y}", "NOT {x}", "bround({x})", "pmod({x}, {y})", "mod({x}, {y})", "shiftleft({x}, {y})",
        "unix_timestamp({x})", "bit_count({x})", "array_position(a, {x})", "try_divide({x}, {y})", "nanvl({x}, {y})",
        "from_utc_timestamp({x}, s)", "to_utc_timestamp({x}, 'Asia/Tokyo')", "hour(from_utc_timestamp({x}, 'UTC'))",
    ],
)  # fmt: skip
def test_should_derive_the_type_that_spark_gives_to_forms_whose_type_depends_on_their_operands(types_of, form):
    wrong, _ = differing(types_of, sorted({form.format(x=x, y=y) for x, y in OPERANDS}))
    assert wrong == {}


@pytest.mark.parametrize(
    "field", ["YEAR", "YEAROFWEEK", "QUARTER", "MONTH", "WEEK", "DAY", "DOW", "DAYOFWEEK_ISO", "DOY", "HOUR", "SECOND"]
)
def test_should_derive_the_type_that_spark_gives_to_a_field_of_a_time(types_of, field):
    wrong, _ = differing(types_of, [f"extract({field} FROM {column})" for column in ("at", "dt", "n")])
    assert wrong == {}


def test_should_derive_the_type_that_the_schema_gives_to_parts_of_columns(types_of):
    parts = ["place.ward", "place.bed", "place.bed + 1", "a[0]", "split(s, ',')[0]", "words[1]"]
    wrong, known = differing(types_of, parts)
    assert (wrong, known.keys()) == ({}, set(parts))


@pytest.mark.parametrize(
    "text",
    [
        "s * i",
        "s + 1",
        "price * i",
        "price / 2",
        "round(price, 1)",
        "extract(SECOND FROM at)",
        "array_position(a, 1)",
        "nosuch(s)",
    ],
)
def test_should_not_guess_a_type(text):
    assert derived(text) == UNKNOWN


@pytest.mark.parametrize(
    ("text", "kind"),
    [("i + l", "BIGINT"), ("i * 1.5", "DOUBLE"), ("f / 3", "DOUBLE"), ("t + t", "TINYINT"), ("coalesce(l, 0)", "BIGINT"),
     ("year(at) * 100 + month(at)", "INT"), ("concat(l, ',', s)", "STRING"), ("abs(f)", "FLOAT"), ("price", "DECIMAL(10, 2)"),
     ("from_utc_timestamp(at, 'Asia/Tokyo')", "TIMESTAMP"), ("to_utc_timestamp(at, s)", "TIMESTAMP")],
)  # fmt: skip
def test_should_know_the_types_of_common_expressions(text, kind):
    assert derived(text) == kind
