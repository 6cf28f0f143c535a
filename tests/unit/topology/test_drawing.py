"""The picture of a plan: everything is drawn once, nothing overlaps, and every word has room."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from itertools import combinations, pairwise

import pytest

from tidemark.topology.drawing.diagram import BoxKind, broken, parts_of
from tidemark.topology.drawing.layering import Item, Line, arrange, longest_paths
from tidemark.topology.drawing.layout import Drawing, Placed, draw, picture
from tidemark.topology.plan import (
    Aggregate,
    Aggregation,
    Column,
    Filter,
    Fold,
    Guarantee,
    JoinKind,
    Map,
    Number,
    Pipeline,
    Process,
    Reduce,
    Rekey,
    RowSink,
    Select,
    Sink,
    Source,
    StoreKind,
    StoreSpec,
    StreamStreamJoin,
    StreamTableJoin,
    SubTopology,
    Suppress,
    TableSource,
    TaskNode,
    TopologyPlan,
    WhenFull,
    Window,
)

SVG = "{http://www.w3.org/2000/svg}"
COLUMNS = (Column("id", "STRING"), Column("v", "INT"))
COUNT = Aggregate("pulses", Fold.COUNT, None, Number.LONG)
MEAN = Aggregate("mean_ibi", Fold.MEAN, "CAST(ibi_ms AS DOUBLE)", Number.DOUBLE)
MINUTE = Window(60_000, 60_000, 5_000)


def source(number: int, topic: str, is_table: bool = False) -> Source:
    return Source(f"KSTREAM-SOURCE-{number:010d}", topic, COLUMNS, "id", "ts", is_table)


def window_store(name: str, **more: object) -> StoreSpec:
    return StoreSpec(name, StoreKind.WINDOW, 21_600_000, 10_800_000, **more)  # type: ignore[arg-type]


def row_store(name: str, **more: object) -> StoreSpec:
    return StoreSpec(name, StoreKind.KEY_VALUE, None, None, columns=COLUMNS, **more)  # type: ignore[arg-type]


def counting(number: int, store: StoreSpec, *aggregates: Aggregate) -> Aggregation:
    return Aggregation(f"KSTREAM-AGGREGATE-{number:010d}", store, MINUTE, "id", aggregates or (COUNT,), COLUMNS)


def row_sink(number: int, before: str, topic: str, is_repartition: bool = False) -> RowSink:
    name = f"KSTREAM-SINK-{number:010d}"
    return RowSink(name, (before,), COLUMNS, (), Sink(name, topic, is_repartition=is_repartition))


def plan(*subtopologies: SubTopology) -> TopologyPlan:
    return TopologyPlan("patient-monitoring", "1", Guarantee.EXACTLY_ONCE, subtopologies)


def small() -> TopologyPlan:
    """One source, one count, one sink."""
    count = counting(2, window_store("pulse-counts"))
    pipeline = Pipeline(0, count.node, (), COLUMNS, count, ())
    return plan(SubTopology(0, (source(0, "pulse-events"),), (pipeline,), (row_sink(3, count.node, "pulse-counts"),)))


def large() -> TopologyPlan:
    """More than twenty nodes in three sub-topologies, with a repartition topic, joins, and long names."""
    hidden = Filter("KSTREAM-FILTER-0000000001", "ibi_ms BETWEEN 250 AND 3000 AND recording <> 'calibration'")
    chosen = Select("KSTREAM-MAPVALUES-0000000002", (("patient_id", "patient_id"), ("ibi_ms", "ibi_ms")))
    rekey = Rekey("KSTREAM-KEY-SELECT-0000000003", "ward")
    count = counting(6, window_store("pulse-counts"), COUNT, MEAN)
    suppress = Suppress(
        "KTABLE-SUPPRESS-0000000007", (count.node,), COLUMNS, (window_store("final-pulse-counts"),),
        5_000, None, None, WhenFull.SHUT_DOWN,
    )  # fmt: skip
    alarms = Process(
        "KSTREAM-PROCESSOR-0000000008", (suppress.node,), COLUMNS,
        (row_store("alarm-state", ttl_ms=86_400_000), row_store("alarm-timers", in_memory=True, is_logged=False)),
        "wards.alarms:AlarmProcessor", False,
    )  # fmt: skip
    first = SubTopology(
        0,
        (source(0, "pulse-events"),),
        (
            Pipeline(0, count.node, (hidden, chosen), COLUMNS, count, ()),
            Pipeline(
                0, rekey.node, (hidden, rekey), COLUMNS, None,
                (Sink("KSTREAM-SINK-0000000004", "patient-monitoring-by-ward-repartition", is_repartition=True),),
            ),
            Pipeline(0, hidden.node, (hidden,), COLUMNS, None, (Sink("KSTREAM-SINK-0000000005", "clean-pulses"),)),
        ),
        (suppress, alarms, row_sink(9, suppress.node, "pulse-counts"), row_sink(10, alarms.node, "alarms")),
    )  # fmt: skip
    table = TableSource("KTABLE-SOURCE-0000000013", ("KSTREAM-SOURCE-0000000012",), COLUMNS,
                        (row_store("patients", source_topic="patients"),))  # fmt: skip
    looked_up = StreamTableJoin(
        "KSTREAM-LEFTJOIN-0000000014", ("KSTREAM-SOURCE-0000000011", table.node), COLUMNS, (), JoinKind.LEFT,
        table.stores[0], COLUMNS, COLUMNS,
    )  # fmt: skip
    near = StreamStreamJoin(
        "KSTREAM-OUTERJOIN-0000000016", (looked_up.node, "KSTREAM-SOURCE-0000000015"), COLUMNS,
        (
            window_store("KSTREAM-OUTERTHIS-0000000016-store"),
            window_store("KSTREAM-OUTEROTHER-0000000016-store"),
            window_store("KSTREAM-OUTERSHARED-0000000016-store"),
        ),
        JoinKind.OUTER, 60_000, 60_000, 10_000, COLUMNS, COLUMNS,
    )  # fmt: skip
    fold = Reduce("KSTREAM-REDUCE-0000000017", (near.node,), COLUMNS, (row_store("worst"),), "wards.fold:worst", None,
                  None, "id")  # fmt: skip
    mapped = Map("KSTREAM-MAP-0000000018", (fold.node,), COLUMNS, (), "v > 3", None, None)
    second = SubTopology(
        1,
        (source(11, "patient-monitoring-by-ward-repartition"), source(12, "patients", True), source(15, "bed-events")),
        tuple(Pipeline(n, f"KSTREAM-SOURCE-{s:010d}", (), COLUMNS, None, (), True) for n, s in enumerate((11, 12, 15))),
        (table, looked_up, near, fold, mapped, row_sink(19, mapped.node, "ward-worst"), row_sink(20, near.node, "pairs")),
    )  # fmt: skip
    clicks = counting(22, row_store("nurse-calls"))
    third = SubTopology(
        2,
        (source(21, "nurse-calls-with-a-remarkably-long-name-of-its-own.v1"),),
        (Pipeline(0, clicks.node, (), COLUMNS, clicks, ()),),
        (row_sink(23, clicks.node, "call-counts"),),
    )
    return plan(first, second, third)


def wide() -> TopologyPlan:
    """Twelve branches of one source, half of them long, into one sink."""
    pipelines, sinks = [], []
    for number in range(12):
        steps = tuple(Filter(f"FILTER-{number}-{step}", f"v > {step}") for step in range(number % 2 * 3))
        sinks.append(Sink(f"SINK-{number}", f"out-{number % 5}"))
        pipelines.append(Pipeline(0, "x", steps, COLUMNS, None, (sinks[-1],)))
    return plan(SubTopology(0, (source(0, "in"),), tuple(pipelines)))


def strange() -> TopologyPlan:
    """Names that XML does not take as they are; a topic that is read by two and written by a third."""
    odd = Process('a<b>&"c"', ("KSTREAM-SOURCE-0000000000",), COLUMNS, (row_store("s<1>"),), "m:f", True)
    return plan(
        SubTopology(0, (source(0, "in"),), (Pipeline(0, odd.node, (), COLUMNS, None, (), True),),
                    (odd, row_sink(1, odd.node, "shared"))),
        SubTopology(1, (source(2, "shared"),), (Pipeline(0, "e", (), COLUMNS, None, (Sink("S1", "end"),)),)),
        SubTopology(2, (source(3, "shared"), source(4, "in-2")),
                    (Pipeline(0, "e", (), COLUMNS, None, (Sink("S2", "end"),)),
                     Pipeline(1, "f", (), COLUMNS, None, (Sink("S3", "end"),)))),
        SubTopology(3, (source(5, "in"),), (Pipeline(0, "e", (), COLUMNS, None, (Sink("S4", "far"),)),)),
    )  # fmt: skip


PLANS = {"small": small, "large": large, "wide": wide, "strange": strange}


@pytest.fixture(params=PLANS.values(), ids=list(PLANS))
def example(request: pytest.FixtureRequest) -> TopologyPlan:
    built: TopologyPlan = request.param()
    return built


def overlap(a: Placed, b: Placed) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def nodes_of(made: TopologyPlan) -> set[str]:
    names = {n.node for s in made.subtopologies for n in (*s.sources, *s.aggregations, *s.nodes, *s.sinks)}
    return names | {step.node for s in made.subtopologies for b in s.pipelines for step in b.steps}


def test_should_name_each_node_topic_and_store_once_in_well_formed_xml(example: TopologyPlan) -> None:
    root = ET.fromstring(picture(example))
    assert root.tag == f"{SVG}svg"
    written = Counter(
        ("node" if group[0].get("class") in ("spark", "loop", "both") else group[0].get("class"),
         "".join(group.find(f"{SVG}text").itertext()))  # type: ignore[union-attr]
        for group in root.iter(f"{SVG}g")
    )  # fmt: skip
    topics = {t for s in example.subtopologies for t in (*s.source_topics, *s.sink_topics)}
    between = set(example.repartition_topics)
    expected = {("node", name) for name in nodes_of(example)} | {("store", s.name) for s in example.stores}
    expected |= {("repartition" if topic in between else "topic", topic) for topic in topics}
    expected |= {
        ("changelog", f"patient-monitoring-{s.name}-changelog")
        for s in example.stores
        if s.is_logged and s.source_topic is None
    }
    assert written == dict.fromkeys(expected, 1)
    for subtopology in example.subtopologies:
        assert picture(example).count(f">Sub-topology {subtopology.index}<") == 1


def test_should_draw_boxes_without_overlap_and_with_room_for_every_word(example: TopologyPlan) -> None:
    drawing = draw(example)
    assert [(a.box.name, b.box.name) for a, b in combinations(drawing.boxes, 2) if overlap(a, b)] == []
    for placed in drawing.boxes:
        assert placed.x >= 0
        assert placed.y >= 0
        assert placed.x + placed.width <= drawing.width
        assert placed.y + placed.height <= drawing.height
        longest = max(len(line) for line in (*placed.box.lines, *placed.box.details))
        assert longest * 7.2 + 20 <= placed.width
        assert 14 * (len(placed.box.lines) + len(placed.box.details)) <= placed.height


def test_should_end_every_text_inside_the_drawing(example: TopologyPlan) -> None:
    root = ET.fromstring(picture(example))
    width = float(root.get("width", "0"))
    spans = [*root.iter(f"{SVG}text"), *root.iter(f"{SVG}tspan")]
    texts = [(float(t.get("x", "0")), t.text) for t in spans if t.text and t.text.strip()]
    assert [text for x, text in texts if x + 7.2 * len(text) > width] == []


def test_should_draw_only_its_own_boxes_inside_a_sub_topology(example: TopologyPlan) -> None:
    drawing = draw(example)
    for frame in drawing.frames:
        inside = {id(placed) for placed in (*frame.nodes.values(), *frame.stores)}
        for placed in drawing.boxes:
            is_inside = (
                frame.x <= placed.x
                and placed.x + placed.width <= frame.x + frame.width
                and frame.y <= placed.y
                and placed.y + placed.height <= frame.y + frame.height
            )
            is_outside = (
                placed.x >= frame.x + frame.width
                or placed.x + placed.width <= frame.x
                or placed.y >= frame.y + frame.height
                or placed.y + placed.height <= frame.y
            )
            assert is_inside if id(placed) in inside else is_outside, (frame.heading, placed.box.name)


def all_lines(drawing: Drawing) -> list[tuple[tuple[float, float], ...]]:
    return [*drawing.lines, *(line for frame in drawing.frames for line in frame.lines)]


def test_should_draw_lines_to_the_right_without_crossing_other_boxes(example: TopologyPlan) -> None:
    drawing = draw(example)
    for line in all_lines(drawing):
        assert all(a[0] <= b[0] for a, b in pairwise(line))
        (x, y), (end_x, end_y) = line[0], line[-1]
        starts = [b for b in drawing.boxes if abs(b.x + b.width - x) < 0.2 and abs(b.middle - y) < 0.2]
        ends = [b for b in drawing.boxes if abs(b.x - end_x) < 0.2 and abs(b.middle - end_y) < 0.2]
        assert len(starts) == len(ends) == 1
        # Level pieces lie in columns, where boxes are; curved ones between columns, where there are none.
        for (a, height), (b, other) in pairwise(line):
            if height == other:
                crossed = [p for p in drawing.boxes if p.x < b and a < p.x + p.width and p.y < height < p.y + p.height]
                assert [p.box.name for p in crossed if p not in (starts[0], ends[0])] == []


def test_should_draw_as_many_lines_as_the_plan_has(example: TopologyPlan) -> None:
    parts = [parts_of(example.application_id, s) for s in example.subtopologies]
    assert len(all_lines(draw(example))) == sum(len(p.edges) + len(p.reads) + len(p.writes) for p in parts)
    for part in parts:
        reached = {end for _, end in part.edges} | {node for _, node in part.reads}
        assert reached == set(part.nodes), "a node without input"


def test_should_draw_repartition_topics_between_the_sub_topologies() -> None:
    drawing = draw(large())
    first, second, _ = drawing.frames
    (between,) = (placed for placed in drawing.topics if placed.box.kind is BoxKind.REPARTITION)
    assert first.x + first.width < between.x
    assert between.x + between.width < second.x


def test_should_colour_a_node_by_where_it_runs() -> None:
    kinds = {name: placed.box.kind for frame in draw(large()).frames for name, placed in frame.nodes.items()}
    assert kinds["KSTREAM-SOURCE-0000000000"] is BoxKind.SPARK
    assert kinds["KSTREAM-FILTER-0000000001"] is BoxKind.SPARK
    assert kinds["KSTREAM-AGGREGATE-0000000006"] is BoxKind.BOTH
    assert kinds["KSTREAM-OUTERJOIN-0000000016"] is BoxKind.LOOP
    assert kinds["KSTREAM-SINK-0000000004"] is BoxKind.LOOP


def test_should_make_the_same_self_contained_file_each_time(example: TopologyPlan) -> None:
    text = picture(example)
    assert text == picture(example)
    assert text.replace("http://www.w3.org/2000/svg", "").count("://") == 0
    assert [word for word in ("<script", "href", "@import", "url(") if word in text] == []
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("character", ["\0", "\x08", "\x0e", "\x1f", "\ud800", "\uffff"])
def test_should_show_a_character_that_xml_cannot_contain_as_a_replacement(character: str) -> None:
    steps = (Filter("KSTREAM-FILTER-0000000001", f"v = '{character}'"),)
    sink = Sink("KSTREAM-SINK-0000000002", "out")
    odd = plan(SubTopology(0, (source(0, "in"),), (Pipeline(0, "x", steps, COLUMNS, None, (sink,)),)))
    assert "v = '\ufffd'" in "".join(ET.fromstring(picture(odd)).itertext())


@pytest.mark.parametrize(
    "name", ["short", "a" * 100, "KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog", "a.b_c/d:e", "-"]
)
def test_should_break_a_long_name_without_losing_a_character(name: str) -> None:
    assert "".join(broken(name)) == name
    assert max(len(line) for line in broken(name)) <= 26


def test_should_place_nodes_in_columns_by_the_longest_path() -> None:
    edges = [("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")]
    assert longest_paths("abcde", edges) == {"a": 0, "b": 1, "c": 2, "d": 0, "e": 0}


def test_should_draw_lines_without_crossings_when_that_is_possible() -> None:
    items = [Item(name, 0, 50, 20) for name in "abc"] + [Item(name, 1, 50, 20) for name in "xyz"]
    lines = [Line("a", "z", 10, 10), Line("b", "y", 10, 10), Line("c", "x", 10, 10)]
    layout = arrange(items, lines, 40, 10)
    assert [route[0][1] - route[-1][1] for route in layout.routes] == [0, 0, 0]
    assert arrange([], [], 40, 10).places == {}


def test_should_draw_an_unknown_kind_of_node_by_its_class() -> None:
    node = TaskNode("custom", ("KSTREAM-SOURCE-0000000000",), COLUMNS, ())
    made = plan(SubTopology(0, (source(0, "in"),), (Pipeline(0, "e", (), COLUMNS, None, (), True),), (node,)))
    assert ">tasknode<" in picture(made)
