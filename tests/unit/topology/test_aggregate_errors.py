"""distinct(), quantile() and collect() written wrong: each refusal names the node and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidemark.errors import ExitCode, InvalidTopology
from tidemark.stores.layout import ValueLayout, slots_of
from tidemark.topology.builder import Topology
from tidemark.topology.grouped import GroupedStream
from tidemark.topology.plan import Aggregate, Fold, Number
from tidemark.topology.windows import tumbling

SCHEMA = (
    "user_id STRING, page STRING, ms INT, at_ms BIGINT, price DECIMAL(5, 2), weight DOUBLE, body BINARY, "
    "tags ARRAY<STRING>, place STRUCT<bed: INT>"
)
NODE = "KSTREAM-AGGREGATE-000000000"


def grouped() -> GroupedStream:
    stream = Topology("app").stream("views", schema=SCHEMA, key="user_id", timestamp="at_ms")
    return stream.group_by_key().windowed_by(tumbling("60s"))


def aggregated(text: str) -> Callable[[GroupedStream], object]:
    return lambda group: group.aggregate(store="s", x=text)


def many_counts(number: int) -> Callable[[GroupedStream], object]:
    return lambda group: group.aggregate(store="s", **{f"n{i}": "count(*)" for i in range(number)})


def many_means(number: int, **others: str) -> Callable[[GroupedStream], object]:
    return lambda group: group.aggregate(store="s", **{f"m{i}": "mean(ms)" for i in range(number)}, **others)


Case = tuple[str, Callable[[GroupedStream], object], list[str]]

CASES: list[Case] = [
    ("rank above 1", aggregated("quantile(ms, 1.01)"), ["x", "1.01", "from 0 to 1"]),
    ("rank below 0", aggregated("quantile(ms, -0.01)"), ["x", "-0.01", "from 0 to 1"]),
    ("rank in percent", lambda g: g.quantile("ms", 99), ["quantile()", "99", "0.99"]),
    ("rank is nan", lambda g: g.quantile("ms", float("nan")), ["nan", "from 0 to 1"]),
    ("rank is a bool", lambda g: g.quantile("ms", True), ["True", "from 0 to 1"]),
    ("rank is text", lambda g: g.quantile("ms", "0.5"), ["'0.5'", "from 0 to 1"]),
    ("rank is a column", aggregated("quantile(ms, weight)"), ["weight", "not a number", "quantile(x, 0.99)"]),
    ("no rank", aggregated("quantile(ms)"), ["1 arguments", "quantile(x, 0.99)"]),
    ("two ranks", aggregated("quantile(ms, 0.5, 0.9)"), ["3 arguments", "quantile(x, 0.99)"]),
    ("nothing to rank", aggregated("quantile()"), ["0 arguments", "quantile(x, 0.99)"]),
    ("quantile of text", lambda g: g.quantile("page", 0.5), ["STRING", "CAST(page AS DOUBLE)"]),
    ("quantile of a decimal", aggregated("quantile(price, 0.5)"), ["DECIMAL(5, 2)", "CAST(price AS DOUBLE)"]),
    ("quantile of an unknown column", aggregated("quantile(mss, 0.5)"), ["'mss'", "did you mean 'ms'?"]),
    ("limit 0", lambda g: g.collect("page", 0), ["collect()", "limit 0", "1 to 10000"]),
    ("limit too large", aggregated("collect(page, 10001)"), ["10001", "1 to 10000"]),
    ("limit is no whole number", aggregated("collect(page, 1.5)"), ["1.5", "whole number"]),
    ("limit is a bool", lambda g: g.collect("page", True), ["True", "whole number"]),
    ("no limit", aggregated("collect(page)"), ["1 arguments", "collect(x, 10)"]),
    ("limit is a column", aggregated("collect(page, ms)"), ["ms", "not a number", "collect(x, 10)"]),
    ("collect of a list", lambda g: g.collect("tags", 3), ["ARRAY<STRING>", "CAST(tags AS STRING)"]),
    ("collect of a decimal", aggregated("collect(price, 3)"), ["DECIMAL(5, 2)", "CAST(price AS STRING)"]),
    ("collect of the unknown", aggregated("collect(nosuch(ms), 3)"), ["is unknown before it runs", "AS STRING)"]),
    ("too many fields", many_counts(65), ["65 aggregates", "65 fields", "64 is the most", "another aggregate()"]),
    ("too many means", many_means(32, x="count(*)"), ["33 aggregates", "65 fields", "64 is the most"]),
    ("distinct of two", aggregated("distinct(user_id, page)"), ["2 arguments", "distinct(x)"]),
    ("distinct of nothing", aggregated("distinct()"), ["0 arguments", "distinct(x)"]),
    ("distinct without expression", lambda g: g.distinct(None), ["needs an expression", "distinct(x)"]),
    ("distinct of a struct", aggregated("distinct(place)"), ["STRUCT", "to_json(place)"]),
    ("distinct of the unknown", lambda g: g.distinct("nosuch(ms)"), ["is unknown before it runs", "AS STRING)"]),
    ("distinct not closed", aggregated("distinct(page"), ["does not parse", "distinct(x)"]),
    ("distinct with AS", aggregated("distinct(page) AS pages"), ["'x'", "remove AS pages"]),
    ("distinct with FILTER", aggregated("distinct(page) FILTER (WHERE ms > 1)"), ["FILTER", "CASE WHEN"]),
    ("computed", aggregated("distinct(page) / 2"), ["computes with an aggregate", "distinct(x)"]),
    ("computed in brackets", aggregated("distinct(page) / (2)"), ["computes with an aggregate"]),
    ("aggregate inside", aggregated("distinct(max(ms))"), ["max()"]),
    ("own aggregate inside", aggregated("sum(collect(ms, 3))"), ["collect()"]),
    ("exact distinct", aggregated("count(DISTINCT page)"), ["DISTINCT", "distinct(x)", "remove"]),
    ("other aggregate", aggregated("stddev(ms)"), ["stddev()", "distinct(x)", "quantile(x, 0.99)", "collect(x, 10)"]),
    ("written nearly", aggregated("collects(ms, 3)"), ["not an aggregate", "'collect'"]),
]


@pytest.mark.parametrize(("build", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_should_refuse_a_wrong_aggregate_with_node_and_remedy(build: Any, says: list[str]) -> None:
    with pytest.raises(InvalidTopology) as refused:
        build(grouped())
    message = str(refused.value)
    assert "\n" not in message
    assert [part for part in [NODE, *says] if part not in message] == [], message
    assert refused.value.exit_code is ExitCode.USAGE


def test_should_refuse_an_aggregate_of_lists_when_there_is_only_one_record() -> None:
    stream = Topology("app").stream("views", schema=SCHEMA, key="user_id")
    with pytest.raises(InvalidTopology, match=r"collect\(\).*group_by_key\(\)"):
        stream.filter("collect(ms, 3) IS NOT NULL")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("distinct(user_id)", Aggregate("x", Fold.DISTINCT, "user_id", Number.LONG)),
        ("DISTINCT ( at_ms )", Aggregate("x", Fold.DISTINCT, "at_ms", Number.LONG)),
        ("distinct(ms)", Aggregate("x", Fold.DISTINCT, "CAST(ms AS BIGINT)", Number.LONG)),
        ("distinct(weight)", Aggregate("x", Fold.DISTINCT, "CAST(weight AS STRING)", Number.LONG)),
        ("distinct(price)", Aggregate("x", Fold.DISTINCT, "CAST(price AS STRING)", Number.LONG)),
        ("distinct(body)", Aggregate("x", Fold.DISTINCT, "body", Number.LONG)),
        (
            "distinct(concat(user_id, ',', page))",
            Aggregate("x", Fold.DISTINCT, "concat(user_id, ',', page)", Number.LONG),
        ),
        ("quantile(ms, 0.99)", Aggregate("x", Fold.QUANTILE, "CAST(ms AS DOUBLE)", Number.DOUBLE, 0.99)),
        ("quantile(weight, 0)", Aggregate("x", Fold.QUANTILE, "weight", Number.DOUBLE, 0)),
        ("quantile(coalesce(ms, 0), 1)", Aggregate("x", Fold.QUANTILE, "CAST(coalesce(ms, 0) AS DOUBLE)", Number.DOUBLE, 1)),
        ("Collect(page, 10000)", Aggregate("x", Fold.COLLECT, "page", Number.TEXT, 10_000)),
        ("collect(coalesce(ms, 0), 1)", Aggregate("x", Fold.COLLECT, "coalesce(ms, 0)", Number.TEXT, 1)),
    ],
)  # fmt: skip
def test_should_parse_an_aggregate_as_written(text: str, expected: Aggregate) -> None:
    group = grouped()
    table = group.aggregate(store="s", x=text)
    built = group.stream.draft.pipelines[-1].aggregation
    assert built is not None
    assert built.aggregates == (expected,)
    kinds = {Number.LONG: "BIGINT", Number.DOUBLE: "DOUBLE", Number.TEXT: "STRING"}
    assert [column.type for column in table.columns if column.name == "x"] == [kinds[expected.number]]


def test_should_build_the_same_with_methods_as_with_sql() -> None:
    group = grouped()
    group.distinct("user_id", store="a", retention="2h")
    group.quantile("ms", 0.99, name="p99")
    group.collect("page", 10, name="last")
    built = [pipeline.aggregation.aggregates[0] for pipeline in group.stream.draft.pipelines if pipeline.aggregation]
    assert built == [
        Aggregate("distinct", Fold.DISTINCT, "user_id", Number.LONG),
        Aggregate("p99", Fold.QUANTILE, "CAST(ms AS DOUBLE)", Number.DOUBLE, 0.99),
        Aggregate("last", Fold.COLLECT, "page", Number.TEXT, 10),
    ]
    assert [aggregate.call for aggregate in built] == [
        "distinct(user_id)", "quantile(CAST(ms AS DOUBLE), 0.99)", "collect(page, 10)",
    ]  # fmt: skip


@pytest.mark.parametrize("aggregate", [many_counts(64), many_means(32), many_means(31, x="count(*)", y="max(ms)")])
def test_should_build_as_many_fields_as_a_stored_value_has(aggregate: Callable[[GroupedStream], object]) -> None:
    group = grouped()
    aggregate(group)
    built = group.stream.draft.pipelines[-1].aggregation
    assert built is not None
    assert len(ValueLayout(slots_of(built.aggregates)).slots) == 64
