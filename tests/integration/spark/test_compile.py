"""The Spark part of a topology on a table with the columns of Spark's Kafka source, against plain Python."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import replace

import pytest
from spark_jobs.compile import dead_letter_places_sql, pipeline_sql, reads_headers, unread_sql
from tests.support.partials import PARTIAL_HEAD
from tests.support.truth.recompute import Counting, event
from tests.support.truth.topics import Row

from tidemark.registry.routing import routed
from tidemark.tasks.partials import PARTIAL_TYPES, Partial, Status, value_column
from tidemark.topology.builder import Topology
from tidemark.topology.windows import hopping, session, sliding, tumbling

pytestmark = pytest.mark.spark

NOW = 1_700_000_000_000
RECORD_HEAD = (
    Partial.PARTITION, Partial.STATUS, Partial.ROWS, Partial.MAX_TS, Partial.KEY, Partial.RECORD_OFFSET,
)  # fmt: skip
AHEAD = 3_600_000
SCHEMA = "patient_id STRING, beat_ms BIGINT, ibi_ms INT, recording STRING"
KAFKA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def beat(patient="p1", at=NOW, ibi=800, recording="r"):
    return json.dumps({"patient_id": patient, "beat_ms": at, "ibi_ms": ibi, "recording": recording}).encode()


def plan_of(build):
    topology = Topology("app")
    build(topology.stream("in", schema=SCHEMA, key="patient_id", timestamp="beat_ms"))
    return topology.plan().subtopologies[0]


def run(spark, subtopology, records, pipeline=0, sql=None):
    """Rows as dictionaries. A record is (key, value) or (key, value, partition)."""
    stamp = dt.datetime.fromtimestamp(NOW / 1000, dt.UTC)
    rows = [
        (key, value, "in", rest[0] if rest else 0, offset, stamp, [("h", b"1")])
        for offset, (key, value, *rest) in enumerate(records)
    ]
    spark.createDataFrame(rows, KAFKA).createOrReplaceTempView("batch")
    text = sql or pipeline_sql(subtopology, subtopology.pipelines[pipeline], "batch", AHEAD)
    return spark.sql(text).toArrow().to_pylist()


@pytest.mark.parametrize("canonical_only", [False, True])
@pytest.mark.parametrize(
    ("build", "columns"),
    [
        (lambda s: counting(s).to("out"), [*PARTIAL_HEAD, Partial.WINDOW, "n"]),
        (lambda s: s.group_by_key().count(name="n", store="s").to("out"), [*PARTIAL_HEAD, "n"]),
        (lambda s: s.to("out"), [*RECORD_HEAD, Partial.VALUE, Partial.HEADERS]),
        (
            lambda s: s.to_table("t"),
            [*RECORD_HEAD, Partial.DELETED, *map(value_column, ("patient_id", "beat_ms", "ibi_ms", "recording"))],
        ),
    ],
)
def test_should_return_the_columns_and_types_that_the_tasks_expect(spark, build, columns, canonical_only):
    subtopology = plan_of(build)
    run(spark, subtopology, [(b"p1", beat())])
    sql = pipeline_sql(subtopology, subtopology.pipelines[0], "batch", AHEAD, canonical_only=canonical_only)
    found = spark.sql(sql).toArrow().schema
    assert found.names == columns
    types = {name: kind for name, kind in zip(found.names, found.types, strict=True) if name in PARTIAL_TYPES}
    assert types == {name: PARTIAL_TYPES[name] for name in types}


def counting(stream):
    return stream.group_by_key().windowed_by(tumbling("60s").grace("5s")).count(name="n", store="s")


KEYLESS = b'{"beat_ms": 5, "ibi_ms": 1, "recording": "r"}'
VALUES = [
    beat(), beat(at=0), beat(ibi=None), beat(recording=None), beat(at=NOW + AHEAD),
    b'{"patient_id": "p1", "beat_ms": 5}', b'{"patient_id": "p1", "beat_ms": 5, "ibi_ms": 1, "more": [1, 2]}',
    b"", b"{", b"nonsense", b"[]", b"7", b'"text"', b"null", b'{"patient_id": "p1"', None,
    beat(patient=None), KEYLESS,
    beat(at=None), beat(at=-1), beat(at=NOW + AHEAD + 1), beat(at=4_102_444_800_000),
    beat(at="soon"), beat(ibi="fast"), beat(ibi=1 << 40), beat(at=1.5), b'{"patient_id": "p1", "beat_ms": true}',
]  # fmt: skip


def canonical(patient='"p1"', at="5", ibi="800", recording='"r"', end=""):
    """At and around the border of the fast road (see spark_jobs/canonical.py)."""
    return f'{{"patient_id":{patient},"beat_ms":{at},"ibi_ms":{ibi},"recording":{recording}}}{end}'.encode()


VALUES += [
    canonical(), canonical('""'), canonical('"ü€😀"'), canonical('"\x01p"'), b"\x01" + canonical(), canonical(end="\n"),
    canonical('"a\\"b"'), canonical('"a\\\\"'), canonical('"a\\u0041"'), canonical('"a\nb"'), canonical('"\ufffd"'),
    canonical().replace(b"p1", b"p\xff1"), canonical().replace(b"p1", b"p\xc3"), canonical(at="0"), canonical(at="-0"),
    canonical(at="007"), canonical(at="1" * 18), canonical(at="9" * 19), canonical(at="9" * 20), canonical(at="-"),
    canonical(ibi="999999999"), canonical(ibi="2147483647"), canonical(ibi="2147483648"), canonical(ibi="00"),
    canonical(ibi="-2147483649"), canonical(ibi="null"), canonical(recording="null"),
]  # fmt: skip


def test_should_parse_the_same_fields_with_and_without_the_fast_path(spark):
    """Compares with what `from_json` alone reads, for every value that plain Python accepts."""
    subtopology = plan_of(lambda s: s.filter("true").to("out"))
    found = {r["__record_offset"]: r for r in run(spark, subtopology, [(b"p1", v) for v in VALUES])}
    for offset, value in enumerate(VALUES):
        if found[offset]["__status"] == Status.GOOD and value is not None:
            known = {"patient_id": None, "beat_ms": None, "ibi_ms": None, "recording": None}
            read = {k: v for k, v in json.loads(value).items() if k in known}
            assert json.loads(found[offset]["__value"]) == known | read, value
            assert (found[offset]["__key"], found[offset]["__max_ts"]) == (read.get("patient_id"), read["beat_ms"]), (
                value
            )


def test_should_parse_a_schema_that_has_no_fast_path(spark):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT, x DOUBLE", key="id", timestamp="at")
    stream.group_by_key().aggregate(store="s", most="max(x)")
    subtopology = topology.plan().subtopologies[0]
    found = run(
        spark, subtopology, [(b"a", b'{"id": "a", "at": 5, "x": 1.5}'), (b"a", b'{"id": "a", "at": 5, "x": "y"}')]
    )
    assert sorted((r["__status"], r["most"]) for r in found if r["__status"] == Status.GOOD) == [(Status.GOOD, 1.5)]
    assert [r["__rows"] for r in found if r["__status"] == Status.BAD] == [1]


@pytest.mark.parametrize("key", [b"p1", "ü€😀".encode(), b""])
def test_should_judge_each_record_as_plain_python_does(spark, key):
    subtopology = plan_of(lambda s: s.filter("true").to_table("t"))
    found = {r["__record_offset"]: r["__status"] for r in run(spark, subtopology, [(key, v) for v in VALUES])}
    for offset, value in enumerate(VALUES):
        row = Row(topic="in", partition=0, offset=offset, key=key, value=value, timestamp_ms=NOW, headers=())
        good = event(row, Counting(source_topic="in")) is not None
        assert (found[offset] == Status.GOOD) == good, value
        keyless = {value for value in VALUES if value and b'"patient_id": null' in value} | {KEYLESS}
        assert (found[offset] == Status.NO_KEY) == (value in keyless), value


def test_should_forward_but_not_count_a_record_without_a_kafka_key(spark):
    def build(stream):
        stream.to("out")
        counting(stream)

    subtopology = plan_of(build)
    records = [(None, beat()), (b"p1", beat())]
    found = [
        [(r["__status"], r["__key"], r["__rows"]) for r in run(spark, subtopology, records, pipeline)]
        for pipeline in (0, 1)
    ]
    sent, counted = map(set, found)
    assert counted == {(Status.GOOD, "p1", 1), (Status.NO_KEY, None, 1)}
    assert sent == {(Status.GOOD, None, 1), (Status.GOOD, "p1", 1)}


def test_should_read_headers_only_where_a_pipeline_sends_its_records_on(spark):
    assert not reads_headers(plan_of(counting))
    sending = plan_of(lambda s: s.repartition("patient_id", "r").to("out"))
    assert reads_headers(sending)
    found = run(spark, sending, [(b"p1", beat())])
    assert [[(h["key"], h["value"]) for h in row["__headers"]] for row in found] == [[("h", b"1")]]


def test_should_distinguish_the_columns_of_a_schema_from_those_of_kafka(spark):
    topology = Topology("app")
    named = topology.stream("in", schema="key STRING, value BIGINT, headers STRING", key="key")
    named.filter("value > 0").to("out")
    subtopology = topology.plan().subtopologies[0]
    records = [(b"a", b'{"key": "a", "value": 5, "headers": "h"}'), (b"a", b"{")]
    (good,) = (r for r in run(spark, subtopology, records) if r["__status"] == Status.GOOD)
    assert json.loads(good["__value"]) == {"key": "a", "value": 5, "headers": "h"}
    places = dead_letter_places_sql(subtopology, subtopology.lead, "batch", AHEAD)
    (letter,) = run(spark, subtopology, records, sql=places)
    assert (letter["__record_offset"], letter["reason"]) == (1, "unparsable")


def test_should_drop_a_record_whose_new_key_is_not_text(spark):
    topology = Topology("app")
    topology.stream("in", schema="id BINARY").repartition("CAST(id AS STRING)", "r").to("out")
    subtopology = topology.plan().subtopologies[0]
    found = run(spark, subtopology, [(b"a", b'{"id": "/w=="}'), (b"a", b'{"id": "YQ=="}')])
    assert [(r["__status"], r["__key"]) for r in found] == [(Status.FILTERED, None), (Status.GOOD, "a")]


def test_should_place_each_bad_record_once_with_its_reason(spark):
    subtopology = plan_of(counting)
    records = [(b"p1", b"{"), (b"p1", beat()), (None, beat()), (b"p1", beat(at=-1)), (b"p1", None), (b"\xff", beat())]
    records.append((b"p2", beat()))
    places = dead_letter_places_sql(subtopology, subtopology.lead, "batch", AHEAD)
    found = [(r["__p"], r["__record_offset"], r["reason"]) for r in run(spark, subtopology, records, sql=places)]
    assert sorted(found) == [
        (0, 0, "unparsable"),
        (0, 2, "no key"),
        (0, 3, "impossible timestamp"),
        (0, 5, "key is not UTF-8"),
        (0, 6, "key differs"),
    ]


@pytest.mark.parametrize(("status", "expected"), [(Status.BAD, [(0, "unparsable")]), (Status.NO_KEY, [(1, "no key")])])
def test_should_look_only_for_the_dead_letters_that_a_batch_has(spark, status, expected):
    subtopology = plan_of(counting)
    places = dead_letter_places_sql(subtopology, subtopology.lead, "batch", AHEAD, {status})
    found = run(spark, subtopology, [(b"p1", b"{"), (None, beat()), (b"p1", beat())], sql=places)
    assert [(r["__record_offset"], r["reason"]) for r in found] == expected


def test_should_place_a_record_without_a_key_for_each_pipeline_that_needs_one(spark):
    def build(stream):
        counting(stream)
        stream.filter("ibi_ms > 0").to_table("t")

    subtopology = plan_of(build)
    places = dead_letter_places_sql(subtopology, subtopology.lead, "batch", AHEAD)
    found = run(spark, subtopology, [(None, beat()), (b"p1", beat())], sql=places)
    assert [(r["__record_offset"], r["reason"]) for r in found] == [(0, "no key")] * 2


def test_should_count_by_partition_key_and_window(spark):
    subtopology = plan_of(counting)
    records = [(b"a", beat("a", 59_999)), (b"a", beat("a", 60_000)), (b"a", beat("a", 60_001)), (b"a", beat("a", 0), 1)]
    rows = run(spark, subtopology, records)
    found = {
        (r["__p"], r["__key"], r["__window"]): (r["n"], r["__rows"], r["__max_ts"], r["__last_offset"]) for r in rows
    }
    assert found == {(0, "a", 0): (1, 1, 59_999, 0), (0, "a", 60_000): (2, 2, 60_001, 2), (1, "a", 0): (1, 1, 0, 3)}


LISTS = {"last": "collect(ibi_ms, 5)"}


@pytest.mark.parametrize(
    ("windows", "more", "rows"),
    [
        (session("30s"), {}, [(5, 2, 2), (20, 1, 1)]),
        (session("30s"), LISTS, [(5, 1, 0), (5, 1, 2), (20, 1, 1)]),
        (sliding("30s"), {}, [(5, 1, 0), (5, 1, 2), (20, 1, 1)]),
    ],
    ids=["session", "session with lists", "sliding"],
)
def test_should_leave_lateness_in_sessions_and_sliding_windows_to_the_task(spark, windows, more, rows):
    """Groups by key and time, or by record where arrival order matters; other statuses keep one row each."""
    subtopology = plan_of(
        lambda s: s.filter("ibi_ms > 0").group_by_key().windowed_by(windows).aggregate(store="s", n="count(*)", **more)
    )
    records = [(b"a", beat("a", at)) for at in (5, 20, 5)] + [(b"a", beat("a", ibi=0))] * 2 + [(b"a", b"{")] * 2
    found = run(spark, subtopology, records)
    good = sorted((r["__window"], r["__rows"], r["__last_offset"]) for r in found if r["__status"] == Status.GOOD)
    assert good == rows
    assert sorted((r["__status"], r["__rows"]) for r in found if r["__status"] != Status.GOOD) == [
        (Status.BAD, 2), (Status.FILTERED, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("at", "starts"), [(0, [0]), (19_999, [0]), (20_000, [0, 20_000]), (70_000, [20_000, 40_000, 60_000])]
)
def test_should_put_a_record_into_every_hopping_window_that_holds_it(spark, at, starts):
    """Starts are aligned to the epoch and never negative, as in Kafka Streams' TimeWindows."""
    subtopology = plan_of(lambda s: s.group_by_key().windowed_by(hopping("60s", "20s")).count(store="s"))
    found = run(spark, subtopology, [(b"a", beat("a", at)), (b"a", b"{")])
    assert sorted(r["__window"] for r in found if r["__status"] == Status.GOOD) == starts
    assert [(r["__window"], r["__rows"]) for r in found if r["__status"] == Status.BAD] == [(None, 1)]


