"""Every way to write a topology wrong that is known, with the node and the remedy that its error names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tidemark.errors import ExitCode, InvalidTopology
from tidemark.topology.builder import Topology
from tidemark.topology.stream import Stream
from tidemark.topology.windows import hopping, tumbling

SCHEMA = "patient_id STRING, beat_ms BIGINT, ibi_ms INT, at TIMESTAMP, weight DECIMAL(5, 2), tags ARRAY<STRING>"
SOURCE, FIRST, SECOND = "KSTREAM-SOURCE-0000000000", "0000000001", "0000000002"


def stream(topology: Topology, **changes: Any) -> Stream:
    arguments: dict[str, Any] = {"schema": SCHEMA, "key": "patient_id", "timestamp": "beat_ms"} | changes
    return topology.stream(arguments.pop("topic", "pulses"), **arguments)


def windowed(topology: Topology) -> Any:
    return stream(topology).group_by_key().windowed_by(tumbling("60s").grace("5s"))


def two_aggregations(topology: Topology) -> None:
    beats = stream(topology).group_by_key()
    beats.count(store="beats")
    beats.sum("ibi_ms", store="BEATS")


def two_sources(topology: Topology) -> None:
    stream(topology).to("out")
    stream(topology, timestamp="_timestamp").to("out")


def loop_of_two(topology: Topology) -> None:
    stream(topology, topic="a").to("b")
    stream(topology, topic="b").to("a")


Case = tuple[str, Callable[[Topology], object], list[str]]

CASES: list[Case] = [
    ("nothing in it", lambda t: None, ["application app", "stream("]),
    ("a source that goes nowhere", lambda t: stream(t), [SOURCE, "'pulses'", ".to("]),
    ("a filter that goes nowhere", lambda t: stream(t).filter("ibi_ms > 0"), ["KSTREAM-FILTER-" + FIRST, ".to("]),
    ("a group without aggregate", lambda t: stream(t).group_by_key(), [SOURCE, "aggregation"]),
    ("topic name", lambda t: stream(t, topic="pulse events"), [SOURCE, "'pulse events'", "letters"]),
    ("topic not a string", lambda t: stream(t, topic=3), [SOURCE, "3", "letters"]),
    ("sink name", lambda t: stream(t).to("a/b"), ["KSTREAM-SINK-" + FIRST, "'a/b'"]),
    ("empty schema", lambda t: stream(t, schema=" "), [SOURCE, "schema", "id STRING"]),
    ("column without type", lambda t: stream(t, schema="a"), [SOURCE, "'a'", "no type"]),
    ("unknown type", lambda t: stream(t, schema="a STRNG"), [SOURCE, "line 1, column 7", "STRNG"]),
    ("unsupported type", lambda t: stream(t, schema="a VARCHAR(3)"), [SOURCE, "'a'", "VARCHAR", "STRING"]),
    ("constraint", lambda t: stream(t, schema="a INT NOT NULL"), [SOURCE, "'a'", "NOT NULL", "remove"]),
    ("repeated column", lambda t: stream(t, schema="a INT, A INT"), [SOURCE, "'A'", "twice"]),
    ("reserved column", lambda t: stream(t, schema="_offset INT"), [SOURCE, "_offset", "reserved"]),
    ("schema that is more", lambda t: stream(t, schema="a INT) AS SELECT (1"), [SOURCE, "not a list of columns"]),
    ("schema of two statements", lambda t: stream(t, schema="a INT); DROP TABLE x; --"), [SOURCE, "not"]),
    ("quoted column name", lambda t: stream(t, schema="`we ird` INT"), [SOURCE, "'we ird'", "rename"]),
    ("unknown key", lambda t: stream(t, key="patient"), [SOURCE, "key", "did you mean 'patient_id'?"]),
    ("key is a list", lambda t: stream(t, key="tags"), [SOURCE, "key", "ARRAY<STRING>", "pick a field"]),
    ("key is null", lambda t: stream(t, key="NULL"), [SOURCE, "key", "always null"]),
    ("timestamp is INT", lambda t: stream(t, timestamp="ibi_ms"), [SOURCE, "timestamp", "CAST(ibi_ms AS BIGINT)"]),
    ("timestamp is text", lambda t: stream(t, timestamp="patient_id"), [SOURCE, "STRING", "AS TIMESTAMP)"]),
    ("timestamp is now", lambda t: stream(t, timestamp="now()"), [SOURCE, "now()", "_timestamp"]),
    ("same topic otherwise", two_sources, [SOURCE, "'pulses'", "read it once"]),
    ("syntax", lambda t: stream(t).filter("ibi_ms >"), ["KSTREAM-FILTER-" + FIRST, "line 1, column 8", "near '>'"]),
    ("quote left open", lambda t: stream(t).filter("patient_id = 'a"), ["KSTREAM-FILTER-" + FIRST, "does not parse"]),
    ("empty condition", lambda t: stream(t).filter(""), ["KSTREAM-FILTER-" + FIRST, "empty"]),
    ("condition not text", lambda t: stream(t).filter(True), ["KSTREAM-FILTER-" + FIRST, "not a string"]),
    ("unknown column", lambda t: stream(t).filter("ibi > 3"), ["'ibi'", "did you mean 'ibi_ms'?"]),
    ("nothing alike", lambda t: stream(t).filter("zzz > 3"), ["'zzz'", "known are patient_id, beat_ms"]),
    ("number as condition", lambda t: stream(t).filter("ibi_ms"), ["INT", "BOOLEAN", "compare"]),
    ("aggregate in filter", lambda t: stream(t).filter("sum(ibi_ms) > 3"), ["sum()", "group_by_key()"]),
    ("Spark's own aggregate", lambda t: stream(t).filter("bool_or(ibi_ms > 3)"), ["group_by_key()"]),
    ("random", lambda t: stream(t).filter("rand() < 0.1"), ["rand()", "computed again"]),
    ("clock", lambda t: stream(t).filter("at < current_timestamp"), ["current_timestamp()", "computed again"]),
    ("clock as number", lambda t: stream(t).filter("unix_timestamp() > 1"), ["computed again"]),
    ("uuid", lambda t: stream(t).select(id="uuid()"), ["KSTREAM-MAPVALUES-" + FIRST, "uuid()"]),
    ("subquery", lambda t: stream(t).filter("ibi_ms IN (SELECT 1)"), ["subquery", "join"]),
    ("statement", lambda t: stream(t).filter("SELECT 1"), ["KSTREAM-FILTER-" + FIRST, "SELECT"]),
    ("two statements", lambda t: stream(t).filter("ibi_ms > 1; DROP TABLE x"), ["KSTREAM-FILTER-" + FIRST, "one"]),
    ("analytic function", lambda t: stream(t).filter("row_number() over () = 1"), ["OVER", "windowed_by"]),
    ("generator", lambda t: stream(t).select(tag="explode(tags)"), ["explode()", "one value per record"]),
    ("comment", lambda t: stream(t).filter("ibi_ms > 1 -- fast"), ["comment", "remove"]),
    ("placeholder", lambda t: stream(t).filter("ibi_ms > :least"), ["placeholder"]),
    ("star", lambda t: stream(t).select("*"), ["KSTREAM-MAPVALUES-" + FIRST, "name"]),
    ("alias in filter", lambda t: stream(t).filter("ibi_ms > 1 AS fast"), ["AS", "remove"]),
    ("empty select", lambda t: stream(t).select(), ["KSTREAM-MAPVALUES-" + FIRST, "no column"]),
    ("unnamed select", lambda t: stream(t).select("ibi_ms / 1000"), ["no name", "AS name"]),
    ("reserved name selected", lambda t: stream(t).select("_offset"), ["'_offset'", "AS another_name"]),
    ("repeated select", lambda t: stream(t).select("ibi_ms", ibi_ms="1"), ["'ibi_ms'", "twice"]),
    ("type not known", lambda t: stream(t).select(x="from_json(patient_id, 'a INT')"), ["cast it explicitly"]),
    ("column selected away", lambda t: stream(t).select("ibi_ms").filter("beat_ms > 1"), ["'beat_ms'", "ibi_ms"]),
    ("reserved selected away", lambda t: stream(t).select("ibi_ms").filter("_offset > 1"), ["'_offset'"]),
    ("duration", lambda t: tumbling("60 sec"), ["window size", "'60 sec'", "'60s'"]),
    ("float duration", lambda t: tumbling(1.5), ["window size", "1.5", "timedelta"]),
    ("bool duration", lambda t: tumbling(True), ["window size", "True"]),
    ("part of a millisecond", lambda t: tumbling(timedelta(microseconds=1)), ["window size", "whole number"]),
    ("zero size", lambda t: tumbling("0s"), ["window size", "zero"]),
    ("negative size", lambda t: tumbling(-1), ["window size", "negative"]),
    ("negative grace", lambda t: tumbling("60s").grace(-1), ["window grace", "negative"]),
    ("negative delta", lambda t: tumbling("60s").grace(timedelta(seconds=-1)), ["window grace", "negative"]),
    ("gap between windows", lambda t: hopping("60s", "61s"), ["window advance", "61s", "the size or less"]),
    ("zero advance", lambda t: hopping("60s", 0), ["window advance", "zero"]),
    ("too many windows", lambda t: hopping("1d", "1ms"), ["window advance", "86400000", "1000"]),
    ("not windows", lambda t: stream(t).group_by_key().windowed_by("60s"), [SOURCE, "tumbling("]),
    ("windows twice", lambda t: windowed(t).windowed_by(tumbling("1m")), [SOURCE, "twice"]),
    ("retention = size + grace", lambda t: windowed(t).count(retention="65s"), ["size + grace (65s)", "above"]),
    (
        "default retention too short",
        lambda t: stream(t).group_by_key().windowed_by(tumbling("1d")).count(),
        ["KSTREAM-AGGREGATE-" + SECOND, "default retention 1d", "set retention"],
    ),
    ("retention written wrong", lambda t: windowed(t).count(retention="6 hours"), ["retention", "'6h'"]),
    ("retention without windows", lambda t: stream(t).group_by_key().count(retention="6h"), ["windowed_by()"]),
    ("store name", lambda t: windowed(t).count(store="a b"), ["KSTREAM-AGGREGATE-" + FIRST, "'a b'", "letters"]),
    ("duplicate store", two_aggregations, ["'BEATS'", "KSTREAM-AGGREGATE-" + FIRST, "another store= name"]),
    ("store with nothing", lambda t: windowed(t).aggregate(store="s"), ["'s'", "hold nothing"]),
    ("result named as the key", lambda t: windowed(t).count(name="patient_id"), ["'patient_id'", "the key"]),
    ("result named as the window", lambda t: windowed(t).count(name="window_end"), ["the window"]),
    ("result name", lambda t: windowed(t).count(name="a-b"), ["'a-b'", "underscores"]),
    ("two results alike", lambda t: windowed(t).aggregate(n="count(*)", N="count(*)"), ["another aggregate"]),
    ("sum of text", lambda t: windowed(t).sum("patient_id"), ["sum", "STRING", "CAST(patient_id AS BIGINT)"]),
    ("max of a decimal", lambda t: windowed(t).max("weight"), ["DECIMAL(5, 2)", "cast it explicitly"]),
    ("min of a timestamp", lambda t: windowed(t).min("at"), ["TIMESTAMP", "cast it explicitly"]),
    ("sum of the unknown", lambda t: windowed(t).sum("nosuch(ibi_ms)"), ["cannot be told", "cast it explicitly"]),
    ("sum of an aggregate", lambda t: windowed(t).sum("max(ibi_ms)"), ["max()"]),
    ("sum of nothing", lambda t: windowed(t).sum(None), ["needs an expression"]),
    ("no aggregate", lambda t: windowed(t).aggregate(x="ibi_ms"), ["x", "not an aggregate", "count(*)"]),
    ("other aggregate", lambda t: windowed(t).aggregate(x="stddev(ibi_ms)"), ["stddev()", "sum(x)"]),
    ("computed", lambda t: windowed(t).aggregate(x="sum(ibi_ms) / count(*)"), ["computes with an aggregate"]),
    ("distinct", lambda t: windowed(t).aggregate(x="count(DISTINCT ibi_ms)"), ["DISTINCT", "remove"]),
    ("several arguments", lambda t: windowed(t).aggregate(x="count(ibi_ms, beat_ms)"), ["several arguments"]),
    ("no argument", lambda t: windowed(t).aggregate(x="count()"), ["no argument"]),
    ("two names", lambda t: windowed(t).aggregate(x="sum(ibi_ms) AS y"), ["'x'", "remove AS y"]),
    ("filter clause", lambda t: windowed(t).aggregate(x="sum(ibi_ms) FILTER (WHERE ibi_ms > 1)"), ["CASE WHEN"]),
    ("unknown column inside", lambda t: windowed(t).aggregate(x="sum(ibi)"), ["'ibi'", "'ibi_ms'"]),
    ("sink is the source", lambda t: windowed(t).count().to("pulses"), [SOURCE, "'pulses'", "loop"]),
    ("loop over two", loop_of_two, ["'a'", "loop"]),
    ("sink is the changelog", lambda t: windowed(t).count(store="s").to("app-s-changelog"), ["store 's'", "another"]),
    ("sink is the commits topic", lambda t: stream(t).to("app-commits"), ["KSTREAM-SINK-" + FIRST, "commit records"]),
    ("source is the dead letters", lambda t: stream(t, topic="app-dlq").to("x"), [SOURCE, "bad records"]),
]


@pytest.mark.parametrize(("build", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_wrong_topology_is_refused_with_node_and_remedy(build: Callable[[Topology], object], says: list[str]) -> None:
    topology = Topology("app")
    with pytest.raises(InvalidTopology) as refused:
        build(topology)
        topology.plan()
    message = str(refused.value)
    assert "\n" not in message
    assert [part for part in says if part not in message] == [], message
    assert refused.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("application_id", ["", "a b", "..", "a/b", "x" * 101, 7])
def test_an_application_id_that_kafka_would_not_take_is_refused(application_id: Any) -> None:
    with pytest.raises(InvalidTopology, match="application id"):
        Topology(application_id)


@pytest.mark.parametrize("version", ["", "v 1", "1" * 41, 1])
def test_a_version_that_does_not_fit_in_offset_metadata_is_refused(version: Any) -> None:
    with pytest.raises(InvalidTopology, match="version"):
        Topology("app", version=version)


def test_a_changelog_name_longer_than_kafka_allows_is_refused() -> None:
    fits = Topology("a" * 100)
    stream(fits).group_by_key().count(store="s" * 138)
    with pytest.raises(InvalidTopology, match="has 250 characters, Kafka allows 249"):
        stream(Topology("a" * 100)).group_by_key().count(store="s" * 139)
