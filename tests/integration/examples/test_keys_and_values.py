"""Records without a key, without a value, or with bytes that are not text; and their timestamps and headers."""

from __future__ import annotations

import json
import math
import re

import pytest
from pyspark.errors import PySparkException

from tidemark.commit.dead_letter import OFFSET, REASON
from tidemark.errors import RecordRefused
from tidemark.kafka.partitioner import partition_of
from tidemark.stream_times import LATEST_TIMESTAMP_MS
from tidemark.tasks.update import (
    IMPOSSIBLE_TIMESTAMP,
    KEY_DIFFERS,
    KEY_NOT_TEXT,
    NO_KEY,
    REFUSED,
    REFUSED_BY_SQL,
    UNWRITABLE_KEY,
    WRONG_KEY_LENGTH,
)
from tidemark.topology.builder import Topology
from tidemark.topology.windows import sliding, tumbling

pytestmark = pytest.mark.spark

T0 = 1_700_000_040_000  # a whole minute
NOW = T0 + 1_800_000
SCHEMA = "id STRING, at_ms BIGINT, ward STRING, n INT"


def a_topology():
    topology = Topology("app")
    return topology, topology.stream("beats", schema=SCHEMA, key="id", timestamp="at_ms")


@pytest.fixture
def running(topology_driver):
    """Makes a driver that has `beat(seconds, key, **columns)`."""

    def make(topology, **options):
        driver = topology_driver(topology, start_ms=NOW, **options)
        driver.beat = lambda seconds, key="p1", headers=(), **more: driver.pipe(
            "beats", {"id": key, "at_ms": T0 + seconds * 1000, **more}, key=key, headers=headers
        )
        return driver

    return make


def letters(driver):
    return [(reason_of(letter), int(dict(letter.headers)[OFFSET])) for letter in driver.read("app-dlq")]


def reason_of(letter):
    return dict(letter.headers)[REASON].decode()


def test_should_write_event_time_as_the_records_timestamp(running):
    topology, beats = a_topology()
    beats.select("id").to("copies")
    beats.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="counts").to("counts")
    driver = running(topology)
    driver.beat(1)
    driver.beat(0)
    assert [record.timestamp_ms for record in driver.read("copies")] == [T0 + 1000, T0]
    assert [record.timestamp_ms for record in driver.read("counts")] == [T0 + 1000]


def test_should_carry_event_time_through_a_repartition_topic_as_the_records_timestamp(running):
    topology, beats = a_topology()
    wards = beats.repartition("ward", "by-ward")
    wards.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="counts")
    wards.select("id", "_timestamp AS at").to("copies")
    driver = running(topology)
    driver.beat(61, ward="a")
    (copy,) = driver.read("copies")
    assert (copy.value, copy.timestamp_ms) == ({"id": "p1", "at": T0 + 61_000}, T0 + 61_000)
    assert driver.store("counts") == {("a", T0 + 60_000): {"n": 1}}


def test_should_pass_headers_on_when_no_state_is_in_between(running):
    topology, beats = a_topology()
    beats.filter("n > 0").to("copies")
    beats.repartition("ward", "by-ward").select("id").to("by-ward")
    beats.to_table("last").to("last")
    driver = running(topology)
    driver.beat(0, n=1, ward="a", headers=[("trace", b"1"), ("trace", b"2"), ("empty", None)])
    driver.beat(1, n=1, ward="a")
    expected = [(("trace", b"1"), ("trace", b"2"), ("empty", None)), ()]
    assert [record.headers for record in driver.read("copies")] == expected
    assert [record.headers for record in driver.read("by-ward")] == expected
    assert [record.headers for record in driver.read("last")] == [(), ()]


def test_should_carry_nested_fields_through_a_select_and_a_repartition_topic(running):
    topology = Topology("app")
    people = topology.stream("people", schema="id STRING, customer STRUCT<firstName: STRING, petNames: ARRAY<STRING>>")
    people.select("id", "customer").repartition("id", "by-id").to("copies")
    driver = running(topology)
    person = {"id": "p1", "customer": {"firstName": "Ada", "petNames": ["Tom"]}}
    driver.pipe("people", person, key="p1")
    assert [record.value for record in driver.read("copies")] == [person]