def test_should_count_filtered_records_and_each_bad_record_once(spark):
    subtopology = plan_of(lambda s: counting(s.filter("ibi_ms < 500")))
    records = [(b"a", beat("a", ibi=400)), (b"a", beat("a", ibi=600)), (b"a", beat("a", ibi=None)), (b"a", b"{")]
    found = {r["__status"]: r["__rows"] for r in run(spark, subtopology, records)}
    assert found == {Status.GOOD: 1, Status.FILTERED: 2, Status.BAD: 1}


def test_should_fold_every_aggregate_over_selected_columns(spark):
    def build(stream):
        stream.select(seconds="ibi_ms / 1000.0D", ibi="ibi_ms").group_by_key().aggregate(
            store="s", n="count(*)", known="count(ibi)", total="sum(ibi)", least="min(ibi)", most="max(seconds)",
            middle="mean(ibi)",
        )  # fmt: skip

    records = [(b"a", beat("a", ibi=400)), (b"a", beat("a", ibi=600)), (b"a", beat("a", ibi=None))]
    (row,) = run(spark, plan_of(build), records)
    values = {k: row[k] for k in ("n", "known", "total", "least", "most", "middle.sum", "middle.count")}
    assert values == {
        "n": 3, "known": 2, "total": 1000, "least": 400, "most": 0.6, "middle.sum": 1000.0, "middle.count": 2,
    }  # fmt: skip


