"""Statements for canonical records, combined with those for other records, compared with one statement for all records."""

from __future__ import annotations

import datetime as dt
import gc
import json
import logging
import random
from itertools import product

import pytest
from py4j.protocol import Py4JJavaError
from spark_jobs.compile import dead_letter_places_sql, pipeline_sql
from spark_jobs.prepared import SparkRows
from spark_jobs.session import configured
from spark_jobs.statements import Statements, _Read
from tests.integration.spark.test_compile import AHEAD, KAFKA, NOW, VALUES, beat, canonical

from tidemark.processes import wait_until
from tidemark.tasks.partials import Partial, Status
from tidemark.topology.builder import Topology
from tidemark.topology.windows import hopping, session, sliding, tumbling

pytestmark = pytest.mark.spark

SCHEMA = "patient_id STRING, beat_ms BIGINT, ibi_ms INT, recording STRING"
KEY_LAST = "beat_ms BIGINT, ibi_ms INT, recording STRING, patient_id STRING"


def windows(stream, window):
    return stream.group_by_key().windowed_by(window)


PATHS = {
    "counted": lambda s: windows(s, tumbling("60s").grace("5s")).count(name="n", store="s", retention="1h"),
    "hopping": lambda s: windows(s, hopping("60s", "20s").grace("5s")).count(name="n", store="s", retention="1h"),
    "without windows": lambda s: s.group_by_key().aggregate(
        store="s", n="count(*)", most="max(ibi_ms)", least="min(beat_ms)", all="sum(ibi_ms)", mean="mean(ibi_ms)"
    ),
    "sketches": lambda s: s.group_by_key().aggregate(store="s", kinds="distinct(recording)"),
    "sessions": lambda s: windows(s, session("30s").grace("1s")).count(name="n", store="s", retention="1h"),
    "sliding": lambda s: windows(s, sliding("30s").grace("1s")).count(name="n", store="s", retention="1h"),
    "lists in sessions": lambda s: windows(s, session("30s").grace("1s")).aggregate(
        store="s", retention="1h", newest="collect(recording, 3)", kinds="distinct(ibi_ms)"
    ),
    "filtered": lambda s: windows(s.filter("ibi_ms > 500"), tumbling("60s").grace("5s")).count(
        name="n", store="s", retention="1h"
    ),
    "selected": lambda s: s.select(patient_id="patient_id", twice="ibi_ms * 2").to("out"),
    "sent on": lambda s: s.to("out"),
    "filtered and sent on": lambda s: s.filter("ibi_ms > 500 AND recording <> 'x'").to("out"),
    "table": lambda s: s.filter("true").to_table("t"),
    "under a new key": lambda s: s.group_by("recording", name="by-recording").count(name="n", store="s"),
    "two paths": lambda s: (s.to("out"), s.group_by_key().count(name="n", store="s")),
}


def plan_of(build, schema=SCHEMA, key="patient_id"):
    topology = Topology("app")
    build(topology.stream("in", schema=schema, key=key, timestamp="beat_ms"))
    return topology.plan().subtopologies[0]


def frame_of(spark, records):
    stamp = dt.datetime.fromtimestamp(NOW / 1000, dt.UTC)
    rows = [(k, v, "in", offset % 2, offset, stamp, [("h", b"1")]) for offset, (k, v) in enumerate(records)]
    return spark.createDataFrame(rows, KAFKA)


def content(table):
    def sortable(row):
        return json.dumps(
            {k: v.hex() if isinstance(v, bytes) else v for k, v in row.items()}, sort_keys=True, default=str
        )

    return sorted(map(sortable, table.to_pylist()))


MANY = 1_000_000
"""So many records are grouped by Spark, fewer by Arrow."""


class Noting(Statements):
    """Statements; `asked` are those that were run."""

    def __init__(self, *given):
        super().__init__(*given)
        self.asked = []

    def _run(self, read, sql, **how):
        self.asked.append(sql)
        return super()._run(read, sql, **how)


