"""What a topology compiles to."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tidemark.topology.builder import Topology
from tidemark.topology.durations import duration_ms, format_ms
from tidemark.topology.plan import Aggregate, Column, Filter, Fold, Number, Select, StoreKind, Window
from tidemark.topology.stream import Stream
from tidemark.topology.windows import hopping, tumbling

SCHEMA = (
    "patient_id STRING, beat_ms BIGINT, ibi_ms INT, weight DOUBLE, at TIMESTAMP, place STRUCT<ward: STRING, bed: INT>"
)


def beats(topology: Topology, key: str = "patient_id", timestamp: str = "beat_ms") -> Stream:
    return topology.stream("pulse-events", schema=SCHEMA, key=key, timestamp=timestamp)


def aggregation(topology: Topology):  # type: ignore[no-untyped-def]
    return topology.plan().subtopologies[0].aggregations[0]


def test_nodes_and_stores_should_be_numbered_as_in_kafka_streams() -> None:
    topology = Topology("app")
    beats(topology).filter("ibi_ms > 0").select("ibi_ms").group_by_key().count().to("out")
    (sub,) = topology.plan().subtopologies
    (branch,) = sub.branches
    assert sub.lead.node == "KSTREAM-SOURCE-0000000000"
    assert [step.node for step in branch.steps] == ["KSTREAM-FILTER-0000000001", "KSTREAM-MAPVALUES-0000000002"]
    assert branch.aggregation is not None
    assert branch.aggregation.store.name == "KSTREAM-AGGREGATE-STATE-STORE-0000000003"
    assert branch.aggregation.node == "KSTREAM-AGGREGATE-0000000004"
    assert [node.node for node in sub.nodes] == ["KSTREAM-SINK-0000000005"]


def test_steps_should_keep_the_sql_as_written_and_know_the_new_columns() -> None:
    topology = Topology("app")
    stream = beats(topology).filter(" _offset > 3 AND place.bed = 1 ")
    stream = stream.select("PATIENT_ID", "ibi_ms / 1000 AS ibi_s", "place.ward", far="weight > 80.5")
    stream.to("out")
    (branch,) = topology.plan().subtopologies[0].branches
    assert branch.steps[0] == Filter("KSTREAM-FILTER-0000000001", "_offset > 3 AND place.bed = 1")
    assert isinstance(branch.steps[1], Select)
    assert branch.steps[1].columns == (
        ("patient_id", "PATIENT_ID"),
        ("ibi_s", "ibi_ms / 1000"),
        ("ward", "place.ward"),
        ("far", "weight > 80.5"),
    )
    assert branch.columns == (
        Column("patient_id", "STRING"),
        Column("ibi_s", "DOUBLE"),
        Column("ward", "STRING"),
        Column("far", "BOOLEAN"),
    )


def test_one_stream_continued_twice_should_be_two_branches_of_one_subtopology() -> None:
    topology = Topology("app")
    stream = beats(topology).filter("ibi_ms > 0")
    stream.group_by_key().count(store="all")
    stream.group_by_key().windowed_by(tumbling("1m")).mean("ibi_ms", store="minutes")
    stream.to("raw").to("copy")
    (sub,) = topology.plan().subtopologies
    assert [b.aggregation and b.aggregation.store.name for b in sub.branches] == ["all", "minutes", None]
    assert [b.steps for b in sub.branches] == [sub.branches[0].steps] * 3
    assert sub.sink_topics == ("raw", "copy")


def test_the_same_topic_read_alike_should_be_one_source_and_another_topic_another_subtopology() -> None:
    topology = Topology("app")
    beats(topology).to("a")
    topology.stream("clicks", schema="page STRING").group_by_key().count(store="clicks")
    beats(topology).to("b")
    plan = topology.plan()
    assert [(s.index, s.lead.topic, s.sink_topics) for s in plan.subtopologies] == [
        (0, "pulse-events", ("a", "b")),
        (1, "clicks", ()),
    ]
    assert [store.name for store in plan.stores] == ["clicks"]


def test_a_chain_of_topics_that_does_not_come_back_is_no_loop() -> None:
    topology = Topology("app")
    topology.stream("a", schema="x INT").to("b")
    topology.stream("b", schema="x INT").to("c")
    assert len(topology.plan().subtopologies) == 2


@pytest.mark.parametrize(
    ("key", "compiled", "key_name"),
    [
        ("patient_id", "patient_id", "patient_id"),
        (" `PATIENT_ID` ", "`PATIENT_ID`", "patient_id"),
        ("ibi_ms", "CAST(ibi_ms AS STRING)", "ibi_ms"),
        ("upper(patient_id)", "upper(patient_id)", "key"),
        ("_key", "_key", "key"),
        ("nosuch(patient_id)", "CAST(nosuch(patient_id) AS STRING)", "key"),
    ],
)
def test_a_key_should_be_text_and_a_bare_column_should_name_it(key: str, compiled: str, key_name: str) -> None:
    topology = Topology("app")
    beats(topology, key=key).group_by_key().count()
    assert topology.plan().subtopologies[0].lead.key == compiled
    assert aggregation(topology).key_name == key_name


@pytest.mark.parametrize(
    ("timestamp", "compiled"),
    [
        ("beat_ms", "beat_ms"),
        ("beat_ms + 1", "beat_ms + 1"),
        ("at", "unix_millis(at)"),
        ("timestamp_millis(beat_ms)", "unix_millis(timestamp_millis(beat_ms))"),
        ("to_timestamp(patient_id)", "unix_millis(to_timestamp(patient_id))"),
        ("CAST(ibi_ms AS BIGINT) * 1000", "CAST(ibi_ms AS BIGINT) * 1000"),
    ],
)
def test_a_timestamp_should_become_epoch_milliseconds(timestamp: str, compiled: str) -> None:
    topology = Topology("app")
    beats(topology, timestamp=timestamp).to("out")
    assert topology.plan().subtopologies[0].lead.timestamp == compiled


def test_key_and_timestamp_should_default_to_the_records_own() -> None:
    topology = Topology("app")
    topology.stream("clicks", schema="page STRING").to("out")
    source = topology.plan().subtopologies[0].lead
    assert (source.key, source.timestamp) == ("_key", "_timestamp")


@pytest.mark.parametrize(
    ("sql", "fold", "expression", "number"),
    [
        ("count(*)", Fold.COUNT, None, Number.LONG),
        ("COUNT( 1 )", Fold.COUNT, None, Number.LONG),
        ("count(patient_id)", Fold.COUNT, "patient_id", Number.LONG),
        ("sum(ibi_ms)", Fold.SUM, "CAST(ibi_ms AS BIGINT)", Number.LONG),
        ("max(beat_ms)", Fold.MAX, "beat_ms", Number.LONG),
        ("min(weight)", Fold.MIN, "weight", Number.DOUBLE),
        ("sum(ibi_ms * 1.5)", Fold.SUM, "CAST(ibi_ms * 1.5 AS DOUBLE)", Number.DOUBLE),
        ("sum((ibi_ms + 1) * (2))", Fold.SUM, "CAST((ibi_ms + 1) * (2) AS BIGINT)", Number.LONG),
        ("mean(ibi_ms)", Fold.MEAN, "CAST(ibi_ms AS DOUBLE)", Number.DOUBLE),
        ("avg(weight)", Fold.MEAN, "weight", Number.DOUBLE),
        ("max(CASE WHEN ibi_ms > 1 THEN ibi_ms END)", Fold.MAX, None, Number.LONG),
        ("sum(place.bed)", Fold.SUM, "CAST(place.bed AS BIGINT)", Number.LONG),
    ],
)
def test_an_aggregates_expression_should_yield_the_type_it_is_kept_in(
    sql: str, fold: Fold, expression: str | None, number: Number
) -> None:
    topology = Topology("app")
    beats(topology).group_by_key().aggregate(store="s", result=sql)
    if sql.startswith("max(CASE"):
        expression = "CAST(CASE WHEN ibi_ms > 1 THEN ibi_ms END AS BIGINT)"
    assert aggregation(topology).aggregates == (Aggregate("result", fold, expression, number),)


def test_short_forms_should_compile_as_aggregate_does() -> None:
    topology = Topology("app")
    grouped = beats(topology).group_by_key()
    grouped.count(store="a")
    grouped.sum("ibi_ms", store="b")
    grouped.min("ibi_ms", store="c")
    grouped.max("ibi_ms", store="d")
    grouped.mean("ibi_ms", store="e", name="average")
    grouped.aggregate(
        store="f", count="count(*)", sum="sum(ibi_ms)", min="min(ibi_ms)", max="max(ibi_ms)", average="mean(ibi_ms)"
    )
    *short, long = topology.plan().subtopologies[0].aggregations
    assert tuple(a.aggregates[0] for a in short) == long.aggregates


@pytest.mark.parametrize(
    ("retention", "retention_ms", "segment_ms"),
    [("6h", 21_600_000, 10_800_000), (None, 86_400_000, 43_200_000), (65_001, 65_001, 60_000), ("2m", 120_000, 60_000)],
)
def test_window_stores_should_have_segments_of_half_the_retention(
    retention: str | int | None, retention_ms: int, segment_ms: int
) -> None:
    topology = Topology("app")
    beats(topology).group_by_key().windowed_by(tumbling("60s").grace("5s")).count(store="s", retention=retention)
    store = aggregation(topology).store
    assert (store.kind, store.retention_ms, store.segment_ms) == (StoreKind.WINDOW, retention_ms, segment_ms)
    assert aggregation(topology).window == Window(60_000, 60_000, 5_000)


def test_a_store_without_windows_should_keep_every_key() -> None:
    topology = Topology("app")
    beats(topology).group_by_key().count(store="s")
    store = aggregation(topology).store
    assert (store.kind, store.retention_ms, store.segment_ms) == (StoreKind.KEY_VALUE, None, None)


def test_hopping_windows_should_keep_their_advance() -> None:
    assert hopping("60s", timedelta(seconds=10)).grace(500).plan() == Window(60_000, 10_000, 500)
    assert hopping("60s", "60s") == tumbling("1m")


@pytest.mark.parametrize(
    ("text", "milliseconds", "printed"),
    [
        ("500ms", 500, "500ms"),
        ("60s", 60_000, "1m"),
        (" 90 s ", 90_000, "90s"),
        ("5m", 300_000, "5m"),
        (0, 0, "0s"),
        ("6h", 21_600_000, "6h"),
        ("1d", 86_400_000, "1d"),
        (timedelta(hours=36), 129_600_000, "36h"),
    ],
)
def test_durations(text: str | int | timedelta, milliseconds: int, printed: str) -> None:
    assert duration_ms(text, "size") == milliseconds
    assert format_ms(milliseconds) == printed
    assert duration_ms(printed, "size") == milliseconds


def test_schema_types_should_be_spelled_as_spark_spells_them() -> None:
    topology = Topology("app")
    topology.stream(
        "t", schema="a long, b integer,\n c Short, d array<string>, e timestamp, f decimal(10,2), g real"
    ).to("u")
    assert topology.plan().subtopologies[0].lead.schema == (
        Column("a", "BIGINT"),
        Column("b", "INT"),
        Column("c", "SMALLINT"),
        Column("d", "ARRAY<STRING>"),
        Column("e", "TIMESTAMP"),
        Column("f", "DECIMAL(10, 2)"),
        Column("g", "FLOAT"),
    )


@pytest.mark.parametrize(
    "condition",
    [
        "exists(tags, t -> t = 'x')",
        "nosuch(id)",
        "m['a'].b > 1",
        "id RLIKE '^p[0-9]+'",
        "id IN ('a', 'b') AND NOT n IS NULL",
    ],
)
def test_conditions_that_spark_understands_should_pass(condition: str) -> None:
    topology = Topology("app")
    schema = "id STRING, n INT, tags ARRAY<STRING>, m MAP<STRING, STRUCT<b: INT>>"
    topology.stream("t", schema=schema).filter(condition).to("u")
    assert topology.plan()