def test_should_forward_records_without_state_as_json_in_the_order_of_offsets(spark):
    subtopology = plan_of(lambda s: s.select(who="patient_id", ibi="ibi_ms").to("out"))
    found = run(spark, subtopology, [(b"a", beat("a", ibi=1)), (b"b", beat("b", ibi=None))])
    assert [(r["__key"], json.loads(r["__value"])) for r in sorted(found, key=lambda r: r["__record_offset"])] == [
        ("a", {"who": "a", "ibi": 1}),
        ("b", {"who": "b", "ibi": None}),
    ]


def test_should_produce_no_partial_result_for_a_record_whose_key_differs(spark):
    """Otherwise each of two tasks would have its own part of the count of p1."""
    subtopology = plan_of(counting)
    records = [(b"p1", beat()), (b"p2", beat("p1"), 1), (b"p2", beat("p2"), 1), (b"p2", None, 1)]
    found = [(r["__p"], r["__status"], r["__key"], r["__rows"]) for r in run(spark, subtopology, records)]
    assert sorted(found) == [
        (0, Status.GOOD, "p1", 1), (1, Status.GOOD, "p2", 2), (1, Status.BAD, None, 1)
    ]  # fmt: skip


def test_should_compare_a_key_that_is_not_text_by_its_text_form(spark):
    topology = Topology("app")
    topology.stream("in", schema="id BIGINT", key="id").group_by_key().count(store="s")
    subtopology = topology.plan().subtopologies[0]
    found = run(spark, subtopology, [(b"7", b'{"id": 7}'), (b"07", b'{"id": 7}'), (b"-0", b'{"id": 0}')])
    assert sorted((r["__status"], r["__key"], r["__rows"]) for r in found) == [
        (Status.GOOD, "7", 1),
        (Status.BAD, None, 2),
    ]


