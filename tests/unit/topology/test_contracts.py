"""Contracts are checked where they are written, and become checks of the audit."""

from __future__ import annotations

import pytest

from tidemark.audit.contracts import contracts
from tidemark.errors import InvalidTopology
from tidemark.topology.builder import Topology
from tidemark.topology.contracts import expect
from tidemark.topology.windows import tumbling

SCHEMA = "id STRING, at BIGINT, celsius DOUBLE, ok BOOLEAN"


def built(*expects):
    topology = Topology("app")
    stream = topology.stream("in", schema=SCHEMA, key="id", timestamp="at", expects=expects)
    counted = stream.group_by_key().windowed_by(tumbling("1m")).count(name="n")
    counted.to("out", expects=[expect("n", between=(1, None))])
    return topology.plan()


def test_should_keep_the_contract_of_a_source_and_of_a_sink():
    plan = built(expect("CELSIUS", not_null=True, between=(30, 45)), expect("id", matches="^p[0-9]+$"))
    assert [one.column for one in plan.subtopologies[0].sources[0].expects] == ["celsius", "id"]
    assert plan.subtopologies[0].sinks[0].expects[0].low == 1


def test_should_make_a_check_from_every_rule():
    plan = built(
        expect("celsius", not_null=True, between=(30, 45.5)),
        expect("id", in_set=["a", "it's"], matches=r"\d"),
        expect("ok", in_set=[True]),
    )
    source, sink = contracts(plan)
    assert {check.name: check.unexpected for check in source.checks} == {
        "in: celsius is not null": "`celsius` IS NULL",
        "in: celsius is at least 30 and at most 45.5": "`celsius` < 30 OR `celsius` > 45.5",
        "in: id is one of 'a', 'it\\'s'": "`id` NOT IN ('a', 'it\\'s')",
        "in: id matches \\d": "NOT `id` RLIKE '\\\\d'",
        "in: ok is one of true": "`ok` NOT IN (true)",
    }
    assert [check.unexpected for check in sink.checks] == ["`n` < 1"]
    assert (source.is_source, sink.is_source, sink.topic) == (True, False, "out")


def test_should_share_a_source_only_under_the_same_contract():
    topology = Topology("app")
    first = topology.stream("in", schema=SCHEMA, expects=[expect("id", not_null=True)])
    assert topology.stream("in", schema=SCHEMA, expects=[expect("id", not_null=True)]) == first
    with pytest.raises(InvalidTopology, match="contract"):
        topology.stream("in", schema=SCHEMA, expects=[expect("id", in_set=["a"])])


def written_by_two_paths(first, second):
    topology = Topology("app")
    stream = topology.stream("in", schema=SCHEMA, key="id", timestamp="at")
    stream.filter("ok").to("out", expects=first)
    stream.filter("NOT ok").to("out", expects=second)
    return topology.plan()


def test_should_check_a_topic_once_when_two_paths_write_it_under_the_same_contract():
    rules = [expect("id", not_null=True), expect("celsius", between=(30, 45))]
    (found,) = contracts(written_by_two_paths(rules, rules[::-1]))
    assert (found.topic, len(found.checks)) == ("out", 2)


def written_and_read(*expects, at_source=(), schema="celsius DOUBLE"):
    """A topic that the topology writes with a contract, and reads with this schema in a sub-topology of its own."""
    topology = Topology("app")
    topology.stream("in", schema=SCHEMA).filter("ok").to("mid", expects=expects)
    topology.stream("mid", schema=schema, expects=at_source).filter("celsius > 40").to("out")
    return topology.plan()


@pytest.mark.parametrize("is_at_source", [True, False])
def test_should_check_the_contract_of_a_sink_where_the_topology_reads_its_topic(is_at_source):
    """An audit reads such a topic as a source, so the contract of a sink would never be checked."""
    rules = [expect("celsius", not_null=True)]
    plan = written_and_read(*rules, at_source=rules if is_at_source else ())
    (found,) = contracts(plan)
    (reading,) = (each for each in plan.subtopologies if "mid" in each.source_topics)
    assert (found.topic, found.is_source, found.subtopology) == ("mid", True, reading)
    assert [column.name for column in found.columns] == ["celsius"]
    assert [check.name for check in found.checks] == ["mid: celsius is not null"]


