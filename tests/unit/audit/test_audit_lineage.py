"""The run event of an audit, validated against OpenLineage's schemas of it and of its two facets."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tidemark.audit.lineage import TopicRead, run_event
from tidemark.topology.builder import Topology
from tidemark.topology.contracts import expect
from tidemark.verdict import Finding, Verdict

URI = {"type": "string", "pattern": "^(https://|urn:)"}
BASE = {"_producer": URI, "_schemaURL": URI}
ASSERTION = {
    "type": "object",
    "required": ["assertion", "success"],
    "properties": {"assertion": {"type": "string"}, "success": {"type": "boolean"}, "column": {"type": "string"}},
    "additionalProperties": False,
}
FACETS = {
    "dataQualityMetrics": {
        "required": ["_producer", "_schemaURL", "columnMetrics"],
        "properties": {**BASE, "rowCount": {"type": "integer"}, "columnMetrics": {"type": "object"}},
    },
    "dataQualityAssertions": {
        "required": ["_producer", "_schemaURL", "assertions"],
        "properties": {**BASE, "assertions": {"type": "array", "items": ASSERTION}},
    },
}
DATASET = {
    "required": ["namespace", "name", "inputFacets"],
    "properties": {
        "namespace": {"type": "string", "pattern": "^kafka://[^/]+:[0-9]+$"},
        "inputFacets": {"required": list(FACETS), "properties": FACETS},
    },
}
EVENT = {
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "format": "date-time"},
        "producer": URI,
        "schemaURL": URI,
        "run": {"required": ["runId"], "properties": {"runId": {"type": "string", "format": "uuid"}}},
        "job": {"required": ["namespace", "name"]},
        "inputs": {"type": "array", "minItems": 1, "items": DATASET},
    },
}


def test_should_describe_each_topic_with_its_own_facts() -> None:
    topology = Topology("app")
    rule = expect("x", not_null=True)
    counted = topology.stream("in", schema="id STRING, x BIGINT", key="id", expects=[rule]).group_by_key()
    counted.count(store="n").to("out")
    topics = {
        "in": TopicRead("source", 5),
        "out": TopicRead("sink", 3),
        "app-n-changelog": TopicRead("changelog", 3),
        "app-dlq": TopicRead("dlq", 0),
    }
    findings = [
        Finding("ranges_leave_no_gap", Verdict.OK, "so it is"),
        Finding("every_record_is_accounted_for", Verdict.FAILED, "not so", {"unexpected": 1}),
        Finding("no_update_comes_twice", Verdict.FAILED, "twice", {"unexpected": 1}),
        Finding("outputs_are_not_lost", Verdict.FAILED, "lost", {"unexpected": 20_000}),
        Finding("in: x is not null", Verdict.FAILED, "null", {"unexpected": 1}),
        Finding("updates_never_go_back", Verdict.NOT_ENOUGH_EVIDENCE, "nothing to look at"),
    ]
    quarantined = {
        "every_record_is_accounted_for": [{"task": "0_0"}],
        "no_update_comes_twice": [{"topic": "out"}],
        "outputs_are_not_lost": [{"topic": "out"}] * 10_000,
        # The record has a column of that name.
        "in: x is not null": [{"__topic": "in", "topic": "elsewhere"}],
    }
    event = run_event(
        topology.plan(), "20260101T000000-000", 1_700_000_000_000, "broker:9092", topics, findings, quarantined
    )
    jsonschema.validate(json.loads(json.dumps(event)), EVENT, format_checker=jsonschema.FormatChecker())
    facets = {one["name"]: one["inputFacets"] for one in event["inputs"]}
    assert {name: facet["dataQualityMetrics"]["rowCount"] for name, facet in facets.items()} == {
        name: read.records for name, read in topics.items()
    }
    summary = {
        name: {(a["assertion"], a.get("column")): a["success"] for a in facet["dataQualityAssertions"]["assertions"]}
        for name, facet in facets.items()
    }
    assert summary["in"] == {
        ("ranges_leave_no_gap", None): True,
        ("every_record_is_accounted_for", None): False,
        ("in: x is not null", "x"): False,
    }
    assert summary["out"] == {("no_update_comes_twice", None): False, ("outputs_are_not_lost", None): False}
    # Of the rows that say where outputs are lost, not all were kept: no topic is cleared.
    assert summary["app-n-changelog"] == {("no_update_comes_twice", None): True, ("outputs_are_not_lost", None): False}
    assert summary["app-dlq"] == {}


def test_should_refuse_an_event_without_its_run_in_the_local_schema() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"eventTime": "x", "producer": "urn:x", "schemaURL": "urn:x", "job": {}}, EVENT)