def assert_alike(spark, subtopology, records):
    """Each pipeline has the results of one statement for all records.

    That holds whether Spark or Arrow groups them, and for statements that were planned for other records.
    """
    frame = frame_of(spark, records)
    numbers, few = range(len(subtopology.pipelines)), len(records)
    statements, others = (Statements(subtopology, f"statements_{of}", AHEAD) for of in ("these", "others"))
    others.tables(SparkRows.of(frame_of(spark, records[::3])), numbers, few)
    # As Kafka's partitions are: each is whole in one of Spark's.
    clustered = SparkRows.of(frame.repartition(2, "partition"), "partition")
    found = [
        *(statements.tables(SparkRows.of(frame), numbers, most) for most in (few, few, MANY)),
        others.tables(SparkRows.of(frame), numbers, few),
        *(Statements(subtopology, "clustered", AHEAD).tables(clustered, numbers, most) for most in (few, MANY)),
    ]
    frame.createOrReplaceTempView("all_records")
    for number, pipeline in enumerate(subtopology.pipelines):
        expected = spark.sql(pipeline_sql(subtopology, pipeline, "all_records", AHEAD)).toArrow()
        for tables in found:
            assert tables[number].schema.names == expected.schema.names
            assert tables[number].schema.types == expected.schema.types
            assert content(tables[number]) == content(expected)


MIXED = [(key, value) for value in VALUES for key in (b"p1", None, b"\xff", "ü".encode())]


@pytest.mark.parametrize("path", PATHS)
def test_should_give_the_same_results_as_one_statement_for_all_records(spark, path):
    assert_alike(spark, plan_of(PATHS[path]), [*MIXED, *[(b"p1", beat(ibi=n)) for n in range(400, 900)]])


@pytest.mark.parametrize("path", ["counted", "sent on"])
def test_should_give_the_same_results_wherever_the_key_is_in_the_record(spark, path):
    values = [
        json.dumps({"beat_ms": NOW, "ibi_ms": n, "recording": "r", "patient_id": f"p{n % 3}"}).encode()
        for n in range(300)
    ]
    records = [(f"p{n % 4}".encode(), value) for n, value in enumerate(values)]
    assert_alike(spark, plan_of(PATHS[path], KEY_LAST), records)
    assert_alike(spark, plan_of(PATHS[path], SCHEMA, key="upper(patient_id)"), [(b"P1", canonical())] * 50 + MIXED[:20])
    assert_alike(spark, plan_of(PATHS[path], SCHEMA, key="_key"), [(b"P1", canonical())] * 50 + MIXED[:20])


def test_should_not_mistake_a_key_for_the_beginning_of_a_record(spark):
    """With such a key the record begins with the same bytes as if its key and the Kafka key were equal."""
    whole = canonical().decode()
    keys = [whole[len('{"patient_id":"') : end] for end in (len(whole) - 2, len(whole) - 1, 30, 19)]
    records = [(key.encode(), canonical()) for key in keys] + [(b"p1", canonical())] * 90
    assert_alike(spark, plan_of(PATHS["counted"]), records)


def test_should_send_records_on_without_the_spaces_between_their_fields(spark):
    def written(recording, comma=", ", colon=": "):
        record = {"patient_id": "p1", "beat_ms": NOW, "ibi_ms": -7, "recording": recording}
        return json.dumps(record, separators=(comma, colon), ensure_ascii=False)

    texts = ['a": "b', ', "b": 1', "$1 \\1", "{", "}", " ", "", "r", "a, b: c", "é", "\x7f", *map(chr, range(0x100))]
    records = [(b"p1", written(text, *form).encode()) for text in texts for form in product((", ", ","), (": ", ":"))]
    records.append((b"p1", b'{"patient_id":"p1","beat_ms":1,"ibi_ms":2,"recording":"\xff"}'))
    for key in ("patient_id", "_key"):
        assert_alike(spark, plan_of(PATHS["sent on"], key=key), records)
    plain = "".join(map(chr, range(0x20, 0x7F))).replace('"', "").replace("\\", "")
    statements = Statements(plan_of(PATHS["sent on"]), "plain", AHEAD)
    rows = SparkRows.of(
        frame_of(spark, [(b"p1", written(plain, *form).encode()) for form in ((",", ":"), (", ", ": "))])
    )
    (table,) = statements.tables(rows, [0], 2).values()
    assert table.column(Partial.VALUE).to_pylist() == [written(plain, ",", ":")] * 2


def test_should_count_the_same_for_random_records(spark):
    chance = random.Random(5)
    values = [
        *(beat(f"p{n % 5}", NOW + n * 7_000, n) for n in range(40)),
        *(json.dumps(json.loads(beat(f"p{n % 5}", NOW + n * 7_000, n)), separators=(",", ":")).encode() for n in range(40)),
        *(json.dumps({"ibi_ms": n, "recording": "r", "patient_id": f"p{n % 5}", "beat_ms": NOW}).encode() for n in range(20)),
        b"{broken", None,
    ]  # fmt: skip
    keys = [b"p0", b"p1", b"p2", b"p3", b"p4", None]
    for path in ("counted", "without windows", "sessions", "sent on", "filtered and sent on"):
        records = [(chance.choice(keys), chance.choice(values)) for _ in range(1000)]
        assert_alike(spark, plan_of(PATHS[path]), records)


