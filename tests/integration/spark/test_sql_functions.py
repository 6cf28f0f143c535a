"""The functions of Spark that do not compute one value from one record are refused in expressions."""

from __future__ import annotations

import pytest

from tidemark.errors import InvalidTopology
from tidemark.topology.schema import parse_schema
from tidemark.topology.sql.expressions import expression_type

pytestmark = pytest.mark.spark

COLUMNS = parse_schema("s STRING, at TIMESTAMP, l BIGINT, a ARRAY<INT>", "schema")
ARGUMENTS = ("", "s", "l", "a", "s, s", "l, 0.5", "at, '1 minute'", "s, l, l")
CATALYST = "org.apache.spark.sql.catalyst.expressions."
GROUPS = {"agg_funcs", "window_funcs", "generator_funcs", "table_funcs"}
CLASSES = ("Generator", "Nondeterministic", "Unevaluable", "aggregate.AggregateFunction")


def is_accepted(name, arguments):
    try:
        expression_type(f"{name}({arguments})", COLUMNS, "test")
    except InvalidTopology:
        return False
    return True


@pytest.fixture(scope="module")
def not_of_one_record(spark):
    """The names of Spark's functions that make other rows, need several, or depend on more than their arguments.

    What Spark replaces before it computes, such as the current time, has no value of its own: it is unevaluable.
    """
    jvm = spark.sparkContext._jvm
    bases = [jvm.java.lang.Class.forName(CATALYST + name) for name in CLASSES]
    state = spark._jsparkSession.sessionState()
    found = {}
    for registry in (state.functionRegistry(), state.tableFunctionRegistry()):
        names = registry.listFunction()
        for i in range(names.length()):
            info = registry.lookupFunction(names.apply(i)).get()
            kind = jvm.java.lang.Class.forName(info.getClassName())
            is_replaced = jvm.java.lang.Class.forName(CATALYST + "RuntimeReplaceable").isAssignableFrom(kind)
            matching = [name for name, base in zip(CLASSES, bases, strict=True) if base.isAssignableFrom(kind)]
            if is_replaced:
                matching = [name for name in matching if name == "aggregate.AggregateFunction"]
            if matching or info.getGroup() in GROUPS:
                found[info.getName()] = (info.getGroup(), *matching)
    return found


def test_should_refuse_every_function_of_spark_that_is_not_of_one_record(not_of_one_record):
    assert {
        "window",
        "session_window",
        "explode",
        "rand",
        "any",
        "row_number",
        "range",
        "current_path",
    } <= not_of_one_record.keys()
    accepted = {
        name: why
        for name, why in not_of_one_record.items()
        if name.isidentifier() and any(is_accepted(name, arguments) for arguments in ARGUMENTS)
    }
    assert accepted == {}


def test_should_accept_functions_of_one_record():
    assert all(is_accepted(*call) for call in [("upper", "s"), ("size", "a"), ("timestamp_millis", "l"), ("abs", "l")])
