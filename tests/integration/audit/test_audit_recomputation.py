"""The audit's computation and the stream's give the same partial results, accounts and dead letters for odd records."""

from __future__ import annotations

import json
import random
import struct

import pytest
from pyspark.sql import SparkSession
from spark_jobs.audit import recomputation
from spark_jobs.audit.results import near_sql
from spark_jobs.compile import pipeline_sql

from tidemark.audit.derivable import derivable
from tidemark.stores.layout import ValueLayout, slots_of
from tidemark.tasks.partials import Status
from tidemark.topology.builder import Topology
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.windows import hopping, tumbling

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

NOW_MS = 1_700_000_000_000
AHEAD_MS = 3_600_000
SCHEMA = (
    "role STRING, topic STRING, partition INT, offset BIGINT, ts_ms BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "p INT, batch BIGINT"
)


NONE_REFUSED = "(SELECT '' AS of_topic, 0 AS of_partition, 0L AS of_offset WHERE false)"


def odd_values(chance: random.Random) -> bytes | None:
    at = NOW_MS - chance.randrange(600_000)
    record = {"id": f"k{chance.randrange(4)}", "at": at, "x": chance.randrange(-5, 20), "y": chance.random()}
    odd = chance.random()
    if odd < 0.05:
        return chance.choice([b"{", b"", b"[]", b"null", b"\xff\xfe", None, b'{"id": 5'])
    if odd < 0.15:
        record[chance.choice(["id", "at", "x", "y"])] = chance.choice(
            [None, "text", -7, 1 << 40, NOW_MS + 2 * AHEAD_MS]
        )
    if odd < 0.2:
        record["at"] = chance.randrange(5000)
    return json.dumps(record).encode()


def key_of(value: bytes | None) -> bytes:
    """The key under which a producer sends it."""
    try:
        return str(json.loads(value)["id"]).encode()
    except (TypeError, ValueError, KeyError):
        return b"k0"


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> str:
    chance = random.Random(7)
    keys = {5: None, 7: b"\xff", 9: b"of another record"}
    rows = []
    for n in range(600):
        value = odd_values(chance)
        key = keys.get(n % 50, key_of(value))
        rows.append(("source", "in", n % 2, n, NOW_MS, None, key, value, n % 2, 1))
    frame = spark.createDataFrame(rows, SCHEMA).withColumn("timestamp", _timestamp())
    frame.createOrReplaceTempView("audit_records")
    return "audit_records"


def _timestamp():
    from pyspark.sql.functions import expr

    return expr("timestamp_millis(ts_ms)")


@pytest.mark.parametrize("windows", [None, tumbling("1m"), hopping("1m", "25s"), hopping("10s", "3s")], ids=str)
def test_should_compute_the_same_in_the_stream_and_in_the_recomputation(
    spark: SparkSession, records: str, windows
) -> None:
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT, x BIGINT, y DOUBLE", key="id", timestamp="at")
    grouped = stream.filter("coalesce(x, 1) >= 0").select("coalesce(x, 1) * 2 AS k", "y AS batch").group_by_key()
    grouped = grouped if windows is None else grouped.windowed_by(windows)
    named = {"n": "count(*)", "s": "sum(k)", "low": "min(batch)", "rows": "max(k)", "mean": "mean(batch)"}
    grouped.aggregate(store="s", **named).to("out")
    (one,) = derivable(topology.plan()).derived
    # --- what the stream computes
    stream_rows = spark.sql(pipeline_sql(one.subtopology, one.pipeline, records, AHEAD_MS)).toArrow().to_pylist()
    slots = [slot.column for slot in slots_of(one.aggregation.aggregates)]
    good = {
        (row["__p"], row["__key"], row.get("__window", recomputation.NO_WINDOW)): (
            row["__rows"],
            row["__max_ts"],
            *(row[slot] for slot in slots),
        )
        for row in stream_rows
        if row["__status"] == Status.GOOD
    }
    # --- what the audit computes
    source = one.subtopology.sources[0]
    judged_sql = recomputation.judged_sql(source, records, NONE_REFUSED, AHEAD_MS)
    judged = f"({recomputation.placed_sql(source, f'({judged_sql})')})"
    reaching = f"({recomputation.pipeline_records_sql(one.subtopology, one.pipeline, judged)})"
    own = spark.sql(recomputation.partials_sql(one.aggregation, reaching)).toArrow().to_pylist()
    names = [column.split()[0] for column in recomputation.kept_columns(one.aggregation)]
    computed = {(r["p"], r["k"], r["ws"]): (r["rows"], r["ts"], *(r[name] for name in names)) for r in own}
    assert computed.keys() == good.keys()
    for key, values in good.items():
        # Of records without a value alone, nothing but their number is known.
        present = [-1 if value is None else value for value in values]
        assert [-1 if value is None else value for value in computed[key]] == pytest.approx(present, rel=1e-12)
    assert len(good) > 4
    accounts = spark.sql(recomputation.account_sql(one.pipeline, reaching)).toArrow().to_pylist()
    for account in accounts:
        mine = [row for row in stream_rows if row["__p"] == account["p"]]
        stated = [
            sum(row["__rows"] for row in mine if row["__status"] == status)
            for status in (Status.GOOD, Status.FILTERED, Status.BAD)
        ]
        assert [account["rows"], account["filtered_rows"], account["bad_rows"]] == stated
        assert account["newest_ms"] == max(row["__max_ts"] for row in mine if row["__status"] != Status.BAD)
        assert min(stated) > 0
    keyless = spark.sql(f"SELECT count(1) AS n FROM {reaching} WHERE __keyless").first().n
    assert keyless == sum(row["__rows"] for row in stream_rows if row["__status"] == Status.NO_KEY) > 4