def test_should_read_filter_write_and_rekey_a_source_without_keys(running):
    topology = Topology("app")
    lines = topology.stream("lines", schema="level STRING, n INT")
    lines.filter("n > 1").to("copies")
    lines.group_by("level", name="by-level").count(name="lines", store="levels")
    driver = running(topology)
    for level, n in (("warn", 1), ("warn", 2), (None, 3)):
        driver.pipe("lines", {"level": level, "n": n})
    assert [(r.key, r.value) for r in driver.read("copies")] == [
        (None, {"level": "warn", "n": 2}),
        (None, {"level": None, "n": 3}),
    ]
    assert driver.store("levels") == {"warn": {"lines": 2}}
    assert letters(driver) == []


def test_should_make_one_dead_letter_of_a_record_without_key_when_several_nodes_need_its_key(running):
    topology, beats = a_topology()
    beats.to("copies")
    beats.to_table("last")
    beats.filter("n > 0").group_by_key().count(name="beats", store="counts")
    beats.group_by_key().windowed_by(tumbling("60s")).count(name="beats", store="minutes")
    driver = running(topology)
    driver.pipe("beats", {"id": None, "at_ms": T0, "n": 1})
    driver.beat(0, n=1)
    assert letters(driver) == [(NO_KEY, 0)]
    assert [record.key for record in driver.read("copies")] == [None, "p1"]
    assert (list(driver.store("last")), list(driver.store("counts"))) == (["p1"], ["p1"])
    assert driver.store("minutes") == {("p1", T0): {"beats": 1}}


def test_should_make_no_dead_letter_of_a_record_without_key_when_a_filter_removes_it_first(running):
    topology, beats = a_topology()
    beats.filter("_key IS NOT NULL").group_by_key().count(name="beats", store="counts")
    driver = running(topology)
    driver.pipe("beats", {"id": None, "at_ms": T0})
    driver.beat(0)
    assert driver.store("counts") == {"p1": {"beats": 1}}
    assert letters(driver) == []


def test_should_have_no_key_when_the_kafka_record_has_none_whatever_the_value_says(running):
    topology, beats = a_topology()
    beats.to("copies")
    driver = running(topology)
    driver.pipe("beats", {"id": "p1", "at_ms": T0})
    assert [record.key for record in driver.read("copies")] == [None]


def test_should_give_a_processor_records_without_key(running):
    topology, beats = a_topology()
    beats.process("tests.support.processors:KeyOf", emits="was STRING").to("keys")
    driver = running(topology)
    driver.pipe("beats", {"id": None, "at_ms": T0})
    driver.beat(0)
    assert [record.value for record in driver.read("keys")] == [{"was": None}, {"was": "p1"}]
    assert letters(driver) == []


def test_should_make_a_dead_letter_of_a_record_whose_key_is_not_text(running):
    topology, beats = a_topology()
    beats.to("copies")
    beats.to_table("last")
    driver = running(topology)
    driver.pipe("beats", {"id": "p1", "at_ms": T0}, key=b"\xff\xfe")
    driver.beat(0)
    (letter,) = driver.read("app-dlq")
    assert (letter.key, reason_of(letter)) == (b"\xff\xfe", KEY_NOT_TEXT)
    assert [record.key for record in driver.read("copies")] == ["p1"]


def test_should_make_a_dead_letter_of_a_record_whose_key_differs_from_its_value_when_state_is_kept_by_key(running):
    """No part of the record is processed; otherwise a replay would process that part twice."""
    topology, beats = a_topology()
    beats.to("copies")
    beats.group_by_key().count(name="beats", store="counts")
    beats.group_by("ward", "by-ward").count(name="beats", store="wards")
    driver = running(topology, partitions=2)
    driver.beat(0, key="p1", ward="a")
    driver.pipe("beats", {"id": "p1", "at_ms": T0, "ward": "a"}, key="p2")
    (letter,) = driver.read("app-dlq")
    assert (letter.key, reason_of(letter)) == ("p2", KEY_DIFFERS)
    assert driver.store("counts") == {"p1": {"beats": 1}}
    assert driver.store("wards") == {"a": {"beats": 1}}
    assert [record.key for record in driver.read("copies")] == ["p1"]


