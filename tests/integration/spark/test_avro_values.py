"""Values of Avro become JSON in Spark: what each type becomes, which records cannot be read, and what a registry is asked."""

from __future__ import annotations

import datetime
import decimal
import json
import time
from types import SimpleNamespace

import pytest
from spark_jobs import avro_values
from spark_jobs.avro_values import AvroValues
from tests.support.schema_registry import FakeRegistry, avro_value

from tidemark.errors import OutcomeUnknown
from tidemark.topology.avro_schema import inlined, named_types
from tidemark.topology.schema import parse_schema

pytestmark = pytest.mark.spark

TOPIC = "orders"
FIRST = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "kind", "type": {
                "type": "enum", "name": "Kind", "symbols": ["NEW", "USED"]}}]}}},
        {"name": "cents", "type": "int"},
    ],
}  # fmt: skip
SECOND = {
    **FIRST,
    "fields": [
        {"name": "note", "type": ["null", "string"], "default": None},
        *FIRST["fields"],
        {"name": "best", "type": ["null", "Line"], "default": None},
    ],
}
TYPES = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "b", "type": "boolean"},
        {"name": "f", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "at_ms", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "either", "type": ["int", "string"]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "noon", "type": {"type": "long", "logicalType": "time-micros"}},
    ],
}


class Asked:
    """A registry of this process, as `SchemaRegistry` answers."""

    def __init__(self, registry: FakeRegistry) -> None:
        self.registry = registry
        self.ids: list[int] = []

    def avro(self, schema_id):
        self.ids.append(schema_id)
        status, answer = self.registry.answer("GET", f"/schemas/ids/{schema_id}", b"")
        if status == 503:
            raise OutcomeUnknown("away")
        if status != 200:
            raise ValueError(answer["message"])
        schema = json.loads(answer["schema"])
        return inlined(schema, named_types(schema))


@pytest.fixture
def registry():
    return FakeRegistry()


def values_of(spark, registry, columns, topic=TOPIC):
    asked = Asked(registry)
    return AvroValues({topic: parse_schema(columns, "test")}, lambda: asked, spark), asked


def frame(spark, values, topic=TOPIC):
    return spark.createDataFrame(
        [(n, topic, value) for n, value in enumerate(values)], "n INT, topic STRING, value BINARY"
    )


def texts(values, records):
    rows = values.frame(records).selectExpr("n", "CAST(value AS STRING) AS text").collect()
    return [row.text for row in sorted(rows, key=lambda row: row.n)]


def test_should_read_each_record_with_the_schema_that_it_names(spark, registry):
    """The columns are found by name, whatever their place, and what a record does not have is left out."""
    values, asked = values_of(spark, registry, "id STRING, note STRING, cents BIGINT, gone STRING")
    one, two = registry.add("orders-value", FIRST), registry.add("orders-value", SECOND)
    line = {"sku": "s", "kind": "NEW"}
    order = {"id": "a", "lines": [line], "cents": 5}
    records = frame(spark, [
        avro_value(one, FIRST, order),
        avro_value(two, SECOND, {**order, "note": "é\"\n", "best": line}),
        avro_value(two, SECOND, {**order, "cents": -7}),
    ])  # fmt: skip
    assert values.learn(records)
    assert [json.loads(text) for text in texts(values, records)] == [
        {"id": "a", "cents": 5}, {"id": "a", "note": "é\"\n", "cents": 5}, {"id": "a", "cents": -7},
    ]  # fmt: skip
    assert not values.learn(records)
    assert sorted(asked.ids) == [one, two]