def test_should_forward_a_record_under_the_key_of_its_value_when_no_state_is_kept_by_key(spark):
    for build in (lambda s: s.to("out"), lambda s: s.repartition("patient_id", "r").group_by_key().count(store="s")):
        found = run(spark, plan_of(build), [(b"p2", beat("p1"))])
        assert [(r["__status"], r["__key"]) for r in found] == [(Status.GOOD, "p1")]


def test_should_compare_keys_inside_the_existing_generated_code(spark):
    """Adds no operator and leaves none outside the generated code: it compares two existing columns."""
    checked = plan_of(counting)
    unchecked = replace(checked, sources=(replace(checked.lead, checks_key=False),))
    run(spark, checked, [(b"a", beat("a"))])

    def operators(subtopology):
        text = pipeline_sql(subtopology, subtopology.pipelines[0], "batch", AHEAD)
        plan = spark.sql(text)._jdf.queryExecution().executedPlan().toString()
        return text, re.findall(r"^[ +-]*((?:\*\(\d+\) )?\w+)", plan, re.MULTILINE)

    (with_it, found), (without, expected) = operators(checked), operators(unchecked)
    assert with_it != without
    assert found == expected
    assert {"*(2) HashAggregate", "*(2) Project"} <= set(found)


def test_should_parse_each_record_once(spark):
    """Parsing twice would halve the throughput; the physical plan shows how often it happens."""
    subtopology = plan_of(lambda s: counting(s.filter("ibi_ms < 500").select(ibi="ibi_ms")))
    run(spark, subtopology, [(b"a", beat("a"))])
    text = pipeline_sql(subtopology, subtopology.pipelines[0], "batch", AHEAD)
    plan = spark.sql(text)._jdf.queryExecution().executedPlan().toString()
    assert (plan.count("from_json"), plan.count("regexp_replace")) == (1, 1), plan