def test_should_accept_records_whose_key_differs_from_their_value_when_they_are_repartitioned(running):
    topology, beats = a_topology()
    beats.to("copies")
    beats.group_by("id", "by-id").count(name="beats", store="counts")
    driver = running(topology, partitions=2)
    for key in ("p1", "p2", "p3"):
        driver.pipe("beats", {"id": "p1", "at_ms": T0}, key=key)
    assert driver.store("counts") == {"p1": {"beats": 3}}
    assert [record.key for record in driver.read("copies")] == ["p1"] * 3
    assert letters(driver) == []


def test_should_have_no_key_when_the_value_does_not_contain_it(running):
    """A record without a key is not a dead letter: a table drops it, and an outer join emits it unmatched."""
    topology, beats = a_topology()
    beats.to_table("last")
    driver = running(topology)
    driver.pipe("beats", {"id": None, "at_ms": T0}, key="p1")
    driver.pipe("beats", None, key="p1", timestamp_ms=T0)
    assert letters(driver) == [(NO_KEY, 0)]


def test_should_pass_a_null_value_to_a_table_as_a_deletion(running):
    topology, beats = a_topology()
    beats.select("ward", "coalesce(n, 5) AS n").to_table("last").to("last")
    beats.to("copies")
    driver = running(topology)
    driver.beat(0, ward="a")
    driver.commit()
    driver.pipe("beats", None, key="p1", timestamp_ms=T0 + 1000)
    assert [(r.key, r.value) for r in driver.read("last")] == [("p1", {"ward": "a", "n": 5}), ("p1", None)]
    assert [(r.key, r.value, r.timestamp_ms) for r in driver.read("copies")][1:] == [("p1", None, T0 + 1000)]
    assert driver.store("last") == {}
    assert letters(driver) == []


def test_should_evaluate_a_filter_on_a_null_value_as_on_a_record_of_nulls(running):
    topology, beats = a_topology()
    beats.filter("n > 1").to("known")
    beats.filter("n IS NULL").to("unknown")
    beats.select("coalesce(n, 7) AS n").filter("n = 7").to("selected")
    driver = running(topology)
    driver.pipe("beats", None, key="p1")
    assert driver.read("known") == []
    assert [(r.key, r.value) for r in driver.read("unknown")] == [("p1", None)]
    # A null value stays one: there is nothing to select from.
    assert driver.read("selected") == []


def test_should_aggregate_null_values_as_kafka_streams_does(running):
    """KStreamAggregate and sliding windows ignore a null value; other windows (KStreamWindowAggregate) count it."""
    topology, beats = a_topology()
    grouped = beats.group_by_key()
    grouped.aggregate(store="all", beats="count(*)", total="sum(coalesce(n, 1))")
    grouped.windowed_by(sliding("10s").grace("60s")).count(name="beats", store="sliding")
    grouped.windowed_by(tumbling("60s")).aggregate(store="minutes", beats="count(*)", known="count(n)")
    driver = running(topology)
    driver.beat(0, n=1)
    before = driver.store("sliding")
    driver.pipe("beats", None, key="p1", timestamp_ms=T0 + 1000)
    assert driver.store("all") == {"p1": {"beats": 1, "total": 1}}
    assert driver.store("sliding") == before
    assert driver.store("minutes") == {("p1", T0): {"beats": 2, "known": 1}}


def test_should_pass_a_null_value_through_a_repartition_topic_when_its_new_key_is_known(running):
    topology, beats = a_topology()
    beats.repartition("coalesce(ward, 'none')", "by-ward").to_table("wards").to("wards")
    driver = running(topology)
    driver.beat(0, ward=None)
    driver.commit()
    driver.pipe("beats", None, key="p1")
    assert [(r.key, r.value is None) for r in driver.read("wards")] == [("none", False), ("none", True)]
    assert letters(driver) == []


def test_should_pass_a_deletion_from_a_table_through_a_repartition_topic(running):
    topology = Topology("app")
    patients = topology.table("patients", schema="ward STRING", store="patients")
    patients.to_stream().repartition("'all'", "all").to_table("all").to("out")
    driver = running(topology)
    driver.pipe("patients", {"ward": "a"}, key="p1")
    driver.commit()
    driver.pipe("patients", None, key="p1")
    assert [(r.key, r.value) for r in driver.read("out")] == [("all", {"ward": "a"}), ("all", None)]
    assert letters(driver) == []