def test_should_count_a_record_that_the_streams_sql_refused_as_bad(spark: SparkSession) -> None:
    """Its SQL would raise in the audit, too. A record that was filtered is not selected from."""
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, n INT, kept BOOLEAN", key="id")
    stream.filter("kept").select("CAST(element_at(array(5, 6), n) AS INT) AS part").group_by_key().aggregate(
        store="s", total="sum(part)"
    ).to("out")
    (one,) = derivable(topology.plan()).derived
    numbers = ((1, True), (0, True), (2, True), (0, False))
    values = [json.dumps({"id": "a", "n": n, "kept": kept}).encode() for n, kept in numbers]
    rows = [("source", "in", 0, n, NOW_MS, None, b"a", value, 0, 1) for n, value in enumerate(values)]
    spark.createDataFrame(rows, SCHEMA).createOrReplaceTempView("audit_refused")
    source, refused = one.subtopology.sources[0], "(SELECT 'in' AS of_topic, 0 AS of_partition, 1L AS of_offset)"
    judged_sql = recomputation.judged_sql(source, "audit_refused", refused, AHEAD_MS)
    judged = f"({recomputation.placed_sql(source, f'({judged_sql})')})"
    reaching = f"({recomputation.pipeline_records_sql(one.subtopology, one.pipeline, judged)})"
    (account,) = spark.sql(recomputation.account_sql(one.pipeline, reaching)).collect()
    assert (account["rows"], account["filtered_rows"], account["bad_rows"]) == (2, 1, 1)
    (result,) = spark.sql(recomputation.partials_sql(one.aggregation, reaching)).collect()
    assert (result["k"], result["s0"]) == ("a", 5 + 6)
    assert [r["__offset"] for r in spark.sql(f"SELECT __offset FROM {judged} WHERE __bad").collect()] == [1]


def test_should_decode_changelog_values_exactly(spark: SparkSession) -> None:
    topology = Topology("app")
    grouped = topology.stream("in", schema="id STRING, x BIGINT, y DOUBLE", key="id").group_by_key()
    grouped.windowed_by(tumbling("1m")).aggregate(n="count(*)", low="min(y)", s="sum(x)", store="s").to("out")
    (one,) = derivable(topology.plan()).derived
    layout = ValueLayout(slots_of(one.aggregation.aggregates))
    doubles = [0.1, -0.0, 5e-324, 1.7976931348623157e308, -2.5, float("inf"), 3.0]
    integers = [0, -1, 1 << 62, -(1 << 63), (1 << 63) - 1, 255, 256]
    kept = layout.empty(len(doubles))
    kept["f0"], kept["f1"], kept["f2"] = integers, doubles, integers[::-1]
    kept["valid"] = [7, 7, 7, 7, 7, 7, 5]
    starts = [0, 60_000, NOW_MS, 1 << 40, 5, 6, 7]
    rows = [
        ("changelog", "app-s-changelog", 0, n, 0, None, b"key" + struct.pack(">q", start), value, 0, 1)
        for n, (start, value) in enumerate(zip(starts, layout.encode(kept), strict=True))
    ]
    spark.createDataFrame(rows, SCHEMA).createOrReplaceTempView("audit_log")
    found = spark.sql(recomputation.changelog_results_sql(one, "audit_log") + " ORDER BY offset").toArrow().to_pylist()
    assert [row["k"] for row in found] == ["key"] * len(starts)
    assert [row["ws"] for row in found] == starts
    assert [row["r_n"] for row in found] == integers
    assert [row["r_low"] for row in found] == [*doubles[:-1], None]
    assert [row["r_s"] for row in found] == integers[::-1]