@pytest.mark.parametrize(
    "schema", ["id STRING, celsius DOUBLE", "at STRING, celsius DOUBLE"], ids=["lacking", "another type"]
)
def test_should_leave_a_contract_at_the_sink_if_the_source_does_not_read_its_columns(schema):
    (found,) = contracts(written_and_read(expect("at", between=(0, None)), schema=schema))
    assert not found.is_source


@pytest.mark.parametrize("second", [[], [expect("id", in_set=["a"])]])
def test_should_refuse_two_contracts_of_one_topic(second):
    with pytest.raises(InvalidTopology, match=r"KSTREAM-SINK-.*'out' has another contract at KSTREAM-SINK-"):
        written_by_two_paths([expect("id", not_null=True)], second)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ("celsius", "CAST(celsius AS STRING) AS celsius", "as STRING, but .* writes it as DOUBLE"),
        ("celsius", "CAST(celsius AS INT) AS celsius", "as INT, but .* writes it as DOUBLE"),
        ("celsius", "celsius + 1 AS celsius", None),
    ],
)
@pytest.mark.parametrize("is_stored", [False, True])
def test_should_refuse_two_types_of_a_column_in_the_contract_of_a_topic(first, second, says, is_stored):
    topology = Topology("app")
    stream = topology.stream("in", schema=SCHEMA, key="id", timestamp="at")
    one, other = (stream.select("id", expression) for expression in (first, second))
    if is_stored:
        other = other.to_table("last").to_stream()
    one.to("out", expects=[expect("celsius", not_null=True)])
    other.to("out", expects=[expect("celsius", not_null=True)])
    if says is None:
        topology.plan()
        return
    with pytest.raises(InvalidTopology, match=rf"KSTREAM-SINK-.*: topic 'out' gets column celsius {says}"):
        topology.plan()


def test_should_accept_two_types_of_a_column_that_no_contract_names():
    topology = Topology("app")
    stream = topology.stream("in", schema=SCHEMA, key="id", timestamp="at")
    stream.select("id", "celsius").to("out", expects=[expect("id", not_null=True)])
    stream.select("id", "CAST(celsius AS STRING) AS celsius").to("out", expects=[expect("id", not_null=True)])
    assert len(contracts(topology.plan())) == 1


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: expect("id"), "there is no rule for it"),
        (lambda: expect(""), "name a column"),
        (lambda: expect("id", in_set="abc"), "give a list of values"),
        (lambda: expect("id", in_set=[]), "give a list of values"),
        (lambda: expect("id", matches="("), "is not a regular expression"),
        (lambda: expect("at", between=(None, None)), "give minimum and maximum"),
        (lambda: expect("at", between=(1, 2, 3)), "give minimum and maximum"),
        (lambda: expect("at", between=("a", "b")), "give minimum and maximum"),
        (lambda: expect("celsius", between=(0, float("inf"))), "as finite numbers"),
        (lambda: expect("celsius", between=(float("nan"), 1)), "as finite numbers"),
        (lambda: built(expect("celsius", in_set=[float("nan")])), "no NaN and no infinity"),
        (lambda: expect("at", between=(2, 1)), "nothing passes"),
        (lambda: built(expect("celcius", not_null=True)), "no such column; did you mean 'celsius'"),
        (lambda: built(expect("id", between=(1, 2))), "between is for numbers, but the column is STRING"),
        (lambda: built(expect("at", matches="1")), "matches is for STRING, but the column is BIGINT"),
        (lambda: built(expect("at", in_set=["1"])), "in_set has '1', but the column is BIGINT"),
        (lambda: built(expect("at", in_set=[True])), "in_set has True, but the column is BIGINT"),
        (lambda: built({"celsius": 1}), "is not a list of expect"),
    ],
)
def test_should_refuse_an_impossible_expectation(made, says):
    with pytest.raises(InvalidTopology, match=says):
        made()