def test_should_write_each_type_as_json_that_the_declared_column_reads(spark, registry):
    columns = (
        "b BOOLEAN, f DOUBLE, raw BINARY, day DATE, at TIMESTAMP, at_ms BIGINT, price DECIMAL(12,2), tags MAP<STRING, BIGINT>, "
        "uuid STRING, either STRUCT<member0: INT, member1: STRING>, local TIMESTAMP_NTZ, noon BIGINT"
    )
    values, _ = values_of(spark, registry, columns)
    number = registry.add("orders-value", TYPES)
    at = datetime.datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
    given = {
        "b": True, "f": 0.1, "raw": b"\x00\xff", "day": datetime.date(2026, 2, 28), "at": at,
        "at_ms": datetime.datetime.fromtimestamp(1.5, datetime.UTC), "price": decimal.Decimal("-12345.60"),
        "tags": {"x": 1 << 60}, "uuid": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "either": "two",
        "local": at.replace(tzinfo=None), "noon": datetime.time(12, 0, 0, 1),
    }  # fmt: skip
    records = frame(spark, [avro_value(number, TYPES, given)])
    values.learn(records)
    made = values.frame(records).selectExpr(f"from_json(CAST(value AS STRING), '{columns}') AS r").select("r.*")
    (row,) = made.selectExpr("*", "CAST(at AS STRING) AS at_text").collect()
    assert row.at_text == "2026-02-28 23:59:59.999999"
    assert row.at_ms == 1500
    assert (row.b, row.f, bytes(row.raw), row.day, row.price) == (
        True, 0.1, b"\x00\xff", given["day"], decimal.Decimal("-12345.60"),
    )  # fmt: skip
    assert row.tags == {"x": 1 << 60}
    assert row.uuid == given["uuid"]
    assert (row.local, row.noon) == (given["local"], 43_200_000_001)
    assert row.either.asDict() == {"member0": None, "member1": "two"}


def test_should_make_of_what_it_cannot_read_a_value_that_is_no_json(spark, registry):
    values, asked = values_of(spark, registry, "id STRING")
    one = registry.add("orders-value", FIRST)
    proto = registry.add("orders-value", "string")
    good = avro_value(one, FIRST, {"id": "a", "lines": [], "cents": 5})
    prefix = good[:5]
    # The length of a text of a thousand million bytes.
    huge = bytes.fromhex("80a8d6b907")
    given = [
        good, None,
        prefix + huge + b"\x01\x01", prefix + b"\x02a" + huge + b"\x01",
        b"", b"\x00", prefix, prefix + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", good[:-1],
        b"\x00\x00\x00\x03\xe7" + good[5:], b'{"id": "a"}', avro_value(proto, "string", "text"), b"\x01" + good[1:],
    ]  # fmt: skip
    records = frame(spark, given)
    assert values.learn(records)
    found = texts(values, records)
    assert found[:2] == ['{"id":"a"}', None]
    for text in found[2:]:
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)
    assert sorted(asked.ids) == [one, proto, 999]


def test_should_not_end_with_a_schema_that_is_nested_too_deeply(spark):
    deep = "long"
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    schema = {"type": "record", "name": "Deep", "fields": [{"name": "id", "type": deep}]}
    registry = SimpleNamespace(avro=lambda _: schema)
    values = AvroValues({TOPIC: parse_schema("id STRING", "test")}, lambda: registry, spark)
    assert not values.learn(frame(spark, [b"\x00\x00\x00\x00\x01abc"]))


@pytest.mark.parametrize(
    "field",
    [{"name": "u", "type": ["null", ["string", "int"]]}, {"name": "u"}],
    ids=["union in a union", "field without a type"],
)
def test_should_not_end_with_a_schema_that_is_none(spark, field):
    """Some registries take any JSON for a schema of Avro. Its records are bad ones."""
    registry = SimpleNamespace(avro=lambda _: {"type": "record", "name": "Order", "fields": [field]})
    values = AvroValues({TOPIC: parse_schema("u STRING", "test")}, lambda: registry, spark)
    assert not values.learn(frame(spark, [b"\x00\x00\x00\x00\x01abc"]))


def test_should_judge_a_schema_by_what_its_own_topic_reads(spark, registry):
    """Spark cannot read a type that contains itself. It does no harm where nobody reads it."""
    tree = {"type": "record", "name": "Tree", "fields": [
        {"name": "id", "type": "string"}, {"name": "under", "type": {"type": "array", "items": "Tree"}},
    ]}  # fmt: skip
    asked = Asked(registry)
    topics = {"plain": parse_schema("id STRING", "test"), "deep": parse_schema("under ARRAY<STRING>", "test")}
    values = AvroValues(topics, lambda: asked, spark)
    number = registry.add("plain-value", tree)
    given = [avro_value(number, tree, {"id": "a", "under": [{"id": "b", "under": []}]})]
    assert values.learn(frame(spark, given, "plain").union(frame(spark, given, "deep")))
    assert texts(values, frame(spark, given, "plain")) == ['{"id":"a"}']
    assert texts(values, frame(spark, given, "deep")) != ['{"id":"a"}']


