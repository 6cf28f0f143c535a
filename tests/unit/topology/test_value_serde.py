"""Topics with Avro values: what a topology says of them, and what it refuses."""

from __future__ import annotations

import json

import fastavro
import pytest

from tidemark.errors import InvalidTopology
from tidemark.topology.builder import Topology
from tidemark.topology.plan import TableSource
from tidemark.topology.value_serde import ValueSerde
from tidemark.topology.windows import tumbling

SCHEMA = "id STRING, cents BIGINT"


def sinks(topology):
    return [sink for subtopology in topology.plan().subtopologies for sink in subtopology.sinks]


def test_should_read_json_unless_the_topology_says_otherwise():
    topology = Topology("app")
    topology.stream("in", schema=SCHEMA).to("out")
    plan = topology.plan()
    assert [source.value_serde for source in plan.subtopologies[0].sources] == [ValueSerde.JSON]
    assert [(sink.value_serde, sink.value_schema) for sink in sinks(topology)] == [(ValueSerde.JSON, None)]
    assert not plan.has_avro


def test_should_give_a_sink_the_schema_of_its_columns():
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, price DECIMAL(12,2), at TIMESTAMP, lots ARRAY<STRUCT<n: INT>>")
    stream.to("of-shop.1", value_serde="avro")
    (sink,) = sinks(topology)
    assert topology.plan().has_avro
    schema = json.loads(sink.value_schema)
    fastavro.parse_schema(json.loads(sink.value_schema))
    assert schema["name"] == "of_shop_1"
    assert {field["name"]: field["type"] for field in schema["fields"]} == {
        "id": ["null", "string"],
        "price": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}],
        "at": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
        "lots": ["null", {"type": "array", "items": ["null", {
            "type": "record", "name": "lots", "namespace": "of_shop_1",
            "fields": [{"name": "n", "type": ["null", "int"], "default": None}],
        }]}],
    }  # fmt: skip


def test_should_give_each_record_in_a_column_a_name_of_its_own():
    topology = Topology("app")
    schema = "a STRUCT<b: STRUCT<c: INT>>, a_b STRUCT<d: STRING>, m MAP<STRING, STRUCT<a: ARRAY<STRUCT<b: INT>>>>"
    topology.stream("in", schema=schema).to("out", value_serde="avro")
    (sink,) = sinks(topology)
    named: dict[str, object] = {}
    fastavro.parse_schema(json.loads(sink.value_schema), named)
    assert set(named) == {"out", "out.a", "out.a.b", "out.a_b", "out.m", "out.m.a"}


def test_should_give_a_table_its_columns_and_those_of_its_window():
    topology = Topology("app")
    counts = topology.stream("in", schema=SCHEMA, key="id", value_serde="avro").group_by_key()
    counts.windowed_by(tumbling("1m")).count(name="n", store="n").to("out", value_serde="avro")
    (sink,) = sinks(topology)
    fields = [(field["name"], field["type"][1]) for field in json.loads(sink.value_schema)["fields"]]
    assert fields == [("id", "string"), ("window_start", "long"), ("window_end", "long"), ("n", "long")]


def test_should_refuse_a_name_that_avro_does_not_have():
    stream = Topology("app").stream("in", schema="deal STRUCT<`of shop`: STRING>")
    with pytest.raises(InvalidTopology, match="'of shop' cannot be the name of a field in Avro"):
        stream.to("out", value_serde="avro")


@pytest.mark.parametrize("form", ["protobuf", "AVRO", None, 1])
def test_should_refuse_an_unknown_form_of_values(form):
    with pytest.raises(InvalidTopology, match=r"value_serde=.* is unknown; use one of 'json', 'avro'"):
        Topology("app").stream("in", schema=SCHEMA, value_serde=form)
    with pytest.raises(InvalidTopology, match=r"value_serde=.* is unknown"):
        Topology("app").stream("in", schema=SCHEMA).to("out", value_serde=form)


def test_should_refuse_two_forms_of_values_in_one_topic():
    topology = Topology("app")
    stream = topology.stream("in", schema=SCHEMA)
    stream.filter("cents > 0").to("out", value_serde="avro")
    stream.filter("cents < 0").to("out")
    with pytest.raises(
        InvalidTopology, match=r"value_serde='json' for topic 'out', but .* has value_serde='avro' for it"
    ):
        topology.plan()
    other = Topology("app")
    other.stream("in", schema=SCHEMA, value_serde="avro")
    with pytest.raises(InvalidTopology, match="read twice with different schema, key, key_serde, value_serde"):
        other.stream("in", schema=SCHEMA)


@pytest.mark.parametrize(("form", "is_own_changelog"), [("json", True), ("avro", False)])
def test_should_keep_a_changelog_for_a_table_of_avro(form, is_own_changelog):
    """A standby, which has no Spark, could not read its topic."""
    topology = Topology("app", optimised=True)
    topology.table("in", schema=SCHEMA, store="t", value_serde=form).to("out")
    (table,) = (node for node in topology.plan().subtopologies[0].nodes if isinstance(node, TableSource))
    assert [store.source_topic is not None for store in table.stores] == [is_own_changelog]