def test_should_compare_sums_up_to_rounding_and_nan_and_infinities_exactly(spark: SparkSession) -> None:
    nan, inf = float("nan"), float("inf")
    equal = [(1.0, 1.0 + 1e-12), (nan, nan), (inf, inf), (-inf, -inf), (None, None), (0.0, -0.0)]
    different = [
        (1.0, 1.0001),
        (5.0, nan),
        (nan, 5.0),
        (inf, 5.0),
        (5.0, inf),
        (inf, -inf),
        (nan, inf),
        (None, nan),
        (inf, None),
    ]
    spark.createDataFrame([*equal, *different], "f DOUBLE, e DOUBLE").createOrReplaceTempView("doubles")
    found = [row.same for row in spark.sql(f"SELECT {near_sql('f', 'e')} AS same FROM doubles").collect()]
    assert found == [True] * len(equal) + [False] * len(different)


FORMS = {
    KeySerde.LONG: [struct.pack(">q", n) for n in (0, 7, -3, 128, -(1 << 63), (1 << 63) - 1)] + [b"", b"7", bytes(9)],
    KeySerde.INTEGER: [struct.pack(">i", n) for n in (0, 7, -3, 128, -(1 << 31), (1 << 31) - 1)] + [b"7", bytes(8)],
    KeySerde.SHORT: [struct.pack(">h", n) for n in (0, 7, -3, 128, -(1 << 15), (1 << 15) - 1)] + [b"7", bytes(3)],
    KeySerde.BYTES: [b"", b"\x00\xff", b"key"],
    KeySerde.STRING: [b"", b"7", b"\xff", "é".encode()],
}


def text_of(serde: KeySerde, key: bytes) -> str | None:
    try:
        return serde.decode(key)
    except ValueError:
        return None


@pytest.mark.parametrize("serde", list(KeySerde))
def test_should_read_the_text_of_keys_as_the_tasks_do(spark: SparkSession, serde: KeySerde) -> None:
    keys = FORMS[serde]
    spark.createDataFrame([(bytearray(key),) for key in keys], "key BINARY").createOrReplaceTempView("audit_forms")
    found = spark.sql(f"SELECT key, {recomputation.key_text_sql(serde)} AS k FROM audit_forms").collect()
    assert {bytes(row.key): row.k for row in found} == {key: text_of(serde, key) for key in keys}


TEXTS = [
    "0", "7", "-3", "07", "+7", "-0", " 7", "7.0", "1e3", "", "abc", "32767", "32768", "-32768", "-32769", "2147483647",
    "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "ab", "AB", "abc0\n",
    "é",
]  # fmt: skip