def test_should_leave_the_values_of_other_topics_as_they_are(spark, registry):
    values, asked = values_of(spark, registry, "id STRING")
    records = frame(spark, [b"\x00\x00\x00\x00\x01anything", None, b"{}"], topic="others")
    assert not values.learn(records)
    assert texts(values, records) == ["\x00\x00\x00\x00\x01anything", None, "{}"]
    assert asked.ids == []


def test_should_not_ask_again_soon_for_what_the_registry_does_not_have(spark, registry):
    values, asked = values_of(spark, registry, "id STRING")
    records = frame(spark, [b"\x00\x00\x00\x00\x09abc"])
    assert not values.learn(records)
    assert not values.learn(records)
    assert asked.ids == [9]


def test_should_end_if_the_registry_does_not_answer(spark, registry):
    """No record is taken for a bad one because of it."""
    values, _ = values_of(spark, registry, "id STRING")
    registry.fails = True
    with pytest.raises(OutcomeUnknown):
        values.learn(frame(spark, [b"\x00\x00\x00\x00\x01abc"]))


def test_should_ask_nothing_for_a_topology_without_avro(spark):
    values = AvroValues({}, lambda: pytest.fail("asked"), spark)
    assert values.view("records") == "records"


def test_should_not_read_a_type_that_only_an_unread_field_has(spark, registry):
    """Spark cannot read `category`, which defines its type in place. `best` names a type that an unread field defines."""
    schema = {"type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "category", "type": {"type": "record", "name": "Category", "fields": [
            {"name": "name", "type": "string"}, {"name": "parent", "type": ["null", "Category"]}]}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}]}}},
        {"name": "best", "type": "Line"},
        {"name": "name", "type": "string"},
        {"name": "full", "type": "string", "aliases": ["name"]},
    ]}  # fmt: skip
    values, _ = values_of(spark, registry, "best STRUCT<sku: STRING>, name STRING, full STRING")
    number = registry.add("orders-value", schema)
    best = {"sku": "b"}
    order = {"category": {"name": "c", "parent": None}, "lines": [best], "best": best, "name": "n", "full": "f"}
    records = frame(spark, [avro_value(number, schema, order)])
    assert values.learn(records)
    assert [json.loads(text) for text in texts(values, records)] == [{"best": best, "name": "n", "full": "f"}]


def test_should_read_a_time_as_a_number_wherever_a_number_is_declared(spark, registry):
    at = {"type": "long", "logicalType": "timestamp-millis"}
    schema = {"type": "record", "name": "A", "fields": [
        {"name": "meta", "type": ["null", {"type": "record", "name": "Meta", "fields": [
            {"name": "ts", "type": at}, {"name": "noon", "type": {"type": "long", "logicalType": "time-micros"}},
            {"name": "read", "type": at}]}]},
        {"name": "all", "type": {"type": "array", "items": ["null", at]}},
        {"name": "by", "type": {"type": "map", "values": at}},
    ]}  # fmt: skip
    columns = "meta STRUCT<ts: BIGINT, noon: BIGINT, read: TIMESTAMP>, all ARRAY<BIGINT>, by MAP<STRING, BIGINT>"
    values, _ = values_of(spark, registry, columns)
    number = registry.add("orders-value", schema)
    time = datetime.datetime.fromtimestamp(1.5, datetime.UTC)
    given = {"meta": {"ts": time, "noon": datetime.time(12), "read": time}, "all": [time, None], "by": {"k": time}}
    records = frame(spark, [avro_value(number, schema, given)])
    assert values.learn(records)
    assert [json.loads(text) for text in texts(values, records)] == [{
        "meta": {"ts": 1500, "noon": 43_200_000_000, "read": "1970-01-01T00:00:01.500000Z"},
        "all": [1500, None], "by": {"k": 1500},
    }]  # fmt: skip


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
SECOND_AND_A_HALF = datetime.datetime.fromtimestamp(1.5, datetime.UTC)
AS_TEXT = "1970-01-01T00:00:01.500000Z"


def read_once(spark, registry, columns, schema, given):
    """Return the JSON of one record."""
    values, _ = values_of(spark, registry, columns)
    records = frame(spark, [avro_value(registry.add("orders-value", schema), schema, given)])
    assert values.learn(records)
    (text,) = texts(values, records)
    return json.loads(text)