def test_should_find_dead_letters_among_all_records(spark):
    subtopology = plan_of(PATHS["counted"])
    frame_of(spark, MIXED).createOrReplaceTempView("letters")
    found = spark.sql(dead_letter_places_sql(subtopology, subtopology.lead, "letters", AHEAD)).toArrow().to_pylist()
    expected = spark.sql(pipeline_sql(subtopology, subtopology.pipelines[0], "letters", AHEAD)).toArrow().to_pylist()
    assert len(found) == sum(row["__rows"] for row in expected if row["__status"] in (1, 3)) > 0
    assert len({row["__record_offset"] for row in found}) == len(found)


def test_should_read_a_source_with_one_statement_when_many_records_are_not_canonical(spark, caplog):
    subtopology = plan_of(PATHS["counted"])
    statements = Noting(subtopology, "much", AHEAD)
    odd = [(b"p1", json.dumps({"beat_ms": NOW, "patient_id": "p1"}).encode())] * 20
    rows = SparkRows.of(frame_of(spark, [*odd, *[(b"p1", canonical())] * 80]))
    with caplog.at_level(logging.INFO):
        first = statements.tables(rows, [0], 100)[0]
    assert "20 of 100 records are not in the usual form: subtopology=0 source=in" in caplog.text
    assert len(statements.asked) == 2
    second = statements.tables(rows, [0], 100)[0]
    assert len(statements.asked) == 3
    assert content(first) == content(second)
    statements.forget_kinds_of_records()
    assert content(statements.tables(rows, [0], 100)[0]) == content(first)
    assert len(statements.asked) == 5


def test_should_plan_a_statement_for_few_records_only_once(spark, monkeypatch):
    planned, query = [], _Read.query
    monkeypatch.setattr(_Read, "query", lambda read, sql: planned.append(sql) or query(read, sql))
    odd = json.dumps({"beat_ms": NOW, "patient_id": "p1"}).encode()
    rows = SparkRows.of(frame_of(spark, [*[(b"p1", canonical())] * 50, (b"p1", odd)]))
    statements = Statements(plan_of(PATHS["two paths"]), "once", AHEAD)
    for records in (51, 51, 51, MANY, MANY):
        statements.tables(rows, [0, 1], records)
    # A statement of each pipeline for canonical records, and one for the others.
    few, many = planned[:4], planned[4:]
    assert len(few) == len(set(few)) == 4
    assert len(many) == 8


def test_should_refuse_a_result_whose_end_did_not_arrive(spark):
    """The stream of a JVM that dies while it sends looks as if it had ended."""
    records = [(b"p1", canonical())] * 10
    whole = frame_of(spark, records).repartition(2, "partition")
    failing = whole.where("partition = 0 OR raise_error('no second partition') IS NULL").coalesce(2)
    statements = Statements(plan_of(PATHS["counted"]), "cut", AHEAD)
    statements.tables(SparkRows.of(whole), [0], 10)
    (prepared,) = statements._prepared._prepared.values()
    # Here the second partition is computed while the first is sent, and fails.
    serve = spark._jvm.org.apache.spark.api.python.PythonRDD.serveIterator
    prepared._collect = lambda rdd: serve(rdd.toLocalIterator(), "cut")
    assert statements.tables(SparkRows.of(whole), [0], 10)[0].num_rows == 2
    with pytest.raises(Py4JJavaError, match="no second partition"):
        statements.tables(SparkRows.of(failing), [0], 10)


def a_count_beside_a_table(aggregates):
    """The sub-topology of a stream whose aggregates are joined with a table."""
    topology = Topology("app")
    beats = topology.stream("in", schema=SCHEMA, key="patient_id", timestamp="beat_ms").filter("ibi_ms > 500")
    results = beats.group_by_key().aggregate(store="s", **aggregates)
    results.to_stream().join(topology.table("patients", schema="name STRING", store="patients")).to("out")
    (subtopology,) = topology.plan().subtopologies
    return subtopology