def has_form(serde: KeySerde, text: str) -> bool:
    try:
        serde.encode(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("serde", list(KeySerde))
def test_should_expect_the_outputs_whose_keys_a_sink_can_write(spark: SparkSession, serde: KeySerde) -> None:
    spark.createDataFrame([(text,) for text in TEXTS], "k STRING").createOrReplaceTempView("audit_texts")
    found = spark.sql(f"SELECT k, {recomputation.has_form_sql(serde, 'k')} AS has_form FROM audit_texts").collect()
    assert {row.k: row.has_form for row in found} == {text: has_form(serde, text) for text in TEXTS}


def test_should_judge_the_records_of_a_source_by_the_form_of_its_keys(spark: SparkSession) -> None:
    topology = Topology("app")
    numbers = topology.stream("in", schema="x BIGINT", key_serde="long")
    numbers.select("x + 1 AS y").repartition(name="r").group_by_key().count(store="n")
    subtopology = topology.plan().subtopologies[0]
    keys = [struct.pack(">q", -3), struct.pack(">q", 128), b"7", None]
    rows = [("source", "in", 0, n, NOW_MS, None, key, b'{"x": 1}', 0, 1) for n, key in enumerate(keys)]
    spark.createDataFrame(rows, SCHEMA).createOrReplaceTempView("audit_numbers")
    judged_sql = recomputation.judged_sql(subtopology.lead, "audit_numbers", NONE_REFUSED, AHEAD_MS)
    judged = f"({recomputation.placed_sql(subtopology.lead, f'({judged_sql})')})"
    found = spark.sql(f"SELECT __k, __bad FROM {judged} ORDER BY __offset").collect()
    assert [(row[0], row[1]) for row in found] == [("-3", False), ("128", False), (None, True), (None, False)]
    (pipeline,) = subtopology.pipelines
    reaching = recomputation.pipeline_records_sql(subtopology, pipeline, judged)
    # A record without a key does not go through a repartition topic.
    found = spark.sql(f"SELECT __k FROM ({reaching}) WHERE __in ORDER BY __offset").collect()
    assert [row[0] for row in found] == ["-3", "128"]


def test_should_read_the_results_of_a_sink_in_the_form_of_its_keys(spark: SparkSession) -> None:
    topology = Topology("app")
    counted = topology.stream("in", schema="id STRING", key="id").group_by_key().count(name="n", store="n")
    counted.to("out", key_serde="integer")
    (one,) = derivable(topology.plan()).derived
    rows = [
        ("sink", "out", 0, n, 0, None, bytearray(key), bytearray(b'{"id": "x", "n": 3}'), 0, 1)
        for n, key in enumerate([struct.pack(">i", -3), struct.pack(">i", 7), b"7"])
    ]
    spark.createDataFrame(rows, SCHEMA).createOrReplaceTempView("audit_integers")
    found = spark.sql(recomputation.sink_results_sql(one, "out", "audit_integers") + " ORDER BY offset").collect()
    assert [(row.k, row.r_n) for row in found] == [("-3", 3), ("7", 3), (None, 3)]


@pytest.mark.parametrize("is_joined", [False, True], ids=["null keys are dropped", "null keys are kept for a join"])
def test_should_count_records_with_a_new_key_as_the_stream_does(spark: SparkSession, is_joined: bool) -> None:
    topology = Topology("app")
    again = topology.stream("in", schema="x BINARY").repartition("CAST(x AS STRING)", name="r")
    if is_joined:
        again.select("1 AS one").left_join(topology.stream("other", schema="z INT"), within="1m", name="j").to("out")
    else:
        again.to("out")
    subtopology = topology.plan().subtopologies[0]
    (pipeline,) = subtopology.pipelines
    # A key, none, and one that is not text.
    values = [b'{"x": "YQ=="}', b'{"x": null}', b'{"x": "/w=="}']
    rows = [("source", "in", 0, n, NOW_MS, None, b"k", value, 0, 1) for n, value in enumerate(values)]
    frame = spark.createDataFrame(rows, SCHEMA).withColumn("timestamp", _timestamp())
    frame.selectExpr("*", "array() AS headers").createOrReplaceTempView("audit_rekeyed")
    statuses = [
        row["__status"] for row in spark.sql(pipeline_sql(subtopology, pipeline, "audit_rekeyed", AHEAD_MS)).collect()
    ]
    judged_sql = recomputation.judged_sql(subtopology.lead, "audit_rekeyed", NONE_REFUSED, AHEAD_MS)
    judged = f"({recomputation.placed_sql(subtopology.lead, f'({judged_sql})')})"
    reaching = f"({recomputation.pipeline_records_sql(subtopology, pipeline, judged)})"
    (account,) = spark.sql(recomputation.account_sql(pipeline, reaching)).collect()
    counted = account.rows, account.filtered_rows, account.bad_rows
    assert counted == tuple(statuses.count(each) for each in (Status.GOOD, Status.FILTERED, Status.BAD))
    assert counted == ((2, 1, 0) if is_joined else (1, 2, 0))