def record(name, *fields, **more):
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields], **more}


@pytest.mark.parametrize("space", [{}, {"namespace": "shop"}], ids=["no namespace", "namespace"])
def test_should_read_each_use_of_a_type_as_its_own_column_declares_it(spark, registry, space):
    """Debezium has one type for the row before and after a change. An enum has one definition for all uses."""
    row = record("Row", ("at", MILLIS), ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}))
    schema = record(
        "Change", ("before", ["null", row]), ("after", ["null", "Row"]), ("all", {"type": "array", "items": "Row"}),
        ("kind", ["null", "Kind"]), **space,
    )  # fmt: skip
    columns = (
        "before STRUCT<at: BIGINT, kind: STRING>, after STRUCT<at: TIMESTAMP, kind: STRING>, "
        "all ARRAY<STRUCT<at: BIGINT, kind: STRING>>, kind STRING"
    )
    one = {"at": SECOND_AND_A_HALF, "kind": "B"}
    given = {"before": one, "after": one, "all": [one], "kind": "A"}
    number = {"at": 1500, "kind": "B"}
    assert read_once(spark, registry, columns, schema, given) == {
        "before": number, "after": {"at": AS_TEXT, "kind": "B"}, "all": [number], "kind": "A",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "columns", "read"),
    [
        (["null", MILLIS, "string"], "u STRUCT<member0: BIGINT, member1: STRING>", {"member0": 1500}),
        (["string", {"type": "null"}, MILLIS], "u STRUCT<member0: STRING, member1: BIGINT>", {"member1": 1500}),
        ([MILLIS, "string"], "u STRUCT<member0: TIMESTAMP, member1: STRING>", {"member0": AS_TEXT}),
        (["null", MILLIS, "int"], "u BIGINT", 1500),
    ],
    ids=range(4),
)
def test_should_read_a_time_in_a_union_as_its_member_is_declared(spark, registry, kinds, columns, read):
    schema = record("Order", ("u", kinds))
    assert read_once(spark, registry, columns, schema, {"u": SECOND_AND_A_HALF}) == {"u": read}


def test_should_find_the_type_in_a_union_though_another_use_of_it_was_read_before(spark, registry):
    line, price = record("Line", ("at", MILLIS)), record("Price", ("at", MILLIS))
    schema = record("Order", ("a", line), ("b", price), ("c", ["null", "Price", "Line"]), namespace="shop")
    members = "STRUCT<member0: STRUCT<at: TIMESTAMP>, member1: STRUCT<at: TIMESTAMP>>"
    columns = f"a STRUCT<at: BIGINT>, b STRUCT<at: BIGINT>, c {members}"
    one = {"at": SECOND_AND_A_HALF}
    given = {"a": one, "b": one, "c": ("shop.Line", one)}
    assert read_once(spark, registry, columns, schema, given)["c"] == {"member1": {"at": AS_TEXT}}


def test_should_refuse_a_union_in_which_two_types_could_not_be_told_apart(spark, registry):
    """Avro would take the last one for both."""
    types = ["null", record("A", ("at", MILLIS), namespace="x"), record("A", ("at", MILLIS), namespace="y")]
    members = "STRUCT<member0: STRUCT<at: TIMESTAMP>, member1: STRUCT<at: TIMESTAMP>>"
    good = record("Order", ("u", types))
    assert read_once(spark, registry, f"u {members}", good, {"u": ("x.A", {"at": SECOND_AND_A_HALF})}) == {
        "u": {"member0": {"at": AS_TEXT}}
    }
    schema = record("Order", ("u", types), ("v", ["null", "x.A", "y.A"]))
    others = "STRUCT<member0: STRUCT<at: BIGINT>, member1: STRUCT<at: BIGINT>>"
    values, _ = values_of(spark, registry, f"u {members}, v {others}")
    fault = values._fault_of(values._registry, TOPIC, registry.add("orders-value", schema))
    assert fault.startswith("a union has the types x.A, y.A, and one of them is also read elsewhere")