@pytest.mark.parametrize("usual", [1.0, 0.95, 0.5])
@pytest.mark.parametrize("aggregates", [{"n": "count(*)"}, {"kinds": "distinct(recording)"}])
def test_should_give_the_newest_time_of_the_source_up_to_each_result_that_meets_other_sources(spark, aggregates, usual):
    chance, records = random.Random(5), []
    times = [chance.randint(0, 10_000) for _ in range(60)]
    for at in times:
        # Some are left out by the filter. Their times count, too.
        key, ibi = f"p{at % 3}", chance.choice((400, 800))
        is_usual = chance.random() < usual
        records.append((key.encode(), canonical(f'"{key}"', str(at), str(ibi)) if is_usual else beat(key, at, ibi)))
    subtopology = a_count_beside_a_table(aggregates)
    (number,) = (n for n, pipeline in enumerate(subtopology.pipelines) if pipeline.aggregation is not None)
    statements = Statements(subtopology, "newest", AHEAD)
    rows = SparkRows.of(frame_of(spark, records))
    for most in (len(records), len(records), MANY):
        table = statements.tables(rows, [number], most)[number]
        good = [row for row in table.to_pylist() if row[Partial.STATUS] == Status.GOOD]
        assert {row[Partial.KEY] for row in good} == {"p0", "p1", "p2"}
        for row in good:
            last, partition = row[Partial.LAST_OFFSET], row[Partial.PARTITION]
            assert row[Partial.NEWEST] == max(t for o, t in enumerate(times) if o % 2 == partition and o <= last)


def test_should_release_the_result_of_a_kept_statement_before_python_looks_for_cycles(spark):
    records = [(b"p1", canonical())] * 10
    rows = SparkRows.of(frame_of(spark, records))
    statements = Statements(plan_of(PATHS["counted"]), "released", AHEAD)
    statements.tables(rows, [0], 10)
    (prepared,) = statements._prepared._prepared.values()
    collect, servers = prepared._collect, []

    def collected(rdd):
        served = collect(rdd)
        server = served[2]
        servers.append(spark._jvm.java.lang.ref.WeakReference(server))
        server._detach()
        return served

    def is_released() -> bool:
        spark._jvm.java.lang.System.gc()
        return bool(servers[0].refersTo(None))

    prepared._collect = collected
    gc.disable()
    try:
        statements.tables(rows, [0], 10)
        assert len(servers) == 1
        assert wait_until(is_released, 20)
    finally:
        gc.enable()


def test_should_give_tasks_the_settings_of_the_session_also_the_second_time(spark):
    """Spark's JSON parser asks for this setting in the task."""
    records = [(b"p1", json.dumps({"beat_ms": NOW, "patient_id": "p1", "ibi_ms": "", "recording": "r"}).encode())]
    rows, found = SparkRows.of(frame_of(spark, records)), []
    for allowed in ("true", "false"):
        with configured(spark, {"spark.sql.legacy.json.allowEmptyString.enabled": allowed}):
            statements = Statements(plan_of(PATHS["counted"]), f"allowed_{allowed}", AHEAD)
            found.append([statements.tables(rows, [0], 1)[0].column("__status").to_pylist() for _ in range(3)])
    assert found == [[[Status.GOOD]] * 3, [[Status.BAD]] * 3]


def test_should_group_in_spark_only_where_many_records_have_few_keys(spark):
    statements = Noting(plan_of(PATHS["counted"]), "grouped", AHEAD)
    few_keys = SparkRows.of(frame_of(spark, [(b"p1", canonical())] * 10))
    many_keys = SparkRows.of(frame_of(spark, [(f"p{n}".encode(), beat(f"p{n}")) for n in range(10)]))
    for rows, records in (
        (many_keys, 10),  # Few records, from which nothing is learnt.
        (few_keys, MANY),
        (many_keys, MANY),
        (many_keys, MANY),
        (few_keys, MANY),
        (few_keys, MANY),
    ):
        statements.tables(rows, [0], records)
    assert ["GROUP BY" in text for text in statements.asked if "unread" not in text] == [
        False,
        True,
        True,
        False,
        False,
        True,
    ]


def test_should_count_each_window_of_a_record_as_a_row(spark):
    statements = Noting(plan_of(PATHS["hopping"]), "hops", AHEAD)
    statements.tables(SparkRows.of(frame_of(spark, [(b"p1", canonical())])), [0], 7_000)
    assert ["GROUP BY" in text for text in statements.asked] == [True]


def test_should_take_nan_for_the_largest_number_whoever_groups(spark):
    """Arrow would ignore it. The record that is not in the usual form is read by a statement of its own."""
    odd = json.dumps({"beat_ms": NOW, "patient_id": "p1", "ibi_ms": 7, "recording": "NaN"}).encode()
    values = [canonical(recording='"1.5"'), odd, canonical(recording='"2.5"')]
    path = plan_of(lambda s: s.group_by_key().aggregate(store="s", most="max(CAST(recording AS DOUBLE))"))
    assert_alike(spark, path, [(b"p1", value) for value in [*values, *[values[0]] * 20]])