@pytest.mark.parametrize("partitioner", ["sticky", "tests.support.partitioners:by_key_length"])
def test_should_place_records_without_key_or_value_with_a_partitioner(running, partitioner):
    topology, beats = a_topology()
    beats.to("copies", partitioner=partitioner)
    beats.to_table("last").to("last", partitioner=partitioner)
    driver = running(topology, partitions=2)
    driver.pipe("beats", {"id": None, "at_ms": T0})
    driver.pipe("beats", None, key="p1", timestamp_ms=T0)
    driver.beat(0)
    found = {(record.key, record.value is None) for record in driver.read("copies")}
    assert found == {(None, False), ("p1", True), ("p1", False)}


def limits(topology):
    tops = topology.table("limits", schema="top DOUBLE", store="limits")
    topology.stream("in", schema="v DOUBLE").left_join(tops).select("v", "v < top AS below").to("out")


def smaller(topology):
    topology.stream("limits", schema="top DOUBLE").group_by_key().reduce(f"{__name__}:keep_smaller", store="limits")


def repartitioned(topology):
    rows = topology.stream("limits", schema="top DOUBLE").to_table("limits").to_stream()
    rows.repartition("'all'", "again").select("top", "top > 1e300 AS below").to("out")


def keep_smaller(old, new):
    return new if new["top"] < old["top"] else old


BELOW = [True, True, False, True, False, True]


@pytest.mark.parametrize(
    ("build", "below", "held"),
    [(limits, BELOW, math.inf), (smaller, [], -math.inf), (repartitioned, BELOW, math.inf)],
)
def test_should_keep_infinities_and_nan_for_any_division_into_batches(topology_driver, build, below, held):
    for is_cut in (False, True):
        topology = Topology("app")
        build(topology)
        driver = topology_driver(topology, start_ms=NOW)
        for second, top in enumerate((b'"Infinity"', b"1e400", b"5.0", b'"NaN"', b'"-Infinity"', b'"Infinity"')):
            driver.pipe("limits", b'{"top":' + top + b"}", key="a", timestamp_ms=T0 + second)
            if build is limits:
                driver.pipe("in", {"v": 6.0}, key="a", timestamp_ms=T0 + second)
            if is_cut:
                driver.commit()
        assert [record.value["below"] for record in driver.read("out")] == below
        assert driver.store("limits") == {"a": {"top": held}}
        assert letters(driver) == []


RAISES = "element_at(split(ward, ','), n)"
"""An expression that raises for the n 0, and is null for an n beyond the last element."""


@pytest.mark.parametrize("form", [{}, {"unknown": 1}], ids=["in the usual form", "in another form"])
def test_should_make_a_dead_letter_of_each_record_for_which_sql_raises(running, form):
    """Wherever in a batch they are, all others are processed as if these had not been there."""
    topology, beats = a_topology()
    beats.select("id", "at_ms", part=RAISES).to("parts")
    beats.filter("n < 9").group_by_key().windowed_by(tumbling("60s")).count(f"{RAISES} = 'a'", store="counts")
    driver = running(topology)
    refused = (0, 3, 4, 9)
    for number in range(10):
        driver.beat(number, ward="a,b", n=0 if number in refused else 1, **form)
    assert letters(driver) == [(REFUSED_BY_SQL, number) for number in refused]
    assert [record.value["part"] for record in driver.read("parts")] == ["a"] * 6
    assert driver.store("counts") == {("p1", T0): {"count": 6}}
    driver.beat(11, ward="a,b", n=2)
    assert [record.value["part"] for record in driver.read("parts")] == ["b"]