def test_should_read_two_unions_of_the_same_types_that_are_declared_in_the_same_way(spark, registry):
    """Such are the states before and after a change, whose types differ in their versions, which are namespaces."""
    types = ["null", record("Order", ("at", MILLIS), namespace="v1"), record("Order", ("at", MILLIS), namespace="v2")]
    schema = record("Change", ("before", types), ("after", ["null", "v1.Order", "v2.Order"]))
    members = "STRUCT<member0: STRUCT<at: BIGINT>, member1: STRUCT<at: BIGINT>>"
    one = {"at": SECOND_AND_A_HALF}
    given = {"before": ("v1.Order", one), "after": ("v2.Order", one)}
    assert read_once(spark, registry, f"before {members}, after {members}", schema, given) == {
        "before": {"member0": {"at": 1500}}, "after": {"member1": {"at": 1500}},
    }  # fmt: skip


def test_should_read_a_union_of_a_record_and_an_enum_of_the_same_short_name(spark, registry):
    """Avro tells them apart by their kinds, although the record has another namespace for this column."""
    at = record("A", ("at", MILLIS), namespace="x")
    kind = {"type": "enum", "name": "A", "namespace": "y", "symbols": ["N"]}
    schema = record("Order", ("first", at), ("u", ["x.A", kind]))
    columns = "first STRUCT<at: TIMESTAMP>, u STRUCT<member0: STRUCT<at: BIGINT>, member1: STRING>"
    one = {"at": SECOND_AND_A_HALF}
    assert read_once(spark, registry, columns, schema, {"first": one, "u": ("x.A", one)})["u"] == {
        "member0": {"at": 1500}
    }


@pytest.mark.parametrize(
    "member",
    [
        "Tree",
        {"type": "array", "items": "Tree"},
        {"type": "map", "values": ["null", {"type": "array", "items": "Tree"}]},
    ],
    ids=["record", "array", "map"],
)
def test_should_not_read_the_fields_of_a_member_of_a_union_that_no_struct_declares(spark, registry, member):
    """Spark cannot read `Tree`, which contains itself, and a uuid of bytes is no text."""
    tree = record("Tree", ("under", ["null", "Tree"]))
    uuid = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}
    schema = record("Order", ("tree", tree), ("u", ["null", "string", member, uuid]))
    given = {"tree": {"under": None}, "u": "text"}
    assert read_once(spark, registry, "u STRUCT<member0: STRING>", schema, given) == {"u": {"member0": "text"}}


WIDE = {"logicalType": "decimal", "precision": 64, "scale": 2}


@pytest.mark.parametrize(
    "kind",
    [{"type": "bytes", **WIDE}, {"type": "fixed", "name": "Price", "size": 27, **WIDE}],
    ids=["bytes", "fixed"],
)
def test_should_read_a_decimal_of_more_digits_than_spark_has(spark, registry, kind):
    """Kafka Connect gives each of its decimals 64 digits. A value that has so many is none of Spark's."""
    name = kind.get("name", kind)
    schema = record("Order", ("price", kind), ("m", record("M", ("price", ["null", name]))), ("text", name))
    values, _ = values_of(spark, registry, "price DECIMAL(38,2), m STRUCT<price: DECIMAL(38,2)>, text DECIMAL(38,2)")
    number = registry.add("orders-value", schema)
    widest = decimal.Decimal("-" + "9" * 36 + ".99")
    wide = decimal.Decimal("1" + "0" * 36 + ".00")
    records = frame(spark, [
        avro_value(number, schema, {"price": price, "m": {"price": price}, "text": price}) for price in (widest, wide)
    ])  # fmt: skip
    assert values.learn(records)
    good, bad = texts(values, records)
    assert json.loads(good, parse_float=decimal.Decimal) == {"price": widest, "m": {"price": widest}, "text": widest}
    assert bad == avro_values._NOT_AVRO


def test_should_read_a_uuid_of_bytes_only_as_bytes(spark, registry):
    """As text it would be base64, which nobody expects of a uuid."""
    kind = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}
    schema = record("Order", ("raw", kind), ("text", ["null", "Id"]))
    given = {"raw": b"\x01" * 16, "text": b"\x02" * 16}
    assert read_once(spark, registry, "raw BINARY", schema, given) == {"raw": "AQEBAQEBAQEBAQEBAQEBAQ=="}
    values, _ = values_of(spark, registry, "raw BINARY, text STRING")
    fault = values._fault_of(values._registry, TOPIC, registry.add("orders-value", schema))
    assert fault == "Id is a uuid of bytes, which is no text: declare BINARY instead of STRING"


