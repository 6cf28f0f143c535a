"""Schemas of other programs as one text: each named type is defined where it is first used."""

from __future__ import annotations

import copy
import io
import json

import fastavro
import pytest

from tidemark.topology.avro_schema import inlined, named_types

LINE = {"type": "record", "name": "Line", "namespace": "shop", "fields": [
    {"name": "sku", "type": "string"},
    {"name": "next", "type": ["null", "Line"]},
]}  # fmt: skip
KIND = {"type": "enum", "name": "shop.Kind", "symbols": ["NEW", "USED"]}


def parsed(schema):
    return fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(copy.deepcopy(schema)))


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        {"type": "string"},
        ["null", {"type": "map", "values": {"type": "array", "items": "long"}}],
        LINE,
        KIND,
        {"type": "fixed", "name": "Md5", "size": 16},
        {"type": "record", "name": "Order", "namespace": "shop", "fields": [
            {"name": "one", "type": LINE}, {"name": "two", "type": ["null", "shop.Line"], "default": None},
            {"name": "kind", "type": {"type": "map", "values": KIND}}, {"name": "other", "type": "Kind"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ]},
        {"type": "record", "name": "a.Outer", "fields": [
            {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}},
            {"name": "again", "type": "a.Inner"}, {"name": "short", "type": "Inner"},
        ]},
    ],
)  # fmt: skip
def test_should_keep_the_meaning_of_a_schema_that_is_whole(schema):
    assert parsed(inlined(schema)) == parsed(schema)


def test_should_put_in_what_references_define_once():
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "lines", "type": {"type": "array", "items": "Line"}},
        {"name": "best", "type": ["null", "shop.Line"]},
        {"name": "kind", "type": "Kind"},
    ]}  # fmt: skip
    whole = inlined(order, named_types(LINE) | named_types(KIND))
    assert json.dumps(whole).count('"sku"') == 1
    assert json.dumps(whole).count('"NEW"') == 1
    named: dict[str, object] = {}
    fastavro.parse_schema(copy.deepcopy(LINE), named)
    fastavro.parse_schema(copy.deepcopy(KIND), named)
    written = {
        "lines": [{"sku": "a", "next": None}],
        "best": {"sku": "b", "next": {"sku": "c", "next": None}},
        "kind": "USED",
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(order), named), written)
    assert fastavro.schemaless_reader(io.BytesIO(out.getvalue()), fastavro.parse_schema(whole), None) == written


@pytest.mark.parametrize(("schema", "message"), [
    ("Unknown", "names the type 'Unknown'"),
    ({"type": "record", "name": "A", "fields": [{"name": "x", "type": "B"}]}, "names the type 'B'"),
    ({"name": "A"}, "is no type of Avro"),
    (7, "is no type of Avro"),
    (None, "is no type of Avro"),
])  # fmt: skip
def test_should_say_what_a_schema_lacks(schema, message):
    with pytest.raises(ValueError, match=message):
        inlined(schema)


def test_should_keep_a_type_without_a_namespace_apart_from_one_in_the_namespace_around_it():
    none = {"type": "enum", "name": "Common", "namespace": "", "symbols": ["A"]}
    own = {"type": "record", "name": "Common", "namespace": "shop", "fields": [{"name": "x", "type": "int"}]}
    schema = {"type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "one", "type": none}, {"name": "two", "type": own}, {"name": "three", "type": "shop.Common"},
    ]}  # fmt: skip
    assert set(named_types(schema)) == {"shop.Order", "shop.Common", "Common"}
    whole = inlined(schema)
    assert [field["type"] for field in whole["fields"]] == [none, own, "shop.Common"]
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "one", "type": "Common"}]}
    (field,) = inlined(order, {"Common": {"type": "enum", "name": "Common", "symbols": ["A"]}})["fields"]
    assert field["type"] == none