# The bytes of each form, and their text.
WRITTEN_KEYS = {
    "long": [
        (number.to_bytes(8, "big", signed=True), str(number))
        for number in (0, 7, -1, -3, 127, 128, 255, 1 << 31, 1 << 32, -(1 << 40), (1 << 63) - 1, -(1 << 63))
    ],
    "integer": [
        (number.to_bytes(4, "big", signed=True), str(number))
        for number in (0, 7, -1, -3, 128, 1 << 16, (1 << 31) - 1, -(1 << 31))
    ],
    "short": [
        (number.to_bytes(2, "big", signed=True), str(number))
        for number in (0, 7, -1, -3, 128, (1 << 15) - 1, -(1 << 15))
    ],
    "bytes": [(b"", ""), (b"\x00", "00"), (b"\xff\xab", "ffab"), (b"key", "6b6579")],
}
OTHER_LENGTHS = {
    "long": [b"", b"7", bytes(7), bytes(9)],
    "integer": [bytes(3), bytes(5)],
    "short": [b"7", bytes(3)],
    "bytes": [],
}


def numbered(key_serde, build=lambda s: s.to("out")):
    topology = Topology("app")
    build(topology.stream("in", schema="n INT", key_serde=key_serde))
    return topology.plan().subtopologies[0]


@pytest.mark.parametrize("value", [b'{"n":1}', b'{"n": 1, "more": [1]}'], ids=["canonical", "not canonical"])
@pytest.mark.parametrize("key_serde", list(WRITTEN_KEYS))
def test_should_read_keys_in_the_form_of_the_source(spark, key_serde, value):
    subtopology = numbered(key_serde)
    good, bad = WRITTEN_KEYS[key_serde], OTHER_LENGTHS[key_serde]
    records = [*((key, value) for key, _ in good), *((key, value) for key in bad), (None, value)]
    found = sorted(run(spark, subtopology, records), key=lambda r: r["__record_offset"])
    expected = [(Status.GOOD, text) for _, text in good] + [(Status.BAD, None)] * len(bad) + [(Status.GOOD, None)]
    assert [(r["__status"], r["__key"]) for r in found] == expected
    # The statement for canonical records alone reads the same, and leaves the others unread.
    sql = pipeline_sql(subtopology, subtopology.pipelines[0], "batch", AHEAD, canonical_only=True)
    read = [r for r in run(spark, subtopology, records, sql=sql) if r["__status"] == Status.GOOD]
    assert [r["__key"] for r in read] == ([text for _, text in good] if value == b'{"n":1}' else [])
    unread = run(spark, subtopology, records, sql=unread_sql(subtopology.lead, "batch", AHEAD, has_headers=False))
    left = [key for key, _ in records[len(good) if value == b'{"n":1}' else 0 :]]
    assert sorted(map(repr, (r["key"] for r in unread))) == sorted(map(repr, left))