@pytest.mark.parametrize("column", ["TIMESTAMP", "TIMESTAMP_NTZ"])
@pytest.mark.parametrize("logical", ["timestamp-nanos", "local-timestamp-nanos"])
def test_should_read_a_time_in_nanoseconds_only_as_a_number(spark, registry, logical, column):
    """Spark has no type for it, and would take its nanoseconds for seconds."""
    schema = record("Order", ("at", {"type": "long", "logicalType": logical}))
    at = 1_500_000_001
    assert read_once(spark, registry, "at BIGINT", schema, {"at": at}) == {"at": at}
    assert read_once(spark, registry, "at STRING", schema, {"at": at}) == {"at": at}
    values, _ = values_of(spark, registry, f"at {column}")
    fault = values._fault_of(values._registry, TOPIC, registry.add("orders-value", schema))
    assert fault == f"Spark reads {logical} as a number of nanoseconds: declare BIGINT instead of {column}"


def test_should_not_read_what_no_struct_declares(spark, registry):
    """Spark can read neither `self` nor `price`. `next` names a type that a field defines which is not read."""
    meta = record(
        "Meta", ("self", ["null", "Meta"]), ("line", record("Line", ("sku", "string"))), ("next", ["null", "Line"]),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 50}), ("id", "string"),
    )  # fmt: skip
    line = {"sku": "s"}
    given = {"self": None, "line": line, "next": line, "price": decimal.Decimal(1), "id": "i"}
    given = {"m": {**given, "self": given}, "all": [given], "none": given}
    schema = record("Order", ("m", meta), ("all", {"type": "array", "items": "Meta"}), ("none", "Meta"))
    columns = (
        "m STRUCT<id: STRING, self: STRUCT<id: STRING>, next: STRUCT<sku: STRING>>, all ARRAY<STRUCT<id: STRING>>, "
        "none STRUCT<other: STRING>"
    )
    assert read_once(spark, registry, columns, schema, given) == {
        "m": {"id": "i", "self": {"id": "i"}, "next": line}, "all": [{"id": "i"}], "none": {},
    }  # fmt: skip


def test_should_read_a_record_whole_for_a_column_that_is_no_struct(spark, registry):
    """Such a column takes the text of its JSON. Another column that declares the fields has only them."""
    meta = record("Meta", ("at", MILLIS), ("id", "string"))
    schema = record("Order", ("text", meta), ("again", "Meta"), ("m", "Meta"))
    one = {"at": SECOND_AND_A_HALF, "id": "i"}
    columns = "text STRING, again STRING, m STRUCT<at: BIGINT>"
    found = read_once(spark, registry, columns, schema, {"text": one, "again": one, "m": one})
    whole = {"at": AS_TEXT, "id": "i"}
    assert found == {"text": whole, "again": whole, "m": {"at": 1500}}


def test_should_read_a_record_without_fields(spark, registry):
    schema = {"type": "record", "name": "Ping", "fields": []}
    values, _ = values_of(spark, registry, "id STRING")
    records = frame(spark, [avro_value(registry.add("orders-value", schema), schema, {})])
    assert values.learn(records)
    assert texts(values, records) == ["{}"]


def test_should_ask_for_a_bounded_number_of_schemas_at_a_time_and_forget_what_there_was_none_of(
    spark, registry, monkeypatch
):
    monkeypatch.setattr(avro_values, "_MOST_AT_ONCE", 3)
    values, asked = values_of(spark, registry, "id STRING")
    one = registry.add("orders-value", FIRST)
    good = avro_value(one, FIRST, {"id": "a", "lines": [], "cents": 5})
    broken = [b"\x00" + number.to_bytes(4, "big") for number in range(1000, 1010)]
    records = frame(spark, [*broken, good, good])
    assert values.learn(records)
    assert asked.ids == [one, 1000, 1001]
    assert not values.learn(records)
    assert asked.ids == [one, 1000, 1001, 1002, 1003, 1004]
    now = time.monotonic() + 3600
    monkeypatch.setattr(avro_values.time, "monotonic", lambda: now)
    values.learn(records)
    assert len(values._unreadable) == 3