@pytest.mark.parametrize("condition", ["ward RLIKE '(a|b)*c'", "regexp_extract(ward, '((a|b)*)c', 1) = ''"])
def test_should_make_a_dead_letter_of_a_text_for_which_a_regular_expression_overflows_the_stack(running, condition):
    topology, beats = a_topology()
    beats.select("id", found=condition).to("matches")
    driver = running(topology)
    for second, ward in enumerate(("abc", "ab" * 50_000, "b")):
        driver.beat(second, ward=ward)
    (letter,) = driver.read("app-dlq")
    headers = dict(letter.headers)
    assert (reason_of(letter), headers[OFFSET], headers["tidemark.error"]) == (
        REFUSED_BY_SQL,
        b"1",
        b"StackOverflowError",
    )
    assert len(driver.read("matches")) == 2


def test_should_raise_for_a_statement_that_refuses_record_after_record(running):
    topology, beats = a_topology()
    beats.select(part="element_at(split(ward, ','), 0)").to("parts")
    driver = running(topology)
    for number in range(150):
        driver.beat(number, ward="a")
    with pytest.raises(PySparkException, match="index 0 is invalid"):
        driver.commit()


def test_should_not_select_from_a_record_that_was_filtered(running):
    topology, beats = a_topology()
    beats.filter("n <> 0").select("id", part=RAISES).to("parts")
    driver = running(topology)
    for n in (1, 0, 2):
        driver.beat(n, ward="a,b", n=n)
    assert [record.value["part"] for record in driver.read("parts")] == ["a", "b"]
    assert letters(driver) == []


def test_should_make_a_dead_letter_of_a_timestamp_that_sql_cannot_compute(running):
    topology = Topology("app")
    beats = topology.stream("beats", schema=SCHEMA, key="id", timestamp="unix_millis(timestamp_millis(at_ms))")
    beats.group_by_key().count(name="beats", store="counts")
    driver = running(topology)
    driver.beat(0)
    driver.pipe("beats", {"id": "p1", "at_ms": 2**63 - 1}, key="p1")
    assert letters(driver) == [(REFUSED_BY_SQL, 1)]
    assert driver.store("counts") == {"p1": {"beats": 1}}


def test_should_end_at_a_record_for_which_sql_raises_when_the_source_says_so(topology_driver):
    topology = Topology("app")
    beats = topology.stream("beats", schema=SCHEMA, key="id", on_error="fail")
    beats.select(part=RAISES).to("parts")
    driver = topology_driver(topology, start_ms=NOW)
    driver.pipe("beats", {"id": "p1", "ward": "a", "n": 0}, key="p1")
    with pytest.raises(RecordRefused, match=r"offset 0 .*refused by SQL") as refused:
        driver.commit()
    assert re.search(r"SparkRuntimeException: .*index 0 is invalid", refused.value.records)


def test_should_keep_the_last_value_of_a_key_that_a_map_has_twice(running):
    topology, beats = a_topology()
    beats.select(a="CAST(str_to_map(ward, '&', '=')['a'] AS STRING)").to("maps")
    driver = running(topology)
    driver.beat(0, ward="a=1&a=2")
    assert [record.value for record in driver.read("maps")] == [{"a": "2"}]


def test_should_make_a_dead_letter_of_a_kafka_timestamp_that_spark_cannot_read(running):
    topology, beats = a_topology()
    beats.to("copies")
    driver = running(topology)
    for at in (NOW, LATEST_TIMESTAMP_MS + 1, 2**63 - 1, LATEST_TIMESTAMP_MS):
        driver.pipe("beats", {"id": "p1", "at_ms": T0}, key="p1", timestamp_ms=at)
    assert letters(driver) == [(IMPOSSIBLE_TIMESTAMP, 1), (IMPOSSIBLE_TIMESTAMP, 2)]
    assert len(driver.read("copies")) == 2