def test_should_make_dead_letters_of_keys_of_another_length(spark):
    subtopology = numbered("long")
    records = [(bytes(8), b'{"n":1}'), (bytes(7), b'{"n":1}'), (b"7", b"{"), (None, b'{"n":1}')]
    places = dead_letter_places_sql(subtopology, subtopology.lead, "batch", AHEAD)
    found = run(spark, subtopology, records, sql=places)
    assert sorted((r["__record_offset"], r["reason"]) for r in found) == [(1, "wrong key length"), (2, "unparsable")]


@pytest.mark.parametrize("canonical_only", [False, True])
@pytest.mark.parametrize("build", [lambda s: s, lambda s: s.select("n + 1 AS m")], ids=["as read", "after a select"])
def test_should_send_records_to_the_tasks_that_own_the_text_of_their_keys(spark, build, canonical_only):
    subtopology = numbered("long", lambda s: build(s).repartition(name="r").group_by_key().count(store="n"))
    records = [((-3).to_bytes(8, "big", signed=True), b'{"n":1}'), ((7).to_bytes(8, "big"), b'{"n":2}')]
    run(spark, subtopology, records)
    sql = pipeline_sql(subtopology, subtopology.pipelines[0], "batch", AHEAD, canonical_only=canonical_only)
    found = run(spark, subtopology, records, sql=sql)
    assert [(r["__status"], r["__key"]) for r in found] == [(Status.GOOD, "-3"), (Status.GOOD, "7")]
    if not canonical_only:
        without = run(spark, subtopology, [(None, b'{"n":1}')])
        assert [(r["__status"], r["__key"]) for r in without] == [(Status.FILTERED, None)]


def test_should_select_the_own_key_of_routed_records_after_a_rescale(spark):
    topology = Topology("app")
    stream = topology.stream("in", schema="n INT", key_serde="long").select("n + 1 AS m")
    stream.repartition(name="r").group_by_key().count(store="n")
    first, _, router = routed(topology.plan(), 1).subtopologies
    (sent,) = run(spark, router, [((-3).to_bytes(8, "big", signed=True), b'{"n":1}')])
    (found,) = run(spark, first, [(sent["__key"].encode(), sent["__value"].encode())])
    assert (found["__status"], found["__key"], found["__value"]) == (Status.GOOD, "-3", '{"m":2}')


@pytest.mark.parametrize("key_serde", list(WRITTEN_KEYS))
def test_should_read_keys_of_every_form_in_one_stage_of_generated_code(spark, key_serde):
    def plan(subtopology):
        sql = pipeline_sql(subtopology, subtopology.pipelines[0], "batch", AHEAD, canonical_only=True)
        text = spark.sql(sql)._jdf.queryExecution().executedPlan().toString()
        return re.findall(r"^[ +-]*((?:\*\(\d+\) )?\w+)", text, re.MULTILINE)

    subtopology = numbered(key_serde)
    run(spark, subtopology, [(bytes(8), b'{"n":1}')])
    assert plan(subtopology) == plan(numbered("string"))
    assert all(each.startswith("*(1) ") for each in plan(subtopology)[:-1])


def test_should_not_change_the_statements_of_text_keys(spark):
    """Spark has compiled them, and they are prepared by their text."""
    subtopology = plan_of(lambda s: s.repartition("patient_id", "r").group_by_key().count(store="n"))
    for canonical_only in (False, True):
        sql = pipeline_sql(subtopology, subtopology.pipelines[0], "batch", AHEAD, canonical_only=canonical_only)
        assert "conv(" not in sql
        assert "hex(" not in sql
        assert (
            "CAST(key AS STRING) AS _key" if canonical_only else "try_validate_utf8(CAST(key AS STRING)) AS _key"
        ) in sql
