"""The plan that a topology compiles to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlglot import exp

from tidemark.topology.builder import Topology
from tidemark.topology.describe import describe_as_data
from tidemark.topology.drawing.diagram import parts_of
from tidemark.topology.durations import Duration, duration_ms, format_ms
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.plan import (
    Acks,
    Aggregate,
    Column,
    Filter,
    Fold,
    Guarantee,
    JoinKind,
    Map,
    Number,
    Process,
    Reduce,
    Rekey,
    RowSink,
    Select,
    StoreKind,
    StreamStreamJoin,
    SubTopology,
    Suppress,
    TableTableJoin,
    WhenFull,
    Window,
    WindowedKey,
)
from tidemark.topology.sql.expressions import expression_type
from tidemark.topology.stores import Materialized, store
from tidemark.topology.stream import Stream
from tidemark.topology.table import Table, until_window_closes
from tidemark.topology.windows import AnyWindows, hopping, session, sliding, tumbling

SCHEMA = (
    "patient_id STRING, beat_ms BIGINT, ibi_ms INT, weight DOUBLE, at TIMESTAMP, place STRUCT<ward: STRING, bed: INT>"
)


def beats(topology: Topology, key: str = "patient_id", timestamp: str = "beat_ms") -> Stream:
    return topology.stream("pulse-events", schema=SCHEMA, key=key, timestamp=timestamp)


def aggregation(topology: Topology):  # type: ignore[no-untyped-def]
    return topology.plan().subtopologies[0].aggregations[0]


def test_should_number_nodes_and_stores_as_kafka_streams_does() -> None:
    topology = Topology("app")
    beats(topology).filter("ibi_ms > 0").select("ibi_ms").group_by_key().count().to("out")
    (sub,) = topology.plan().subtopologies
    (pipeline,) = sub.pipelines
    assert sub.lead.node == "KSTREAM-SOURCE-0000000000"
    assert [step.node for step in pipeline.steps] == ["KSTREAM-FILTER-0000000001", "KSTREAM-MAPVALUES-0000000002"]
    assert pipeline.aggregation is not None
    assert pipeline.aggregation.store.name == "KSTREAM-AGGREGATE-STATE-STORE-0000000003"
    assert pipeline.aggregation.node == "KSTREAM-AGGREGATE-0000000004"
    assert [node.node for node in sub.nodes] == ["KSTREAM-SINK-0000000005"]


def test_should_keep_the_sql_of_steps_as_written_and_know_the_new_columns() -> None:
    topology = Topology("app")
    stream = beats(topology).filter(" _offset > 3 AND place.bed = 1 ")
    stream = stream.select("PATIENT_ID", "ibi_ms / 1000 AS ibi_s", "place.ward", far="weight > 80.5")
    stream.to("out")
    (pipeline,) = topology.plan().subtopologies[0].pipelines
    assert pipeline.steps[0] == Filter("KSTREAM-FILTER-0000000001", "_offset > 3 AND place.bed = 1")
    assert isinstance(pipeline.steps[1], Select)
    assert pipeline.steps[1].columns == (
        ("patient_id", "PATIENT_ID"),
        ("ibi_s", "ibi_ms / 1000"),
        ("ward", "place.ward"),
        ("far", "weight > 80.5"),
    )
    assert pipeline.columns == (
        Column("patient_id", "STRING"),
        Column("ibi_s", "DOUBLE"),
        Column("ward", "STRING"),
        Column("far", "BOOLEAN"),
    )


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("customer", "STRUCT<firstName: STRING, pets: ARRAY<STRUCT<petName: STRING>>>"),
        ("coalesce(customer, customer)", "STRUCT<firstName: STRING, pets: ARRAY<STRUCT<petName: STRING>>>"),
        ("customer.firstName", "STRING"),
        ("customer.firstname", "STRING"),
        ("CUSTOMER.`FIRSTNAME`", "STRING"),
        ("customer.pets[0]", "STRUCT<petName: STRING>"),
        ("customer.Pets[0]", "STRUCT<petName: STRING>"),
        ("customer.pets[0].PETNAME", "STRING"),
        ("visits", "MAP<STRING, STRUCT<atMs: BIGINT>>"),
    ],
)
def test_should_keep_the_case_of_the_names_of_nested_fields(expression: str, kind: str) -> None:
    customer = "customer STRUCT<firstName: STRING, pets: ARRAY<STRUCT<petName: STRING>>>"
    schema = f"{customer}, visits MAP<STRING, STRUCT<atMs: BIGINT>>"
    selected = Topology("app").stream("people", schema=schema).select(x=expression)
    assert selected.columns == (Column("x", kind),)


def test_should_parse_only_the_types_of_columns_that_an_expression_names(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [Column(f"c{n}", "STRUCT<x: INT>") for n in range(9)]
    parsed = []
    build = exp.DataType.build
    monkeypatch.setattr(exp.DataType, "build", lambda text, **how: parsed.append(text) or build(text, **how))
    assert expression_type("C3.x + c5.X", columns, "test") == "INT"
    assert parsed.count("STRUCT<x: INT>") == 2


def test_should_plan_two_pipelines_of_one_subtopology_when_a_stream_continues_twice() -> None:
    topology = Topology("app")
    stream = beats(topology).filter("ibi_ms > 0")
    stream.group_by_key().count(store="all")
    stream.group_by_key().windowed_by(tumbling("1m")).mean("ibi_ms", store="minutes")
    stream.to("raw").to("copy")
    (sub,) = topology.plan().subtopologies
    assert [b.aggregation and b.aggregation.store.name for b in sub.pipelines] == ["all", "minutes", None]
    assert [b.steps for b in sub.pipelines] == [sub.pipelines[0].steps] * 3
    assert sub.sink_topics == ("raw", "copy")


def test_should_share_a_source_for_the_same_topic_and_use_another_subtopology_for_another_topic() -> None:
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


def test_should_accept_a_chain_of_topics_that_does_not_return() -> None:
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
def test_should_make_a_key_text_and_name_it_after_a_bare_column(key: str, compiled: str, key_name: str) -> None:
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
def test_should_convert_a_timestamp_to_epoch_milliseconds(timestamp: str, compiled: str) -> None:
    topology = Topology("app")
    beats(topology, timestamp=timestamp).to("out")
    assert topology.plan().subtopologies[0].lead.timestamp == compiled


def test_should_default_key_and_timestamp_to_those_of_the_record() -> None:
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
def test_should_cast_an_aggregates_expression_to_the_stored_type(
    sql: str, fold: Fold, expression: str | None, number: Number
) -> None:
    topology = Topology("app")
    beats(topology).group_by_key().aggregate(store="s", result=sql)
    if sql.startswith("max(CASE"):
        expression = "CAST(CASE WHEN ibi_ms > 1 THEN ibi_ms END AS BIGINT)"
    assert aggregation(topology).aggregates == (Aggregate("result", fold, expression, number),)


def test_should_compile_short_forms_as_aggregate_does() -> None:
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
def test_should_give_window_stores_segments_of_half_the_retention(
    retention: str | int | None, retention_ms: int, segment_ms: int
) -> None:
    topology = Topology("app")
    beats(topology).group_by_key().windowed_by(tumbling("60s").grace("5s")).count(store="s", retention=retention)
    store = aggregation(topology).store
    assert (store.kind, store.retention_ms, store.segment_ms) == (StoreKind.WINDOW, retention_ms, segment_ms)
    assert aggregation(topology).window == Window(60_000, 60_000, 5_000)


def test_should_keep_every_key_in_a_store_without_windows() -> None:
    topology = Topology("app")
    beats(topology).group_by_key().count(store="s")
    store = aggregation(topology).store
    assert (store.kind, store.retention_ms, store.segment_ms) == (StoreKind.KEY_VALUE, None, None)


def test_should_keep_the_advance_of_hopping_windows() -> None:
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
def test_should_parse_and_print_durations(text: str | int | timedelta, milliseconds: int, printed: str) -> None:
    assert duration_ms(text, "size") == milliseconds
    assert format_ms(milliseconds) == printed
    assert duration_ms(printed, "size") == milliseconds


def test_should_spell_schema_types_as_spark_does() -> None:
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
        "id = 'now'",
        "id <=> ('today') OR id IN ('now', 'later') OR id BETWEEN 'now' AND 'today'",
        "id LIKE 'now%' OR id LIKE ANY ('today%', 'a') OR contains(id, 'now')",
        "CAST(m['a'].c AS STRING) = 'now'",
        "lower('NOW') || 'now' = concat('today ', id)",
        "CASE id WHEN 'now' THEN 'today' ELSE coalesce(id, 'now') END = if(n > 1, 'now', nullif(id, 'now'))",
        "id = '12:30' OR at = to_timestamp('12:30', 'HH:mm') OR date_format(at, 'HH:mm') = '12:30'",
        "exists(tags, t -> CAST(upper(t) AS DATE) > at OR CAST(t AS STRING) = 'now')",
        "at > '2024-01-15 12:30:00' OR at > at - INTERVAL '12:30' HOUR TO MINUTE OR id = 'nowhere'",
        "nosuch('now')",
        "texts['now'] = 'today' OR texts['today_total'] = 'x' OR element_at(texts, 'now') = 'now'",
        "coalesce(texts['x'], 'today') = CASE WHEN n > 1 THEN 'today' ELSE texts['a'] END",
        "array_contains(array('now-playing', 'later'), id) OR array_contains(array('now', 'later'), id)",
        "map('state', 'now playing')['state'] = struct('now').col1",
        "to_json(named_struct('state', 'now')) = format_string('Today: %s', id)",
        "split_part(id, 'now', 1) = 'x' OR split_part(id, ',', 1) = 'now' OR decode(id, 'now', 1, 2) = 1",
        "array_contains(array_remove(tags, 'now'), 'x') OR sort_array(tags)[0] = 'now'",
        "contains(at, 'now') OR at LIKE '12:%'",
        "day = CAST('2024-01-15' AS STRING) OR day = upper(('2024-01-15')) OR at > concat('2024-01-15', ' 10:00')",
        "to_date(substring('2024-01-15T10', 1, 10)) = day OR at > '2024-01-15' || ' 10:00'",
        "trunc(day, upper('mm')) = next_day(day, upper('mo')) OR date_part(upper('year'), day) = n",
        "to_date(id, concat('yyyy', '-MM')) = day OR to_timestamp_ltz('12:30', 'HH:mm') > at",
        "try_to_timestamp('12:30', 'HH:mm') > at OR unix_timestamp('12:30', 'HH:mm') > n",
        "convert_timezone(concat('U', 'TC'), lower('UTC'), at) > at",
        *(
            f"at > '{text}'"
            for text in ("now playing", "now_playing", "now-1", "now UTC", "now+02:00", "today_total", "Today: %s")
        ),
        *(f"at > '{text}'" for text in ("today x", "today 5", "todayUTC", "todayZ", "today-x", "epoch")),
    ],
)
def test_should_accept_conditions_that_spark_understands(condition: str) -> None:
    topology = Topology("app")
    schema = "id STRING, n INT, tags ARRAY<STRING>, m MAP<STRING, STRUCT<b: INT, c: STRING>>, texts MAP<STRING, STRING>"
    schema += ", at TIMESTAMP, day DATE"
    topology.stream("t", schema=schema).filter(condition).to("u")
    assert topology.plan()


def temperatures(topology: Topology) -> Stream:
    schema = "patient_id STRING, measured_ms BIGINT, celsius DOUBLE"
    return topology.stream("temperature-events", schema=schema, key="patient_id", timestamp="measured_ms")


def flat_beats(topology: Topology) -> Stream:
    return beats(topology).select("patient_id", "ibi_ms")


def patients(topology: Topology) -> Table:
    return topology.table("patients", schema="patient_id STRING, ward STRING", key="patient_id", store="patients")


def kinds(sub: SubTopology) -> list[str]:
    return [type(node).__name__ for node in sub.nodes]


def test_should_join_sources_in_one_subtopology_led_by_the_first_source() -> None:
    topology = Topology("app")
    table, other, pulse = patients(topology), temperatures(topology), flat_beats(topology)
    pulse.join(other, within="1m", grace="10s", name="both").left_join(table).to("out")
    topology.stream("alone", schema="x INT").to("copy")
    first, second = topology.plan().subtopologies
    assert first.lead.topic == "patients"
    assert first.source_topics == ("patients", "temperature-events", "pulse-events")
    assert kinds(first) == ["TableSource", "StreamStreamJoin", "StreamTableJoin", "RowSink"]
    assert [(b.source, b.enters) for b in first.pipelines] == [(0, True), (2, True), (1, True)]
    assert second.source_topics == ("alone",)


def test_should_keep_both_sides_of_a_stream_join_for_twice_its_window_and_grace() -> None:
    topology = Topology("app")
    flat_beats(topology).left_join(temperatures(topology), within="1m", grace="10s", name="both").to("out")
    (sub,) = topology.plan().subtopologies
    join = sub.nodes[0]
    assert isinstance(join, StreamStreamJoin)
    assert (join.kind, join.before_ms, join.after_ms, join.grace_ms) == (JoinKind.LEFT, 60_000, 60_000, 10_000)
    assert [(s.name, s.kind, s.retention_ms) for s in sub.stores] == [
        ("both-this-store", StoreKind.WINDOW, 130_000),
        ("both-other-store", StoreKind.WINDOW, 130_000),
        ("both-outer-store", StoreKind.KEY_VALUE, None),
    ]
    assert [column.name for column in join.columns] == ["patient_id", "ibi_ms", "measured_ms", "celsius"]


@pytest.mark.parametrize(
    ("times", "before_ms", "after_ms"),
    [
        ({"within": "1m", "before": "2m"}, 120_000, 60_000),
        ({"within": "1m", "after": 0}, 60_000, 0),
        ({"before": "0s", "after": "5m"}, 0, 300_000),
    ],
)
def test_should_plan_a_join_that_reaches_further_on_one_side(
    times: dict[str, Duration], before_ms: int, after_ms: int
) -> None:
    topology = Topology("app")
    flat_beats(topology).join(temperatures(topology), **times, grace="10s", name="both").to("out")
    (sub,) = topology.plan().subtopologies
    join = sub.nodes[0]
    assert isinstance(join, StreamStreamJoin)
    assert (join.before_ms, join.after_ms, join.grace_ms) == (before_ms, after_ms, 10_000)
    assert {store.retention_ms for store in sub.stores} == {before_ms + after_ms + 10_000}


def test_should_keep_no_unmatched_rows_for_an_inner_join() -> None:
    topology = Topology("app")
    flat_beats(topology).join(temperatures(topology), within="1m", name="both").to("out")
    assert [store.name for store in topology.plan().stores] == ["both-this-store", "both-other-store"]


def test_should_turn_an_aggregation_into_a_table_of_rows_for_a_join() -> None:
    topology = Topology("app")
    counts = beats(topology).group_by_key().count(name="n", store="counts")
    counts.join(patients(topology)).to("out")
    (sub,) = topology.plan().subtopologies
    assert kinds(sub) == ["TableSource", "TableSource", "TableTableJoin", "RowSink"]
    assert [store.name for store in sub.stores][:1] == ["counts"]
    join = sub.nodes[2]
    assert isinstance(join, TableTableJoin)
    assert [column.name for column in join.left_store.columns] == ["patient_id", "n"]
    assert join.right_store.name == "patients"


def test_should_join_a_table_with_a_stream_when_both_keys_have_another_type() -> None:
    topology = Topology("app")
    beds = topology.stream("beds", schema="bed INT, used BOOLEAN", key="bed")
    beds.join(topology.table("bed-names", schema="bed INT, name STRING", key="bed")).to("out")
    assert topology.plan().subtopologies[0].source_topics == ("beds", "bed-names")


def test_should_split_the_subtopology_at_a_repartition() -> None:
    topology = Topology("app")
    beats(topology).select("patient_id", "ibi_ms", "place.ward").group_by("ward", name="by-ward").count(store="wards")
    first, second = topology.plan().subtopologies
    (pipeline,) = first.pipelines
    (sink,) = pipeline.sinks
    assert isinstance(pipeline.steps[-1], Rekey)
    assert pipeline.steps[-1].key == "ward"
    assert (sink.topic, sink.is_repartition) == ("app-by-ward-repartition", True)
    assert second.lead.topic == "app-by-ward-repartition"
    assert (second.lead.key, second.lead.timestamp) == ("_key", "_timestamp")
    assert second.lead.schema == pipeline.columns
    assert second.aggregations[0].key_name == "ward"
    assert topology.plan().repartition_topics == ("app-by-ward-repartition",)


def test_should_rekey_in_the_task_loop_when_a_repartition_follows_a_stateful_node() -> None:
    topology = Topology("app")
    counts = beats(topology).group_by_key().count(name="n", store="counts")
    counts.to_stream().repartition("n", "by-count").group_by_key().aggregate(patients="count(*)", store="wards")
    first, second = topology.plan().subtopologies
    rekey, sink = first.nodes
    assert isinstance(rekey, Map)
    assert rekey.key == "CAST(n AS STRING)"
    assert isinstance(sink, RowSink)
    assert sink.sink.is_repartition
    assert [store.name for store in second.stores] == ["wards"]


def test_should_share_a_topic_between_equal_repartitions_only_when_optimised() -> None:
    def topics(*, optimised: bool) -> tuple[str, ...]:
        topology = Topology("app", optimised=optimised)
        stream = beats(topology)
        stream.group_by("weight").count(store="a")
        stream.group_by("weight").sum("ibi_ms", store="b")
        stream.group_by("concat(patient_id, 'a')").count(store="c")
        stream.group_by("concat(patient_id, 'A')").count(store="d")
        return topology.plan().repartition_topics

    assert len(topics(optimised=False)) == 4
    assert len(topics(optimised=True)) == 3


@pytest.mark.parametrize(
    ("optimised", "kept", "source_topic"),
    [
        (True, Materialized("patients"), "patients"),
        (True, Materialized("patients", in_memory=True), "patients"),
        (False, Materialized("patients"), None),
        (True, Materialized("patients", ttl="1h"), None),
        (True, Materialized("patients", max_entries=9), None),
        (True, Materialized("patients", logging=False), None),
    ],
)
def test_should_use_a_tables_topic_as_its_changelog_when_optimised_and_nothing_else_deletes(
    optimised: bool, kept: Materialized, source_topic: str | None
) -> None:
    topology = Topology("app", optimised=optimised)
    topology.table("patients", schema="patient_id STRING, ward STRING", store=kept)
    assert topology.plan().stores[0].source_topic == source_topic


def test_should_add_an_order_store_to_stores_that_forget() -> None:
    topology = Topology("app")
    topology.table("a", schema="x INT", store=Materialized("a", ttl="1h", in_memory=True))
    declared = store("seen", "at_ms BIGINT", max_entries=100)
    beats(topology).select("ibi_ms").process("a.b:C", emits="n INT", stores=[declared]).to("out")
    assert [(s.name, s.ttl_ms, s.max_entries, s.in_memory) for s in topology.plan().stores] == [
        ("a", 3_600_000, None, True),
        ("a-order", None, None, True),
        ("seen", None, 100, False),
        ("seen-order", None, None, False),
    ]


def test_should_configure_a_store_as_materialized_says() -> None:
    topology = Topology("app")
    kept = Materialized("s", profile="aggressive_compaction", topic_config={"b.ms": "1", "a.ms": "2"}, custom="m:C")
    topology.table("t", schema="x INT", store=kept)
    (spec,) = topology.plan().stores
    assert (spec.profile, spec.topic_config) == ("aggressive_compaction", (("a.ms", "2"), ("b.ms", "1")))
    assert (spec.custom, spec.is_logged, spec.in_memory) == ("m:C", True, False)


@pytest.mark.parametrize(
    ("windows", "kind", "grace_ms"),
    [
        (tumbling("1m").grace("5s"), StoreKind.WINDOW, 5_000),
        (session("30s").grace("5s"), StoreKind.SESSION, 35_000),
        (sliding("30s").grace("5s"), StoreKind.WINDOW, 5_000),
    ],
)
def test_should_wait_for_grace_and_session_gap_in_suppress(windows: AnyWindows, kind: StoreKind, grace_ms: int) -> None:
    topology = Topology("app")
    until = until_window_closes(max_records=10, when_full="emit_early_when_full")
    beats(topology).group_by_key().windowed_by(windows).count(store="s").suppress(until, store="buffer").to("out")
    (sub,) = topology.plan().subtopologies
    suppress = sub.nodes[0]
    assert isinstance(suppress, Suppress)
    assert (suppress.grace_ms, suppress.max_records, suppress.when_full) == (grace_ms, 10, WhenFull.EMIT_EARLY)
    assert [(s.name, s.kind) for s in sub.stores] == [("s", kind), ("buffer", StoreKind.KEY_VALUE)]


def test_should_emit_key_window_and_remaining_columns_from_an_aggregate_function() -> None:
    topology = Topology("app")
    windowed = beats(topology).select("patient_id", "ibi_ms").group_by_key().windowed_by(tumbling("1m"))
    windowed.aggregate(initializer="a.b:zero", aggregator="a.b:add", emits="n INT", store="s").to("out")
    (sub,) = topology.plan().subtopologies
    fold = sub.nodes[0]
    assert isinstance(fold, Reduce)
    assert [(c.name, c.type) for c in fold.columns] == [
        ("patient_id", "STRING"),
        ("window_start", "BIGINT"),
        ("window_end", "BIGINT"),
        ("n", "INT"),
    ]
    assert [(s.kind, len(s.columns)) for s in sub.stores] == [(StoreKind.WINDOW, 1)]


def test_should_accept_a_column_with_the_keys_name_if_it_is_the_key() -> None:
    topology = Topology("app")
    named = topology.stream("named", schema="key STRING, v INT", key="key")
    renamed = topology.stream("renamed", schema="w INT").select("_key AS key", "w")
    again = named.filter("v > 0").select("`key`", "v").repartition("key", "again").select("key", "v AS u")
    table = topology.table("table", schema="key STRING, x INT", key="key")
    for stream in (named, renamed, again, named.join(table), again.to_table().to_stream().filter("u > 1")):
        columns = stream.group_by_key().reduce("a.b:c").columns
        assert [c.name for c in columns].count("key") == 1
    assert [c.name for c in named.join(renamed, within="1s").columns] == ["key", "v", "w"]


def test_should_order_nodes_after_a_stateful_one_as_written() -> None:
    topology = Topology("app")
    table = beats(topology).group_by_key().count(name="n", store="s")
    changes = table.to_stream()
    large = changes.filter("n > 10")
    changes.select("patient_id", "n * 2 AS twice").to("twice")
    large.to("large", partitioner="sticky")
    (sub,) = topology.plan().subtopologies
    assert [(node.node.split("-")[1], node.inputs[0].split("-")[1]) for node in sub.nodes] == [
        ("FILTER", "AGGREGATE"),
        ("MAPVALUES", "AGGREGATE"),
        ("SINK", "MAPVALUES"),
        ("SINK", "FILTER"),
    ]
    assert [(sink.topic, sink.partitioner) for sink in sub.sinks] == [("twice", None), ("large", "sticky")]


def test_should_accept_a_topic_that_is_written_and_joined_downstream() -> None:
    topology = Topology("app")
    beats(topology).select("patient_id", "beat_ms").to("copies")
    copies = topology.stream("copies", schema="patient_id STRING, beat_ms BIGINT", key="patient_id")
    temperatures(topology).join(copies, within="1m").to("out")
    flat_beats(topology).join(temperatures(topology), within="1m", name="both").to("both")
    assert len(topology.plan().subtopologies) == 1


def test_should_plan_and_describe_the_tolerated_broker_failures() -> None:
    topology = Topology("app", tolerated_broker_failures=1)
    topology.stream("in", schema="k STRING", key="k").group_by_key().count(store="n")
    assert topology.plan().tolerated_broker_failures == 1
    assert "exactly_once, acks=all, survives the loss of 1 broker)" in topology.describe()
    assert Topology("app").tolerated_broker_failures == 0


@pytest.mark.parametrize(
    ("standbys", "described"), [(0, "acks=all)"), (1, "acks=all, 1 standby)"), (2, "acks=all, 2 standbys)")]
)
def test_should_plan_and_describe_the_number_of_standbys(standbys: int, described: str) -> None:
    topology = Topology("app", num_standby_replicas=standbys)
    topology.stream("in", schema="k STRING", key="k").group_by_key().count(store="n")
    assert topology.num_standby_replicas == topology.plan().num_standby_replicas == standbys
    assert described in topology.describe()
    assert describe_as_data(topology.plan())["num_standby_replicas"] == standbys


@pytest.mark.parametrize("acks", list(Acks))
def test_should_plan_and_describe_the_acks_of_outputs(acks: Acks) -> None:
    topology = Topology("app", guarantee="at_least_once", acks=acks.value)
    beats(topology).to("out")
    assert topology.plan().acks is acks
    assert f"at_least_once, acks={acks.value})" in topology.describe()
    assert Topology("app").acks is Acks.ALL


def test_should_treat_only_topics_written_for_others_as_outputs() -> None:
    topology = Topology("app", guarantee="at_least_once", acks="1")
    stream = beats(topology)
    stream.to("out")
    stream.select("patient_id", "beat_ms").to("copies")
    copies = topology.stream("copies", schema="patient_id STRING, beat_ms BIGINT", key="patient_id")
    copies.group_by("beat_ms", "by-beat").count(store="n").to("out")
    assert topology.plan().output_topics == ("out",)


def test_should_order_acks_from_the_weakest() -> None:
    weaker = {(one.value, other.value) for one in Acks for other in Acks if one.is_weaker_than(other)}
    assert weaker == {("0", "1"), ("0", "all"), ("1", "all")}


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_should_plan_the_guarantee(guarantee: Guarantee) -> None:
    topology = Topology("app", guarantee=guarantee.value)
    beats(topology).to("out")
    assert topology.plan().guarantee is guarantee
    assert Topology("app").guarantee is Guarantee.EXACTLY_ONCE


def test_should_let_a_processor_feed_state_after_a_repartition_or_when_it_keeps_the_key() -> None:
    topology = Topology("app")
    stream = beats(topology).select("ibi_ms")
    stream.process("a.b:C", emits="n INT", keeps_key=True).to_table("kept")
    stream.process("a.b:C", emits="n INT").filter("n > 0").repartition(name="forwarded").to_table("moved")
    first, second = topology.plan().subtopologies
    assert [node.keeps_key for node in first.nodes if isinstance(node, Process)] == [True, False]
    (sent,) = [n for n in first.nodes if isinstance(n, RowSink)]
    (rekeyed,) = [n for n in first.nodes if n.node == sent.inputs[0]]
    assert isinstance(rekeyed, Map)
    assert rekeyed.key == "_key"
    assert second.source_topics == ("app-forwarded-repartition",) == (sent.sink.topic,)
    assert [store.name for store in second.stores] == ["moved"]


def test_should_let_a_processor_be_the_last_node_when_it_keeps_stores_or_forwards_nothing() -> None:
    topology = Topology("app")
    stream = beats(topology).select("ibi_ms")
    stream.process("a.b:C", emits="n INT", stores=[store("kept", "n INT")])
    stream.process("a.b:C", stores=[store("only", "n INT")])
    stream.process("a.b:Peek")
    plan = topology.plan()
    processors = [node for node in plan.subtopologies[0].nodes if isinstance(node, Process)]
    assert [len(node.columns) for node in processors] == [1, 0, 0]
    assert [store.name for store in plan.stores] == ["kept", "only"]
    assert plan.output_topics == ()
    for node in processors:
        assert f"Processor: {node.node} (stores: [{', '.join(s.name for s in node.stores)}])" in topology.describe()
    drawn = parts_of("app", plan.subtopologies[0])
    assert {node.node for node in processors} <= drawn.nodes.keys()
    assert [boxes[0].name for boxes in drawn.stores.values() if boxes] == ["kept", "only"]


def test_should_not_accept_keeping_the_key_when_an_earlier_processor_changed_it() -> None:
    stream = beats(Topology("app")).select("ibi_ms").process("a.b:C", emits="n INT")
    assert stream.process("a.b:D", emits="n INT", keeps_key=True).rekeyed_by == stream.node
    assert stream.repartition("n").rekeyed_by is None


def test_should_let_every_later_expression_see_what_identifies_a_deletion() -> None:
    topology = Topology("app")
    grouped = beats(topology).select("patient_id", "ibi_ms").group_by_key()
    sessions = grouped.windowed_by(session("60s")).count().to_stream()
    counts = grouped.windowed_by(tumbling("60s")).count().to_stream()
    expected = {}
    for stream, columns in (
        (sessions.select("patient_id", "window_start", "count"), ("patient_id", "window_start")),
        (sessions.select("window_end", "count AS window_start"), ("window_end",)),
        (counts.select("window_start", "window_end + 1 AS window_end"), ("window_start",)),
        (sessions.select("count"), ()),
    ):
        twice = stream.filter("count IS NULL" if "count" in [c.name for c in stream.columns] else "window_start > 0")
        again = twice.filter("true")
        expected |= {stream.node: columns, twice.node: columns, again.node: columns}
        again.to(f"out-{again.node}")
    (sub,) = topology.plan().subtopologies
    assert {node.node: node.identifying_columns for node in sub.nodes if isinstance(node, Map)} == expected


def test_should_write_windowed_keys_into_a_sink_on_request() -> None:
    topology = Topology("app")
    grouped = beats(topology).select("ibi_ms").group_by_key()
    counts = grouped.windowed_by(tumbling("60s")).count().to("plain").to("updates", windowed_key=True)
    finals = counts.suppress(until_window_closes()).to_stream()
    finals.filter("count > 1").select("window_start", "count * 2 AS twice").to("finals", windowed_key=True)
    grouped.windowed_by(session("60s")).count().to("sessions", windowed_key=True)
    grouped.windowed_by(sliding("60s")).count().to("sliding", windowed_key=True)
    patients = topology.table("patients", schema="patient_id STRING, ward STRING", key="patient_id")
    finals.left_join(patients).to("joined", windowed_key=True)
    (sub,) = topology.plan().subtopologies
    assert {sink.topic: sink.windowed_key for sink in sub.sinks} == {
        "plain": None,
        "updates": WindowedKey.TIME,
        "finals": WindowedKey.TIME,
        "sessions": WindowedKey.SESSION,
        "sliding": WindowedKey.TIME,
        "joined": WindowedKey.TIME,
    }


KEY_OF = "tests.support.processors:KeyOf"
RELYING = {
    "aggregation": lambda t: beats(t).group_by_key().count(store="c").to("out"),
    "windows": lambda t: beats(t).group_by_key().windowed_by(tumbling("60s")).count(store="c").to("out"),
    "reduce": lambda t: flat_beats(t).group_by_key().reduce("m:f", store="r").to("out"),
    "table": lambda t: flat_beats(t).to_table("last").to("out"),
    "join with a table": lambda t: flat_beats(t).left_join(patients(t)).to("out"),
    "join with a stream": lambda t: flat_beats(t).outer_join(unkeyed(t), within="5s", name="j").to("out"),
    "processor with a store": lambda t: (
        flat_beats(t).process(KEY_OF, emits="was STRING", stores=[store("seen", "n INT")]).to("out")
    ),
    "processor that keeps keys": lambda t: (
        flat_beats(t).process(KEY_OF, emits="was STRING", keeps_key=True).filter("was > ''").to_table("l").to("out")
    ),
    "one of two": lambda t: [beats(t).to("copies"), flat_beats(t).to_table("last").to("out")],
}
NOT_RELYING = {
    "sink": lambda t: beats(t).filter("ibi_ms > 0").select("ibi_ms").to("out"),
    "another key": lambda t: beats(t).group_by("ibi_ms", "by-ibi").count(store="c").to("out"),
    "its own key through a topic": lambda t: flat_beats(t).repartition("patient_id", "r").to_table("last").to("out"),
    "processor": lambda t: flat_beats(t).process(KEY_OF, emits="was STRING").to("out"),
    "processor and another key": lambda t: (
        flat_beats(t).process(KEY_OF, emits="was STRING").repartition("was", "r").to_table("last").to("out")
    ),
    "kafka's own key": lambda t: beats(t, key="_key").group_by_key().count(store="c").to("out"),
}


def unkeyed(topology: Topology) -> Stream:
    return topology.stream("others", schema="n INT")


def checked_sources(build: Callable[[Topology], object]) -> set[str]:
    topology = Topology("app")
    build(topology)
    return {source.topic for sub in topology.plan().subtopologies for source in sub.sources if source.checks_key}


@pytest.mark.parametrize("build", RELYING.values(), ids=RELYING)
def test_should_compare_keys_when_state_is_kept_or_looked_up_by_key(
    build: Callable[[Topology], object],
) -> None:
    assert checked_sources(build) == {"pulse-events"}


@pytest.mark.parametrize("build", NOT_RELYING.values(), ids=NOT_RELYING)
def test_should_not_compare_keys_when_records_are_only_forwarded(build: Callable[[Topology], object]) -> None:
    assert checked_sources(build) == set()


def test_should_plan_the_form_of_keys_and_give_them_to_the_tasks_that_own_their_text() -> None:
    topology = Topology("app")
    orders = topology.stream("orders", schema="cents BIGINT", key_serde="long")
    assert topology.stream("orders", schema="cents BIGINT", key_serde="long").node == orders.node
    orders.filter("cents > 0").select("cents").to("copies", key_serde="bytes")
    orders.process(KEY_OF, emits="was STRING", keeps_key=True).to("keys")
    counts = orders.select("cents AS c").repartition(name="by-key").group_by_key().count(store="n")
    counts.to("counts", key_serde="long").to("texts")
    orders.group_by("cents", "by-cents").count(store="m")
    first, counted, regrouped = topology.plan().subtopologies
    assert (first.lead.key_serde, counted.lead.key_serde, regrouped.lead.key_serde) == (
        KeySerde.LONG,
        KeySerde.STRING,
        KeySerde.STRING,
    )
    assert (first.lead.key, first.lead.checks_key, first.stores) == ("_key", False, ())
    (rekey,) = [step for pipeline in first.pipelines for step in pipeline.steps if isinstance(step, Rekey)][:1]
    assert rekey.key == "_key"
    assert {sink.topic: sink.key_serde for sub in (first, counted) for sink in sub.sinks} == {
        "copies": KeySerde.BYTES,
        "keys": KeySerde.STRING,
        "app-by-key-repartition": KeySerde.STRING,
        "app-by-cents-repartition": KeySerde.STRING,
        "counts": KeySerde.LONG,
        "texts": KeySerde.STRING,
    }


def test_should_read_a_topic_again_in_the_form_in_which_it_writes_its_keys() -> None:
    topology = Topology("app")
    beats(topology).select("ibi_ms").to("copies", key_serde="integer")
    topology.stream("copies", schema="ibi_ms INT", key_serde="integer").repartition(name="r").to_table("last").to("out")
    assert [s.lead.key_serde for s in topology.plan().subtopologies] == [
        KeySerde.STRING,
        KeySerde.INTEGER,
        KeySerde.STRING,
    ]