def test_should_read_and_write_keys_as_javas_serializers_write_them(running):
    topology = Topology("app")
    orders = topology.stream("orders", schema="cents BIGINT", key_serde="long")
    orders.filter("cents > 1").to("copies", key_serde="integer")
    orders.process("tests.support.processors:KeyOf", emits="was STRING").to("keys")
    counted = orders.select("cents").repartition(name="by-key").group_by_key().count(name="orders", store="counts")
    counted.to("counts", key_serde="long")
    driver = running(topology, partitions=3)
    for key, cents in (("7", 1), ("-3", 2), ("-3", 3), (str(1 << 40), 4), (None, 5)):
        driver.pipe("orders", {"cents": cents}, key=key)
    driver.pipe("orders", {"cents": 6}, key=b"7")
    driver.pipe("orders", {"cents": 7}, key=bytes(8))
    by_cents = {record.value["cents"]: record.key for record in driver.read("copies")}
    assert by_cents == {2: "-3", 3: "-3", 5: None, 7: "0"}
    assert sorted(record.value["was"] or "" for record in driver.read("keys")) == [
        "",
        "-3",
        "-3",
        "0",
        "1099511627776",
        "7",
    ]
    counts = {key: value["orders"] for key, value in driver.store("counts").items()}
    assert counts == {"7": 1, "-3": 2, "1099511627776": 1, "0": 1}
    assert {record.key: record.value["orders"] for record in driver.read("counts")} == counts
    letters = sorted((reason_of(letter), letter.key) for letter in driver.read("app-dlq"))
    assert letters == [(UNWRITABLE_KEY, "1099511627776"), (WRONG_KEY_LENGTH, "7")]


def test_should_write_dead_letters_in_the_form_of_production(running):
    topology, beats = a_topology()
    beats.process("tests.support.used_processors:RaisesWithoutText", emits="n BIGINT").to("out")
    driver = running(topology, partitions=3)
    driver.pipe("beats", b"not JSON", key="p1", timestamp_ms=T0, headers=[("trace", b"7"), ("empty", None)])
    driver.beat(0, key="p2", n=4)
    unreadable, refused = driver.read("app-dlq")
    assert (unreadable.key, unreadable.value, unreadable.timestamp_ms) == ("p1", b"not JSON", NOW)
    assert unreadable.headers == (
        ("trace", b"7"), ("empty", None), ("tidemark.reason", b"unparsable"), ("tidemark.topic", b"beats"),
        ("tidemark.partition", b"%d" % unreadable.partition), ("tidemark.offset", b"0"),
        ("tidemark.timestamp", b"%d" % T0),
    )  # fmt: skip
    assert json.loads(refused.value)["n"] == 4
    headers = dict(refused.headers)
    assert headers["tidemark.reason"] == REFUSED.encode()
    assert headers["tidemark.node"].startswith(b"KSTREAM-PROCESSOR")
    assert b"Traceback" in headers["tidemark.traceback"]


def test_should_choose_partitions_as_in_production(running):
    """`sticky` begins at the partition of the task: a record that is read back is processed by the task of its partition."""
    topology, beats = a_topology()
    beats.to("plain")
    beats.to("placed", partitioner="tests.support.partitioners:by_key_length")
    read = topology.stream("placed", schema=SCHEMA, key="id", timestamp="at_ms")
    read.to("by-task", partitioner="sticky")
    driver = running(topology, partitions=3)
    keys = ["a", "bb", "ccc", "dddd"]
    for second, key in enumerate(keys):
        driver.beat(second, key=key)
    assert {record.key: record.partition for record in driver.read("plain")} == {
        key: partition_of(key.encode(), 3) for key in keys
    }
    by_length = {key: len(key) % 3 for key in keys}
    assert {record.key: record.partition for record in driver.read("placed")} == by_length
    assert {record.key: record.partition for record in driver.read("by-task")} == by_length


def test_should_read_a_topic_back_in_the_form_in_which_it_was_written(running):
    topology = Topology("app")
    beats = topology.stream("beats", schema=SCHEMA)
    beats.select("n").to("numbers", key_serde="bytes")
    numbers = topology.stream("numbers", schema="n INT", key_serde="bytes")
    numbers.repartition(name="by-key").to_table("last")
    driver = running(topology, partitions=2)
    driver.pipe("beats", {"n": 1}, key="00ff")
    driver.pipe("beats", {"n": 2}, key="not hexadecimal")
    assert driver.store("last") == {"00ff": {"n": 1}}
    assert letters(driver) == [(UNWRITABLE_KEY, 0)]


def test_should_refuse_a_piped_key_that_the_source_cannot_have(running):
    topology = Topology("app")
    topology.stream("orders", schema="cents BIGINT", key_serde="short").to("copies")
    driver = running(topology)
    with pytest.raises(ValueError, match="key '32768' cannot be written as short"):
        driver.pipe("orders", {"cents": 1}, key="32768")
