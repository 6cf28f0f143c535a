"""Every known error in a topology, with the node and the remedy that its message names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tidemark.errors import ExitCode, InvalidTopology
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized, store
from tidemark.topology.stream import Stream
from tidemark.topology.table import Table, until_window_closes
from tidemark.topology.windows import hopping, session, sliding, tumbling

SCHEMA = "patient_id STRING, beat_ms BIGINT, ibi_ms INT, at TIMESTAMP, weight DECIMAL(5, 2), tags ARRAY<STRING>"
SOURCE, FIRST, SECOND, THIRD = "KSTREAM-SOURCE-0000000000", "0000000001", "0000000002", "0000000003"


EMITS_NOTHING = ["KSTREAM-PROCESSOR-" + FIRST, "emits nothing", "emits='column TYPE'"]
OTHER_KEYS = ["KSTREAM-PROCESSOR-" + FIRST, "keys of other tasks", "repartition()", "keeps_key=True"]


OTHER_BYTES = ["keys of 'pulses' are written as long", "repartition(name=...) or group_by(...)"]


WINDOWED_KEY = ["KSTREAM-SINK-", "windowed_key=True"]


def stream(topology: Topology, **changes: Any) -> Stream:
    arguments: dict[str, Any] = {"schema": SCHEMA, "key": "patient_id", "timestamp": "beat_ms"} | changes
    return topology.stream(arguments.pop("topic", "pulses"), **arguments)


def windowed(topology: Topology) -> Any:
    return stream(topology).group_by_key().windowed_by(tumbling("60s").grace("5s"))


def beats(topology: Topology, **changes: Any) -> Stream:
    """Columns that the task loop keeps."""
    return stream(topology, schema="patient_id STRING, beat_ms BIGINT, ibi_ms INT", **changes)


def temperatures(topology: Topology, **changes: Any) -> Stream:
    schema = "patient_id STRING, measured_ms BIGINT, celsius DOUBLE"
    return stream(topology, **({"topic": "temperatures", "schema": schema, "timestamp": "measured_ms"} | changes))


def keyless(topology: Topology, topic: str, schema: str = "key STRING, v INT") -> Stream:
    """A column that is called as the key is, if no column is the key."""
    return topology.stream(topic, schema=schema)


def patients(topology: Topology, topic: str = "patients", **changes: Any) -> Table:
    arguments: dict[str, Any] = {"schema": "patient_id STRING, ward STRING", "key": "patient_id", "store": topic}
    return topology.table(topic, **(arguments | changes))


def kept(topology: Topology, **settings: Any) -> Table:
    return patients(topology, store=Materialized("s", **settings))


def finals(topology: Topology, **settings: Any) -> Table:
    return windowed(topology).count().suppress(until_window_closes(), **settings)


def counted_in_memory(topology: Topology) -> Topology:
    stream(topology).group_by_key().count(store=Materialized("n", in_memory=True))
    return topology


def refused_standbys(number: Any, _topology: Topology) -> Topology:
    return Topology("b", num_standby_replicas=number)


def passed_through(topology: Topology) -> Topology:
    stream(topology).to("out")
    return topology


def sessions(topology: Topology) -> Table:
    return stream(topology).group_by_key().windowed_by(session("1m")).count()


def processed(topology: Topology, *stores: Any, emits: Any = "n INT", processor: Any = "a.b:C") -> Stream:
    return beats(topology).process(processor, emits=emits, stores=stores).to("out")


def forwarded(topology: Topology) -> Stream:
    """What a processor forwards that may do so under any key."""
    return beats(topology).process("a.b:C", emits="patient_id STRING, n INT")


def numbered(topology: Topology, **changes: Any) -> Stream:
    """A source whose keys are eight bytes."""
    return beats(topology, **({"key": "_key", "key_serde": "long"} | changes))


def numbered_twice(topology: Topology) -> None:
    numbered(topology).to("out")
    numbered(topology, key_serde="integer").to("others")


def numbered_then_read(topology: Topology) -> None:
    beats(topology).to("out", key_serde="long")
    beats(topology, topic="out").to("copies")


def written_in_two_forms(topology: Topology) -> None:
    beats(topology).to("out", key_serde="long")
    beats(topology).filter("ibi_ms > 0").to("out", key_serde="short")


def ended(topology: Topology) -> Stream:
    """A processor that forwards nothing."""
    return beats(topology).process("a.b:C", stores=[store("s", "n INT")])


def folded(topology: Topology, emits: str) -> Table:
    return windowed(topology).aggregate(initializer="a.b:zero", aggregator="a.b:add", emits=emits)


def two_joins_of_a_name(topology: Topology) -> None:
    beats(topology).join(temperatures(topology), within="1m", name="j").to("out")
    beats(topology).join(temperatures(topology), within="2m", name="j").to("out")


def two_repartitions_of_a_name(topology: Topology) -> None:
    stream(topology).group_by("ibi_ms", name="r").count()
    stream(topology).group_by("beat_ms", name="r").count()


def repartition_and(topology: Topology, then: Callable[[Topology], object]) -> None:
    stream(topology).group_by("ibi_ms", name="r").count()
    then(topology)


def joined_with_its_own_repartition(topology: Topology) -> None:
    again = beats(topology).repartition("upper(patient_id)", "r").select("ibi_ms AS other_ms")
    beats(topology).join(again, within="1m").to("out")


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
    ("timestamp is DECIMAL", lambda t: stream(t, timestamp="weight"), [SOURCE, "e.g. CAST(weight AS BIGINT)"]),
    (
        "timestamp is not certain",
        lambda t: stream(t, timestamp="element_at(MAP('a', beat_ms), 'a')"),
        [SOURCE, "e.g. CAST(element_at(MAP('a', beat_ms), 'a') AS BIGINT) if it is a number of milliseconds, or CAST("],
    ),
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
    ("clock as a literal", lambda t: stream(t).filter("at < TIMESTAMP 'now'"), ["'now'", "computed again"]),
    ("clock as a cast", lambda t: stream(t).filter("at < CAST(' Today ' AS DATE)"), ["' Today '", "computed again"]),
    ("clock as a date", lambda t: stream(t).filter("at < to_date('tomorrow')"), ["'tomorrow'", "computed again"]),
    ("clock without zone", lambda t: stream(t).filter("to_timestamp_ntz('now') > at"), ["'now'", "computed again"]),
    ("clock as a text", lambda t: stream(t).filter("at BETWEEN 'yesterday' AND 'now'"), ["computed again"]),
    *(
        (
            f"clock: {expression}",
            lambda t, x=expression: stream(t).select(x=f"CAST({x} AS STRING)"),
            [found, "computed again"],
        )
        for expression, found in (
            ("date_trunc('DAY', 'now')", "'now'"),
            ("hour('now')", "'now'"),
            ("weekday('today')", "'today'"),
            ("unix_date('today')", "'today'"),
            ("extract(YEAR FROM 'now')", "'now'"),
            ("unix_millis('now')", "'now'"),
            ("to_unix_timestamp('now')", "'now'"),
            ("convert_timezone('UTC', 'now')", "'now'"),
            ("from_utc_timestamp('now', 'UTC')", "'now'"),
            ("at > ('now')", "'now'"),
            ("CAST(('now') AS TIMESTAMP)", "'now'"),
            ("year((('now')))", "'now'"),
            ("at >= 'today UTC'", "'today UTC'"),
            ("at + INTERVAL 1 DAY > 'today'", "'today'"),
            ("(at - INTERVAL 1 HOUR) > '12:30'", "'12:30'"),
            ("date_add(at, 1) = 'today'", "'today'"),
            ("CAST(at AS DATE) + 1 >= 'today'", "'today'"),
            ("add_months(at, 1) > 'today'", "'today'"),
            ("at >= ' Today+02:00'", "' Today+02:00'"),
            ("TIMESTAMP'today UTC'", "'today UTC'"),
            ("to_timestamp('today UTC')", "'today UTC'"),
            ("CAST(lower('NOW') AS TIMESTAMP)", "LOWER('NOW')"),
            ("CAST(concat('to', 'day') AS DATE)", "CONCAT('to', 'day')"),
            ("at > 'to' || 'day'", "'to' || 'day'"),
            ("at IN ('2024-01-15', 'now')", "'now'"),
            ("coalesce('now', at)", "'now'"),
            ("nullif('now', at)", "'now'"),
            ("if(ibi_ms > 1, 'now', at)", "'now'"),
            ("CASE WHEN ibi_ms > 1 THEN at ELSE 'now' END", "'now'"),
            ("CASE WHEN ibi_ms > 1 THEN 'now' ELSE at END", "'now'"),
            ("CASE at WHEN 'now' THEN 1 END", "'now'"),
            ("CASE 'now' WHEN at THEN 1 END", "'now'"),
            ("at > 'tomorrow Z'", "'tomorrow Z'"),
            ("at > 'today-1'", "'today-1'"),
            ("at > 'Yesterday Europe/Berlin'", "'Yesterday Europe/Berlin'"),
            ("at > 'now\t'", "'now\\t'"),
            ("dayname('now')", "'now'"),
            ("date_part('HOUR', 'now')", "'now'"),
            ("next_day('today', 'mo')", "'today'"),
            ("months_between(at, 'now')", "'now'"),
            ("try_to_timestamp('now')", "'now'"),
            ("CAST(reverse('won') AS DATE)", "REVERSE('won')"),
            ("to_timestamp(substring('x12:30', 2, 5))", "SUBSTRING('x12:30', 2, 5)"),
            ("hour(CAST('12:30' AS STRING))", "CAST('12:30' AS STRING)"),
            ("timestampdiff(MINUTE, '08:00', at)", "'08:00'"),
            ("timestampadd(MINUTE, ibi_ms, '08:00')", "'08:00'"),
            ("dateadd(MINUTE, ibi_ms, '08:00')", "'08:00'"),
            ("at >= if(ibi_ms = 1, '08:00', '09:00')", "'08:00'"),
            ("at >= CASE WHEN ibi_ms = 1 THEN '08:00' WHEN ibi_ms = 2 THEN patient_id END", "'08:00'"),
            ("at >= CASE WHEN ibi_ms = 1 THEN patient_id ELSE (coalesce(patient_id, '08:00')) END", "'08:00'"),
            ("CAST(nvl2(patient_id, patient_id, '08:00') AS TIMESTAMP)", "'08:00'"),
            ("to_timestamp(coalesce(patient_id, '00:00'))", "'00:00'"),
            ("to_timestamp(nullif('00:00', patient_id))", "'00:00'"),
            ("to_timestamp(least(patient_id, '00:00'))", "'00:00'"),
            ("at > '12:30'", "'12:30'"),
            ("CAST('T12:30' AS TIMESTAMP)", "'T12:30'"),
            ("hour('12:30')", "'12:30'"),
        )
    ),
    ("uuid", lambda t: stream(t).select(id="uuid()"), ["KSTREAM-MAPVALUES-" + FIRST, "uuid()"]),
    ("subquery", lambda t: stream(t).filter("ibi_ms IN (SELECT 1)"), ["subquery", "join"]),
    ("statement", lambda t: stream(t).filter("SELECT 1"), ["KSTREAM-FILTER-" + FIRST, "SELECT"]),
    ("two statements", lambda t: stream(t).filter("ibi_ms > 1; DROP TABLE x"), ["KSTREAM-FILTER-" + FIRST, "one"]),
    ("analytic function", lambda t: stream(t).filter("row_number() over () = 1"), ["OVER", "windowed_by"]),
    ("generator", lambda t: stream(t).select(tag="explode(tags)"), ["explode()", "one value per record"]),
    (
        "generator of a variant",
        lambda t: stream(t).select("variant_explode(patient_id) AS v"),
        ["one value per record"],
    ),
    (
        "window of Spark",
        lambda t: stream(t).select("CAST(window(at, '1 minute').start AS STRING) AS minute"),
        ["window()", "windowed_by()", "date_trunc()"],
    ),
    (
        "session of Spark",
        lambda t: stream(t).filter("session_window(at, '1 minute') IS NOT NULL"),
        ["session_window()"],
    ),
    ("time of a window", lambda t: stream(t).select("window_time(at) AS x"), ["window_time()", "windowed_by()"]),
    ("window of a qualified name", lambda t: stream(t).filter("builtin.window(at, '1m').end > at"), ["window()"]),
    ("any as an aggregate", lambda t: stream(t).filter("any(ibi_ms > 3)"), ["any()", "group_by_key()"]),
    ("path of the session", lambda t: stream(t).select("current_path() AS p"), ["current_path()", "computed again"]),
    ("table function", lambda t: stream(t).select("range(1) AS r"), ["range()", "one value per record"]),
    ("analytic function without OVER", lambda t: stream(t).filter("row_number() = 1"), ["row_number()", "windowed_by"]),
    (
        "sketch",
        lambda t: stream(t).filter("theta_sketch_agg(ibi_ms) IS NULL"),
        ["theta_sketch_agg()", "group_by_key()"],
    ),
    ("random IV", lambda t: stream(t).filter("aes_encrypt(patient_id, 'k') > ''"), ["aes_encrypt()", "computed again"]),
    ("map by number", lambda t: stream(t, schema="m MAP<INT, STRING>", key="_key"), ["column 'm'", "MAP<STRING, ...>"]),
    (
        "map inside",
        lambda t: stream(t, schema="a ARRAY<MAP<DATE, INT>>", key="_key"),
        ["column 'a'", "MAP<STRING, ...>"],
    ),
    ("39 digits", lambda t: stream(t, schema="d DECIMAL(39, 2)", key="_key"), ["DECIMAL(39, 2)", "at most 38"]),
    (
        "only a fraction",
        lambda t: stream(t, schema="d DECIMAL(5, 6)", key="_key"),
        ["DECIMAL(5, 6)", "after the point"],
    ),
    (
        "key named like a window",
        lambda t: (
            stream(t).select("beat_ms AS window_start").group_by("window_start").windowed_by(tumbling("1h")).count()
        ),
        ["window_start", "another name"],
    ),
    ("comment", lambda t: stream(t).filter("ibi_ms > 1 -- fast"), ["comment", "remove"]),
    ("semicolon", lambda t: stream(t).filter("patient_id = 'a;' ;"), ["semicolon", "remove"]),
    ("semicolon in a select", lambda t: stream(t).select("ibi_ms AS x;"), ["semicolon", "remove"]),
    ("placeholder", lambda t: stream(t).filter("ibi_ms > :least"), ["placeholder"]),
    ("computed name", lambda t: stream(t).filter("IDENTIFIER('ibi' || '_ms') > 1"), ["IDENTIFIER()", "name itself"]),
    ("zone", lambda t: stream(t).select("at AT TIME ZONE 'Asia/Tokyo' AS x"), ["AT TIME ZONE", "from_utc_timestamp()"]),
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
    (
        "sum with a text",
        lambda t: windowed(t).sum("patient_id * ibi_ms"),
        ["is unknown before it runs", "CAST(patient_id * ibi_ms"],
    ),
    (
        "sum with a decimal",
        lambda t: windowed(t).sum("weight * ibi_ms"),
        ["is unknown before it runs", "cast it explicitly"],
    ),
    (
        "seconds",
        lambda t: windowed(t).max("extract(SECOND FROM at)"),
        ["is unknown before it runs", "cast it explicitly"],
    ),
    (
        "array position",
        lambda t: stream(t).select("array_position(tags, 'a') AS p"),
        ["is unknown", "cast it explicitly"],
    ),
    ("max of a decimal", lambda t: windowed(t).max("weight"), ["DECIMAL(5, 2)", "cast it explicitly"]),
    ("min of a timestamp", lambda t: windowed(t).min("at"), ["TIMESTAMP", "cast it explicitly"]),
    (
        "sum of the unknown",
        lambda t: windowed(t).sum("nosuch(ibi_ms)"),
        ["is unknown before it runs", "cast it explicitly"],
    ),
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
    ("source is the dead letters", lambda t: stream(t, topic="app-dlq").to("x"), [SOURCE, "dead letters"]),
    (
        "an unknown handler of a source",
        lambda t: stream(t, on_error="ignore").to("x"),
        [SOURCE, "'dead_letter' or 'fail'"],
    ),
    ("source is the events", lambda t: stream(t, topic="app-events").to("x"), [SOURCE, "events", "another"]),
]


def both(topology: Topology) -> None:
    beats(topology).to("out")
    patients(topology, "pulses")


JOINS: list[Case] = [
    ("a table's key unknown", lambda t: patients(t, key="patient"), [SOURCE, "'patient'", "patient_id, ward"]),
    ("a table's key computed", lambda t: patients(t, key="upper(ward)"), [SOURCE, "not a column", "patient_id, ward"]),
    ("a table's topic name", lambda t: patients(t, "pa tients"), [SOURCE, "table()", "'pa tients'", "letters"]),
    ("a stream and a table", both, [SOURCE, "'pulses'", "as a stream and as a table", "to_table()"]),
    ("within missing", lambda t: beats(t).join(temperatures(t)), ["KSTREAM-JOIN-" + SECOND, "within='60s'"]),
    ("outer without within", lambda t: beats(t).outer_join(temperatures(t)), ["KSTREAM-OUTERJOIN-", "within='60s'"]),
    ("several topics", lambda t: t.stream(["a", "b"], schema="n INT"), ["['a', 'b'] is not a topic name"]),
    ("after missing", lambda t: beats(t).join(temperatures(t), before="1m"), ["within='60s'", "before= and after="]),
    (
        "within beside both",
        lambda t: beats(t).join(temperatures(t), within="1m", before="1m", after="2m"),
        ["KSTREAM-JOIN-" + SECOND, "within= has no effect", "remove it"],
    ),
    ("after negative", lambda t: beats(t).join(temperatures(t), before="1m", after=-1), ["after: -1 is negative"]),
    (
        "before and after nothing",
        lambda t: beats(t).join(temperatures(t), before=0, after="0s"),
        ["before=0, after='0s' without grace", "give within='1ms'"],
    ),
    (
        "before on a table",
        lambda t: beats(t).join(patients(t), before="1m"),
        ["KSTREAM-JOIN-" + THIRD, "before=", "remove"],
    ),
    ("within nothing", lambda t: beats(t).join(temperatures(t), within="0s"), ["within='0s'", "give within='1ms'"]),
    ("within negative", lambda t: beats(t).join(temperatures(t), within=-1), ["KSTREAM-JOIN-" + SECOND, "negative"]),
    ("within written wrong", lambda t: beats(t).join(temperatures(t), within="1 min"), ["within", "'1 min'", "'60s'"]),
    (
        "grace",
        lambda t: beats(t).join(temperatures(t), within=1, grace="x"),
        ["KSTREAM-JOIN-" + SECOND, "grace", "'x'"],
    ),
    (
        "within on a table",
        lambda t: beats(t).join(patients(t), within="1m"),
        ["KSTREAM-JOIN-" + THIRD, "within=", "remove"],
    ),
    (
        "grace on a table",
        lambda t: beats(t).join(patients(t), grace="1m"),
        ["KSTREAM-JOIN-" + THIRD, "grace=", "remove"],
    ),
    ("name on a table", lambda t: beats(t).left_join(patients(t), name="j"), ["KSTREAM-LEFTJOIN-", "name=", "remove"]),
    ("outer with a table", lambda t: beats(t).outer_join(patients(t)), ["KSTREAM-OUTERJOIN-" + THIRD, "left_join()"]),
    (
        "keys of two types",
        lambda t: beats(t).join(temperatures(t, schema="patient_id INT, measured_ms BIGINT"), within="1m"),
        ["KSTREAM-JOIN-" + SECOND, "STRING", "INT", "repartition('CAST(patient_id AS STRING)')"],
    ),
    (
        "keys of two types, a table",
        lambda t: beats(t).join(patients(t, schema="patient_id INT, ward STRING")),
        ["KSTREAM-JOIN-" + THIRD, "KTABLE-SOURCE-" + SECOND, "INT", "repartition("],
    ),
    ("a join with itself", lambda t: beats(t).join(beats(t), within="1m"), [SOURCE, "with itself", "another source"]),
    ("a table with itself", lambda t: (p := patients(t)).join(p), ["KTABLE-SOURCE-" + FIRST, "with itself"]),
    (
        "a column with the key's name that is not the key, on both sides",
        lambda t: keyless(t, "a").join(t.table("b", schema="key STRING, w INT")),
        ["'key'", "not the key of both", "select('key AS key_2')", "key="],
    ),
    (
        "a column with the key's name that is not the key, on one side",
        lambda t: t.stream("a", schema="key STRING, v INT", key="key").join(
            keyless(t, "b", "key STRING, w INT"), within=1
        ),
        ["'key'", "not the key of both"],
    ),
    (
        "a column with the key's name that is not the key, in a reduce",
        lambda t: keyless(t, "a").group_by_key().reduce("a.b:c"),
        ["KSTREAM-REDUCE-" + SECOND, "'key'", "the name of the key", "key_2", "select()"],
    ),
    (
        "the key's name given to another column",
        lambda t: beats(t).select("CAST(ibi_ms AS STRING) AS patient_id").group_by_key().reduce("a.b:c"),
        ["KSTREAM-REDUCE-" + THIRD, "'patient_id'", "the name of the key"],
    ),
    (
        "the key's name in a processor's columns",
        lambda t: beats(t).process("a.b:C", emits="patient_id STRING", keeps_key=True).group_by_key().reduce("a.b:c"),
        ["'patient_id'", "the name of the key"],
    ),
    (
        "the key's name in the columns of an aggregator",
        lambda t: beats(t).group_by_key().aggregate(initializer="a.b:c", aggregator="a.b:d", emits="patient_id STRING"),
        ["KSTREAM-AGGREGATE-" + SECOND, "'patient_id'", "the name of the key", "emits="],
    ),
    (
        "a column on both sides",
        lambda t: beats(t).join(temperatures(t, schema="measured_ms BIGINT, ibi_ms INT, patient_id STRING"), within=1),
        ["KSTREAM-JOIN-" + SECOND, "'ibi_ms'", "select('ibi_ms AS ibi_ms_2')"],
    ),
    (
        "a column of both tables",
        lambda t: patients(t).join(patients(t, "old")),
        ["KTABLE-JOINTHIS-", "'ward'", "rename"],
    ),
    (
        "the key under one name only",
        lambda t: beats(t, key="_key").join(temperatures(t), within=1),
        ["'patient_id'", "rename"],
    ),
    (
        "two applications",
        lambda t: beats(t).join(temperatures(Topology("b")), within=1),
        ["two applications", "inside one"],
    ),
    ("a table elsewhere", lambda t: beats(t).join(patients(Topology("b"))), ["KSTREAM-JOIN-" + FIRST, "inside one"]),
    ("tables elsewhere", lambda t: patients(t).join(patients(Topology("b"))), ["KTABLE-JOINTHIS-", "inside one"]),
    ("a topic's name", lambda t: beats(t).join("temperatures"), ["KSTREAM-JOIN-" + FIRST, "'temperatures'", "table()"]),
    ("a group", lambda t: beats(t).join(temperatures(t).group_by_key(), within=1), ["GroupedStream", "neither"]),
    ("table with stream", lambda t: patients(t).join(beats(t)), ["Stream KSTREAM-SOURCE-" + SECOND, "to_table()"]),
    (
        "table with windows",
        lambda t: temperatures(t).join(windowed(t).count()),
        [
            "has windows",
            "to_stream()",
            "KSTREAM-SOURCE-0000000000 has no windows",
            "a column with the start of the window",
        ],
    ),
    (
        "table with sessions",
        lambda t: temperatures(t).join(beats(t).group_by_key().windowed_by(session("60s")).count()),
        ["has windows", "begin at different times: write both streams to one topic, read it, and aggregate it once"],
    ),
    (
        "tables with sliding windows",
        lambda t: patients(t).join(beats(t).group_by_key().windowed_by(sliding("60s")).count()),
        ["has windows", "begin at different times"],
    ),
    (
        "tables with windows",
        lambda t: patients(t).join(windowed(t).count()),
        ["KTABLE-JOINTHIS-", "to_stream().repartition(\"concat(patient_id, '|', CAST(window_start AS STRING))\""],
    ),
    (
        "a join that goes nowhere",
        lambda t: beats(t).join(patients(t)),
        ["KSTREAM-JOIN-" + THIRD, "nothing uses", ".to("],
    ),
    ("a join's name twice", two_joins_of_a_name, ["'j-this-store'", "KSTREAM-JOIN-" + SECOND, "name="]),
    ("a join's name", lambda t: beats(t).join(temperatures(t), within=1, name="a b"), ["'a b-this-store'", "letters"]),
    (
        "nested in a join",
        lambda t: stream(t).join(patients(t)),
        ["KSTREAM-JOIN-" + THIRD, "'at'", "CAST(at AS STRING)"],
    ),
    (
        "nested in a table",
        lambda t: stream(t).to_table(),
        ["KTABLE-SOURCE-" + FIRST, "TIMESTAMP", "CAST(at AS STRING)"],
    ),
    ("nested, behind", lambda t: kept(t).to_stream().select("array(1) AS a"), ["KSTREAM-MAPVALUES-", "ARRAY<INT>"]),
    ("a step behind, unknown", lambda t: finals(t).to_stream().filter("n > 1"), ["KSTREAM-FILTER-", "'n'", "count"]),
    (
        "a step behind, reserved",
        lambda t: finals(t).to_stream().filter("_offset > 1"),
        ["KSTREAM-FILTER-", "'_offset'"],
    ),
    ("a step behind, type", lambda t: finals(t).to_stream().filter("count"), ["BIGINT", "compare"]),
    (
        "a function behind",
        lambda t: finals(t).to_stream().filter("nosuch(count) > 1"),
        ["KSTREAM-FILTER-", "after a stateful node", "in Spark"],
    ),
    (
        "types that do not compare behind",
        lambda t: finals(t).to_stream().select("patient_id > 5 AS high"),
        ["KSTREAM-MAPVALUES-", "select high", "STRING and INT", "cast one"],
    ),
    (
        "a key of fractions behind",
        lambda t: finals(t).to_stream().repartition("count / 2"),
        ["KSTREAM-REPARTITION-", "key", "DOUBLE", "cast it to BIGINT"],
    ),
    (
        "a step behind, nowhere",
        lambda t: finals(t).to_stream().filter("count > 1"),
        ["KSTREAM-FILTER-", "nothing uses"],
    ),
]

WINDOWS: list[Case] = [
    (
        "suppress without windows",
        lambda t: patients(t).suppress(until_window_closes()),
        ["no windows", "windowed_by()"],
    ),
    (
        "suppress for a time",
        lambda t: windowed(t).count().suppress("5s"),
        ["KTABLE-SUPPRESS-", "until_window_closes()"],
    ),
    (
        "suppress twice",
        lambda t: finals(t).suppress(until_window_closes()),
        ["KTABLE-SUPPRESS-", "final", "remove one"],
    ),
    ("suppress with ttl", lambda t: finals(t, store=Materialized(ttl="1h")), ["KTABLE-SUPPRESS-", "max_records="]),
    ("suppress with LRU", lambda t: finals(t, store=Materialized(max_entries=9)), ["KTABLE-SUPPRESS-", "max_records="]),
    ("bound 0", lambda t: until_window_closes(max_records=0), ["max_records=0", "above 0"]),
    ("bytes 0", lambda t: until_window_closes(max_bytes=0), ["max_bytes=0", "above 0"]),
    ("bound True", lambda t: until_window_closes(max_records=True), ["max_records=True", "above 0"]),
    ("bound as text", lambda t: until_window_closes(max_bytes="1k"), ["max_bytes='1k'", "a number"]),
    ("early without bound", lambda t: until_window_closes(when_full="emit_early_when_full"), ["give max_records"]),
    ("when full", lambda t: until_window_closes(when_full="drop"), ["'drop'", "shut_down_when_full or emit_early"]),
    ("gap 0", lambda t: session(0), ["session gap", "zero"]),
    ("difference 0", lambda t: sliding("0s"), ["time difference", "zero"]),
    ("session grace", lambda t: session("30s").grace(-1), ["window grace", "negative"]),
    ("a session's retention", lambda t: stream(t).group_by_key().windowed_by(session("1d")).count(), ["above 1d"]),
    (
        "sliding retention",
        lambda t: stream(t).group_by_key().windowed_by(sliding("30s").grace("5s")).count(retention="65s"),
        ["KSTREAM-AGGREGATE-" + SECOND, "set retention above 65s"],
    ),
    (
        "reduce in sessions",
        lambda t: beats(t).group_by_key().windowed_by(session("30s")).reduce("a.b:newest"),
        ["KSTREAM-REDUCE-" + SECOND, "tumbling and hopping"],
    ),
    ("reduce by a lambda", lambda t: beats(t).group_by_key().reduce(min), ["KSTREAM-REDUCE-", "package.module:name"]),
    (
        "fold from nothing",
        lambda t: beats(t).group_by_key().aggregate(initializer="0", aggregator="a.b:c", emits="n INT"),
        ["initializer"],
    ),
    (
        "an aggregator without an initializer",
        lambda t: beats(t).group_by_key().aggregate(aggregator="a.b:c", emits="n INT"),
        ["KSTREAM-SOURCE-", "initializer=", "all three"],
    ),
    (
        "SQL aggregate of a taken name",
        lambda t: beats(t).group_by_key().aggregate(n="count(*)", on_error="count(*)"),
        ["KSTREAM-SOURCE-", "on_error=", "choose another name"],
    ),
    (
        "an aggregator and an SQL aggregate",
        lambda t: (
            beats(t)
            .group_by_key()
            .aggregate(initializer="a.b:zero", aggregator="a.b:c", emits="n INT", pulses="count(*)")
        ),
        ["KSTREAM-SOURCE-", "pulses", "one aggregate() for each"],
    ),
    (
        "an aggregator's on_error",
        lambda t: (
            beats(t).group_by_key().aggregate(initializer="a.b:zero", aggregator="a.b:c", emits="n INT", on_error="")
        ),
        ["KSTREAM-AGGREGATE-", "on_error"],
    ),
    ("fold's schema", lambda t: folded(t, "n"), ["KSTREAM-AGGREGATE-" + SECOND, "emits", "'n'", "n STRING"]),
    ("fold's schema empty", lambda t: folded(t, ""), ["KSTREAM-AGGREGATE-" + SECOND, "no columns", "id STRING"]),
    ("fold's schema nested", lambda t: folded(t, "n ARRAY<INT>"), ["KSTREAM-AGGREGATE-", "'n'", "declare it as"]),
    ("fold emits the window", lambda t: folded(t, "Window_End BIGINT"), ["'Window_End'", "the window", "another name"]),
    ("reduce nested", lambda t: stream(t).group_by_key().reduce("a.b:c"), ["KSTREAM-REDUCE-", "CAST(at AS STRING)"]),
    (
        "SQL behind a stateful node",
        lambda t: windowed(t).count().to_stream().group_by_key().sum("count"),
        ["KSTREAM-AGGREGATE-0000000004", "repartition('patient_id')", "aggregator="],
    ),
]

STORES: list[Case] = [
    ("profile", lambda t: kept(t, profile="fast"), ["KTABLE-SOURCE-" + FIRST, "'fast'", "aggressive_compaction"]),
    (
        "ttl with windows",
        lambda t: windowed(t).count(store=Materialized("s", ttl="1h")),
        ["key-value", "its retention"],
    ),
    ("LRU with windows", lambda t: windowed(t).count(store=Materialized("s", max_entries=9)), ["its retention"]),
    ("ttl with aggregates", lambda t: stream(t).group_by_key().count(store=Materialized("s", ttl=9)), ["to_table()"]),
    ("ttl and LRU", lambda t: kept(t, ttl="1h", max_entries=3), ["'s'", "choose one"]),
    ("ttl 0", lambda t: kept(t, ttl=0), ["KTABLE-SOURCE-" + FIRST, "'s'", "zero", "a length"]),
    ("ttl written wrong", lambda t: kept(t, ttl="1 hour"), ["ttl of store 's'", "'6h'"]),
    ("no entries", lambda t: kept(t, max_entries=0), ["max_entries 0", "'s'", "1 or more"]),
    ("True entries", lambda t: kept(t, max_entries=True), ["max_entries True", "1 or more"]),
    (
        "config of no topic",
        lambda t: kept(t, logging=False, topic_config={"segment.ms": "1"}),
        ["no changelog", "remove"],
    ),
    (
        "profile of no topic",
        lambda t: kept(t, logging=False, profile="aggressive_compaction"),
        ["no changelog", "remove"],
    ),
    ("config is a number", lambda t: kept(t, topic_config={"segment.ms": 1}), ["'segment.ms': 1", "'600000'"]),
    ("config is no name", lambda t: kept(t, topic_config={"segment": "1"}), ["'segment': '1'", "'segment.ms'"]),
    (
        "config is no number",
        lambda t: kept(t, topic_config={"segment.ms": "1h"}),
        ["segment.ms", "'1h'", "whole number"],
    ),
    ("config is no dictionary", lambda t: kept(t, topic_config="segment.ms=1"), ["not a dictionary", "'segment.ms'"]),
    ("config loses keys", lambda t: kept(t, topic_config={"cleanup.policy": "delete"}), ["cleanup.policy", "ttl="]),
    ("custom in memory", lambda t: kept(t, custom="a.b:C", in_memory=True), ["'s'", "choose one"]),
    ("custom path", lambda t: kept(t, custom="a.b.C"), ["custom store 's'", "'a.b.C'", "package.module:name"]),
    ("custom class", lambda t: kept(t, custom=dict), ["custom store 's'", "package.module:name"]),
    ("a store's number", lambda t: patients(t, store=3), ["KTABLE-SOURCE-" + FIRST, "3", "letters"]),
    (
        "a table's store twice",
        lambda t: (kept(t), beats(t).to_table("S")),
        ["'S'", "KTABLE-SOURCE-" + FIRST, "another store="],
    ),
    (
        "a processor's path",
        lambda t: processed(t, processor="Silence"),
        ["KSTREAM-PROCESSOR-", "'Silence'", "package.module"],
    ),
    ("a processor's class", lambda t: processed(t, processor=dict), ["KSTREAM-PROCESSOR-" + FIRST, "package.module"]),
    ("emits no columns", lambda t: processed(t, emits=""), ["KSTREAM-PROCESSOR-" + FIRST, "emits", "id STRING"]),
    ("nothing into a sink", lambda t: ended(t).to("out"), EMITS_NOTHING),
    ("nothing into a filter", lambda t: ended(t).filter("n > 0"), EMITS_NOTHING),
    ("nothing into a select", lambda t: ended(t).select("n"), EMITS_NOTHING),
    ("nothing into a repartition", lambda t: ended(t).repartition(name="r"), EMITS_NOTHING),
    ("nothing into a table", lambda t: ended(t).to_table(), EMITS_NOTHING),
    ("nothing into an aggregation", lambda t: ended(t).group_by_key(), EMITS_NOTHING),
    ("nothing into a processor", lambda t: ended(t).process("a.b:D"), EMITS_NOTHING),
    ("nothing into a table join", lambda t: ended(t).left_join(patients(t)), EMITS_NOTHING),
    ("nothing from the right", lambda t: beats(t).select("ibi_ms").join(ended(t), within="1m"), EMITS_NOTHING[1:]),
    ("emits unknown type", lambda t: processed(t, emits="n INTT"), ["emits", "line 1, column 6", "INTT"]),
    ("emits nested", lambda t: processed(t, emits="n ARRAY<INT>"), ["emits", "ARRAY<INT>", "declare it as one of"]),
    (
        "undeclared store",
        lambda t: processed(t, "s"),
        ["KSTREAM-PROCESSOR-" + FIRST, "'s'", "store('name', 'column TYPE"],
    ),
    ("store as Materialized", lambda t: processed(t, Materialized("s")), ["not a store", "store('name', 'column TYPE"]),
    (
        "stores not a list",
        lambda t: beats(t).process("a.b:C", emits="n INT", stores=store("s", "n INT")),
        ["stores=[store("],
    ),
    (
        "store twice",
        lambda t: processed(t, store("s", "n INT"), store("S", "n INT")),
        ["'S'", "already exists", "another store="],
    ),
    (
        "a store of two processors",
        lambda t: [beats(t).process("a.b:C", stores=[store("s", "n INT")]) for _ in range(2)],
        ["KSTREAM-PROCESSOR-" + SECOND, "'s'", "already exists, at KSTREAM-PROCESSOR-" + FIRST],
    ),
    ("store without name", lambda t: processed(t, store("", "n INT")), ["''", "letters"]),
    ("store without types", lambda t: processed(t, store("s", "n")), ["store 's'", "'n'", "no type"]),
    (
        "nested in a store",
        lambda t: processed(t, store("s", "n MAP<STRING, INT>")),
        ["store 's'", "declare it as one of"],
    ),
    ("a store's setting", lambda t: store("s", "n INT", tll="1h"), ["store 's'", "'tll'", "did you mean 'ttl'?"]),
    (
        "order's name taken",
        lambda t: processed(t, store("s-order", "n INT"), store("s", "n INT", ttl=9)),
        ["'s-order'"],
    ),
    (
        "a processor nowhere",
        lambda t: beats(t).process("a.b:C", emits="n INT"),
        ["KSTREAM-PROCESSOR-" + FIRST, "nothing uses", "leave emits= out"],
    ),
    ("nested to a processor", lambda t: stream(t).process("a.b:C", emits="n INT"), ["CAST(at AS STRING)"]),
    ("other keys into a table", lambda t: forwarded(t).to_table(), OTHER_KEYS),
    ("other keys, mapped, into a table", lambda t: forwarded(t).filter("n > 0").select("n").to_table(), OTHER_KEYS),
    ("other keys into a fold", lambda t: forwarded(t).group_by_key(), OTHER_KEYS),
    ("other keys into a table join", lambda t: forwarded(t).join(patients(t)), OTHER_KEYS),
    ("other keys into a join", lambda t: forwarded(t).join(temperatures(t).select("celsius"), within="1m"), OTHER_KEYS),
    (
        "other keys from the right",
        lambda t: temperatures(t).select("celsius").join(forwarded(t), within="1m"),
        OTHER_KEYS[1:],
    ),
    (
        "other keys into a processor with stores",
        lambda t: forwarded(t).process("a.b:D", emits="n INT", stores=[store("s", "n INT")]),
        OTHER_KEYS,
    ),
    (
        "no key for a topic",
        lambda t: beats(t).repartition(),
        ["KSTREAM-REPARTITION-" + FIRST, "'pulses'", "another key"],
    ),
]

TOPICS: list[Case] = [
    ("keys in bytes into an aggregate", lambda t: numbered(t).group_by_key(), [SOURCE, *OTHER_BYTES]),
    ("keys in bytes into a table", lambda t: numbered(t).filter("ibi_ms > 0").to_table(), OTHER_BYTES),
    ("keys in bytes into a table join", lambda t: numbered(t).left_join(patients(t)), OTHER_BYTES),
    (
        "keys in bytes from the right",
        lambda t: temperatures(t).select("celsius").join(numbered(t), within="1m"),
        OTHER_BYTES,
    ),
    (
        "keys in bytes into a processor with stores",
        lambda t: numbered(t).process("a.b:D", emits="n INT", stores=[store("s", "n INT")]),
        OTHER_BYTES,
    ),
    (
        "keys in bytes that a processor keeps",
        lambda t: numbered(t).process("a.b:D", emits="n INT", keeps_key=True).select("n").to_table(),
        OTHER_BYTES,
    ),
    (
        "a column as the key of keys in bytes",
        lambda t: numbered(t, key="patient_id"),
        [SOURCE, "key='patient_id'", "written as long", "repartition('patient_id', name=...)"],
    ),
    ("keys as doubles", lambda t: numbered(t, key_serde="double"), [SOURCE, "'double'", "'long', 'integer', 'short'"]),
    (
        "written keys as floats",
        lambda t: beats(t).to("out", key_serde="float"),
        ["KSTREAM-SINK-", "'float'", "'bytes'"],
    ),
    (
        "windowed key in bytes",
        lambda t: finals(t).to("out", windowed_key=True, key_serde="long"),
        [*WINDOWED_KEY, "key_serde='long'", "leave one of the two out"],
    ),
    ("keys of one topic in two forms", numbered_twice, [SOURCE, "'pulses'", "key_serde", "read it once"]),
    (
        "keys read in another form than written",
        numbered_then_read,
        ["key_serde='string'", "topic 'out'", "key_serde='long'", "give both the same"],
    ),
    ("keys written in two forms", written_in_two_forms, ["key_serde='short'", "topic 'out'", "key_serde='long'"]),
    ("windowed key of a table", lambda t: patients(t).to("out", windowed_key=True), [*WINDOWED_KEY, "no windows"]),
    ("windowed key of a stream", lambda t: beats(t).to("out", windowed_key=True), [*WINDOWED_KEY, "no windows"]),
    (
        "windowed key without windows",
        lambda t: beats(t).group_by_key().count().to("out", windowed_key=True),
        [*WINDOWED_KEY, "no windows", "windowed_by()"],
    ),
    (
        "windowed key of a lost column",
        lambda t: finals(t).to_stream().select("count").to("out", windowed_key=True),
        [*WINDOWED_KEY, "window_start", "select"],
    ),
    (
        "windowed key of a computed column",
        lambda t: finals(t).to_stream().select("window_start + 1 AS window_start").to("out", windowed_key=True),
        [*WINDOWED_KEY, "window_start", "select"],
    ),
    (
        "windowed key of a session's lost end",
        lambda t: sessions(t).to_stream().select("window_start", "count").to("out", windowed_key=True),
        [*WINDOWED_KEY, "window_end", "select"],
    ),
    (
        "windowed key of another key",
        lambda t: finals(t).to_stream().repartition("count").to("out", windowed_key=True),
        [*WINDOWED_KEY, "no windows"],
    ),
    (
        "windowed key of a processor",
        lambda t: finals(t).to_stream().process("a.b:C", emits="n INT").to("out", windowed_key=True),
        [*WINDOWED_KEY, "no windows"],
    ),
    (
        "key nested",
        lambda t: stream(t).group_by("tags"),
        ["KSTREAM-REPARTITION-" + FIRST, "ARRAY<STRING>", "one value"],
    ),
    ("key null", lambda t: stream(t).repartition("NULL"), ["KSTREAM-REPARTITION-" + FIRST, "NULL", "not always null"]),
    ("key unknown", lambda t: stream(t).group_by("ibi"), ["KSTREAM-REPARTITION-" + FIRST, "did you mean 'ibi_ms'?"]),
    ("key random", lambda t: stream(t).group_by("rand()"), ["KSTREAM-REPARTITION-" + FIRST, "computed again"]),
    ("repartition twice", two_repartitions_of_a_name, ["'r'", "KSTREAM-SOURCE-" + THIRD, "another name="]),
    ("repartition's name", lambda t: stream(t).group_by("ibi_ms", name="a b"), ["KSTREAM-REPARTITION-", "letters"]),
    (
        "repartition nowhere",
        lambda t: stream(t).repartition("ibi_ms"),
        ["KSTREAM-SOURCE-" + THIRD, "nothing uses", ".to("],
    ),
    (
        "a repartition's topic read",
        lambda t: repartition_and(t, lambda t: stream(t, topic="app-r-repartition")),
        ["KSTREAM-SOURCE-" + THIRD, "is internal", "repartition()"],
    ),
    (
        "a repartition's topic written",
        lambda t: repartition_and(t, lambda t: stream(t).to("app-r-repartition")),
        ["KSTREAM-SINK-", "for a repartition", "another topic"],
    ),
    ("joined with its own repartition", joined_with_its_own_repartition, ["KSTREAM-SINK-" + SECOND, "to('...')"]),
    (
        "loop over a repartition",
        lambda t: stream(t).group_by("ibi_ms").count().to("pulses"),
        [SOURCE, "loop", "another"],
    ),
    ("loop over a table", lambda t: patients(t).to("patients"), [SOURCE, "'patients'", "loop"]),
    ("loop over a join", lambda t: beats(t).join(patients(t)).to("patients"), ["KSTREAM-SOURCE-" + FIRST, "loop"]),
    (
        "a table's changelog written",
        lambda t: patients(t).to("app-patients-changelog"),
        ["store 'patients'", "another"],
    ),
    ("partitioner", lambda t: stream(t).to("out", partitioner="random"), ["KSTREAM-SINK-", "'random'", "'sticky'"]),
    (
        "partitioner empty",
        lambda t: stream(t).to("out", partitioner=""),
        ["KSTREAM-SINK-" + FIRST, "package.module:name"],
    ),
    (
        "partitioner of results",
        lambda t: patients(t).to("out", partitioner=len),
        ["KSTREAM-SINK-" + SECOND, "'sticky'"],
    ),
    (
        "guarantee",
        lambda t: Topology("b", guarantee="at-least-once"),
        ["application b", "exactly_once or at_least_once"],
    ),
    ("acks", lambda t: Topology("b", acks="2"), ["application b", "acks='2' is unknown", "'0', '1', 'all'"]),
    ("acks as a number", lambda t: Topology("b", guarantee="at_least_once", acks=1), ["acks=1 is unknown", "'1'"]),
    (
        "acks of a transaction",
        lambda t: Topology("b", acks="1"),
        ["application b", "acks='1' with exactly_once", "guarantee='at_least_once'"],
    ),
    (
        "acks that survive nothing",
        lambda t: Topology("b", guarantee="at_least_once", acks="0", tolerated_broker_failures=1),
        ["acks='0' with tolerated_broker_failures=1", "leave one of the two out"],
    ),
    (
        "survives less than none",
        lambda t: Topology("b", tolerated_broker_failures=-1),
        ["application b", "tolerated_broker_failures=-1 is not a number"],
    ),
    (
        "survives yes",
        lambda t: Topology("b", tolerated_broker_failures=True),
        ["application b", "tolerated_broker_failures=True is not a number"],
    ),
    *(
        (
            f"{number!r} standbys",
            partial(refused_standbys, number),
            ["application b", f"num_standby_replicas={number!r} is not a number", "use 0 for none, or 1 to 16"],
        )
        for number in (-1, 17, True, "1", 1.0, None)
    ),
    (
        "standbys without a store to copy",
        lambda t: counted_in_memory(Topology("b", num_standby_replicas=1)).plan(),
        ["application b", "could copy none of its stores: n (in memory)", "keep a store in RocksDB and log it"],
    ),
    (
        "standbys without a store",
        lambda t: passed_through(Topology("b", num_standby_replicas=2)).plan(),
        ["num_standby_replicas=2", "could copy none of its stores: it has none"],
    ),
]

EVERY = CASES + JOINS + WINDOWS + STORES + TOPICS


@pytest.mark.parametrize(("build", "says"), [case[1:] for case in EVERY], ids=[case[0] for case in EVERY])
def test_should_refuse_a_wrong_topology_with_node_and_remedy(
    build: Callable[[Topology], object], says: list[str]
) -> None:
    topology = Topology("app")
    with pytest.raises(InvalidTopology) as refused:
        build(topology)
        topology.plan()
    message = str(refused.value)
    assert "\n" not in message
    assert [part for part in says if part not in message] == [], message
    assert refused.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("application_id", ["", "a b", "..", "a/b", "x" * 101, 7])
def test_should_refuse_an_application_id_that_kafka_would_reject(application_id: Any) -> None:
    with pytest.raises(InvalidTopology, match="application id"):
        Topology(application_id)


@pytest.mark.parametrize("version", ["", "v 1", "1" * 41, 1])
def test_should_refuse_a_version_that_does_not_fit_in_offset_metadata(version: Any) -> None:
    with pytest.raises(InvalidTopology, match="version"):
        Topology("app", version=version)


def test_should_refuse_a_changelog_name_longer_than_kafka_allows() -> None:
    fits = Topology("a" * 100)
    stream(fits).group_by_key().count(store="s" * 138)
    with pytest.raises(InvalidTopology, match="has 250 characters, Kafka allows 249"):
        stream(Topology("a" * 100)).group_by_key().count(store="s" * 139)


def test_should_ask_for_a_column_with_the_windows_start_only_if_a_side_has_no_windows() -> None:
    topology = Topology("a")
    with pytest.raises(InvalidTopology) as refused:
        windowed(topology).count().join(temperatures(topology).group_by_key().windowed_by(tumbling("60s")).count())
    assert "put the window into the keys of both sides" in str(refused.value)
    assert "has no windows" not in str(refused.value)
