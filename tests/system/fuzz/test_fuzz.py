"""Random cases equal Kafka Streams; the comparison finds differences; the interpreter computes what Spark computes."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from spark_jobs.compile import pipeline_sql
from spark_jobs.kafka_reading import KAFKA_RECORDS
from spark_jobs.prepared import SparkRows
from spark_jobs.statements import Statements
from tests.system.fuzz import case as case_module
from tests.system.fuzz import expressions as expressions_module
from tests.system.fuzz.batches import KafkaRecord, pipeline_table
from tests.system.fuzz.case import (
    After,
    AggregateNode,
    Case,
    JoinNode,
    Record,
    RekeyNode,
    SelectNode,
    StreamNode,
    TableNode,
    ToNode,
    ToStreamNode,
    WindowOf,
    as_test,
    expressions,
)
from tests.system.fuzz.compare import Difference, compare
from tests.system.fuzz.draw import KINDS, Only, cases
from tests.system.fuzz.expressions import of
from tests.system.fuzz.java_side import in_order
from tests.system.fuzz.results import Line, Results
from tests.system.fuzz.run import Tally
from tests.system.fuzz.shrink import shrunk
from tests.system.fuzz.working import work

from tidemark.errors import InvalidTopology
from tidemark.tasks.partials import Partial

CASES = 200
SEED = 1
BATCHES_ON_SPARK = 25
AHEAD_MS = 3_600_000

COUNT = (StreamNode("t0", ("u0", "v0")), AggregateNode(0, None, (("n", "count", None),)), ToNode(1))
WINDOWED = (
    StreamNode("t0", ("u0", "v0")),
    AggregateNode(0, WindowOf("tumbling", 10, 10, 0), (("n", "count", None),)),
    ToNode(1),
)


def counting(*afters, nodes=COUNT):
    records = [Record("t0", "a", {"u0": 1, "v0": 2}, i, after=after) for i, after in enumerate(afters)]
    return Case(nodes, tuple(records))


def results(counts, stored=None, late=0):
    """A sink with counts of the key a, each at the time of its record, and the store at the end."""
    lines = [Line("a", None, None, {"n": n}, at) for at, n in counts]
    stored = counts[-1] if stored is None else stored
    return Results({"out2": lines}, {"s1": [Line("a", None, None, {"n": stored[1]}, stored[0])]}, late)


THREE = results([(0, 1), (1, 2), (2, 3)])
EACH = counting(After.COMMIT, After.COMMIT, After.COMMIT)
AT_ONCE = counting(After.NOTHING, After.NOTHING, After.COMMIT)


def test_should_equal_kafka_streams_in_random_cases():
    tally = Tally()
    work(CASES, SEED, Only(), tally.add, keep_going=True)
    assert tally.cases == CASES
    assert tally.different == 0, "\n".join(text for _, text in tally.failures.values())


def test_should_report_no_difference_between_equal_results():
    assert compare(EACH, THREE, THREE) == compare(AT_ONCE, THREE, THREE)
    assert compare(EACH, THREE, THREE).difference is None
    assert not compare(EACH, THREE, THREE).classes


@pytest.mark.parametrize(
    "ours",
    [
        pytest.param(results([(0, 1), (2, 3)]), id="a result is missing"),
        pytest.param(results([(0, 1), (1, 2), (2, 4)], (2, 3)), id="another value"),
        pytest.param(results([(0, 1), (1, 2), (1, 3)], (2, 3)), id="another timestamp"),
        pytest.param(results([(1, 2), (0, 1), (2, 3)]), id="another order"),
        pytest.param(results([(0, 1), (1, 2), (2, 3), (2, 3)]), id="one too many"),
        pytest.param(results([(0, 1), (1, 2), (2, 3)], (2, 4)), id="another value in the store"),
        pytest.param(results([(0, 1), (1, 2), (2, 3)], (1, 3)), id="another timestamp in the store"),
        pytest.param(replace(THREE, stores={"s1": []}), id="nothing in the store"),
        pytest.param(replace(THREE, sinks={"out2": []}), id="nothing in the sink"),
        pytest.param(
            replace(THREE, sinks={"out2": [*THREE.sinks["out2"], Line("b", None, None, None, 2)]}), id="a deletion"
        ),
        pytest.param(
            replace(THREE, sinks={"out2": [line._replace(key="b") for line in THREE.sinks["out2"]]}), id="another key"
        ),
    ],
)
def test_should_report_every_difference_when_each_record_has_its_own_commit(ours):
    assert compare(EACH, ours, THREE).difference is not None


def test_should_treat_fewer_updates_of_a_batch_as_coalesced_when_the_last_is_the_same():
    verdict = compare(AT_ONCE, results([(2, 3)]), THREE)
    assert (verdict.classes, verdict.difference) == (frozenset({Difference.COALESCED}), None)


@pytest.mark.parametrize(
    "ours",
    [
        pytest.param(results([(0, 1), (1, 2)], (2, 3)), id="the last is missing"),
        pytest.param(results([(1, 7), (2, 3)]), id="a value that never was"),
        pytest.param(results([(2, 3)], (2, 2)), id="another value in the store"),
        pytest.param(results([(1, 2), (0, 1), (2, 3)]), id="another order"),
    ],
)
def test_should_report_differences_that_coalescing_does_not_explain(ours):
    assert compare(AT_ONCE, ours, THREE).difference is not None


def test_should_not_treat_a_missing_record_as_coalesced_when_there_is_no_aggregation():
    case = replace(AT_ONCE, nodes=(COUNT[0], SelectNode(0, (("n", of("col", "u0")),)), ToNode(1)))
    given = replace(THREE, stores={})
    assert compare(case, replace(given, sinks=results([(2, 3)]).sinks), given).difference is not None


B = Line("b", 0, 10, {"n": 1}, 2)


def test_should_excuse_lateness_only_in_batches_whose_late_records_are_counted_differently():
    ours, theirs = results([(2, 3)], late=0), results([(2, 2)], late=1)
    lines = {"out2": [Line("a", 0, 10, line.row, line.timestamp) for line in ours.sinks["out2"]]}
    ours = replace(ours, sinks=lines)
    # What no late record can change is still compared.
    ours, theirs = (
        Results({"out2": [*side.sinks["out2"], B]}, {"s1": [*side.stores["s1"], B._replace(end=None)]}, side.late)
        for side in (ours, theirs)
    )
    batch, each = replace(AT_ONCE, nodes=WINDOWED), replace(EACH, nodes=WINDOWED)
    assert compare(batch, ours, theirs).classes == {Difference.LATE_BY_BATCH}
    assert compare(batch, ours, theirs).difference is None
    assert compare(batch, ours, replace(theirs, late=0)).difference is not None
    assert compare(each, ours, theirs).difference is not None


@pytest.mark.parametrize(
    ("line", "is_excused"),
    [
        pytest.param(Line("a", 0, 10, {"n": 1}, 3), True, id="the window of the late record"),
        pytest.param(Line("a", 10, 20, {"n": 7}, 15), False, id="another window of its key"),
        pytest.param(Line("b", 0, 10, {"n": 1}, 3), False, id="another key"),
    ],
)
def test_should_excuse_only_what_a_late_record_can_change(line, is_excused):
    records = [("a", 15), ("a", 3), ("b", 15)]
    case = Case(WINDOWED, tuple(Record("t0", key, {"u0": 1, "v0": 2}, at) for key, at in records))
    common = [Line("a", 10, 20, {"n": 1}, 15), Line("b", 10, 20, {"n": 1}, 15)]
    theirs = Results({"out2": common}, {"s1": [one._replace(end=None) for one in common]}, 1)
    in_sink = replace(theirs, sinks={"out2": [*common, line]}, late=0)
    in_store = replace(theirs, stores={"s1": [*theirs.stores["s1"], line._replace(end=None)]}, late=0)
    for ours in (in_sink, in_store):
        assert (compare(case, ours, theirs).difference is None) is is_excused


def test_should_say_what_it_could_not_compare_because_any_line_may_depend_on_a_late_record():
    """Under which key a record goes on may depend on it, so no line of the sink or the store is left to compare."""
    nodes = (*WINDOWED[:2], ToStreamNode(1), RekeyNode(2, of("str", of("col", "n"))), ToNode(3))
    records = tuple(Record("t0", "a", {"u0": 1, "v0": 2}, at) for at in (15, 3))
    line = Line("1", None, None, {"n": 1, "window_start": 10, "window_end": 20}, 15)
    given = Results({"out4": [line]}, {"s1": []}, 1)
    wrong = replace(given, sinks={"out4": [line._replace(row={**(line.row or {}), "n": 777})]}, late=0)
    verdict = compare(Case(nodes, records), wrong, given)
    assert (verdict.classes, verdict.difference, verdict.not_compared) == (frozenset(), None, ("out4",))
    assert compare(Case(nodes, records), given, given).not_compared == ()


@pytest.mark.parametrize(("at", "is_excused"), [(79, True), (80, True), (81, False)])
def test_should_not_compare_expired_rows_of_a_join_beside_late_records(at, is_excused):
    """Each side drops rows that no partner can meet any more when it pleases, also of keys without late records."""
    nodes = (StreamNode("t0", ("u0",)), StreamNode("t1", ("u1",)), JoinNode(0, 1, "inner", within=10), ToNode(2))
    case = Case(nodes, tuple(Record("t0", key, {"u0": 1}, time) for key, time in (("a", 100), ("a", 3), ("b", 100))))
    kept = [Line(key, 100, None, {"u0": 1}, 100) for key in "ab"]
    theirs = Results({"out3": []}, {"j2-this-join-store": kept, "j2-other-join-store": []}, 1)
    own = {"j2-this-store": [*kept, Line("b", at, None, {"u0": 1}, at), Line("a", 90, None, {"u0": 1}, 90)]}
    ours = Results({"out3": []}, {**own, "j2-other-store": []}, 0)
    assert (compare(case, ours, theirs).difference is None) is is_excused


def test_should_order_a_batch_by_running_maximum_then_source_then_offset():
    nodes = (StreamNode("t0", ("u0",)), StreamNode("t1", ("u1",)), JoinNode(0, 1, "inner", within=10), ToNode(2))
    times = [("t1", 7), ("t0", 10), ("t0", 5), ("t1", 12), ("t1", 10), ("t0", 20), ("t0", 12)]
    records = tuple(Record(topic, "a", {"u0": 1} if topic == "t0" else {"u1": 1}, at) for topic, at in times)
    ordered = [(record.topic, record.timestamp) for record in in_order(Case(nodes, records))]
    assert ordered == [("t1", 7), ("t0", 10), ("t0", 5), ("t1", 12), ("t1", 10), ("t0", 20), ("t0", 12)]


def test_should_shrink_a_failing_case_to_what_makes_it_fail():
    nodes = (*COUNT, TableNode("t1", ("u1", "v1")), ToNode(3), SelectNode(0, (("x", of("col", "u0")),)), ToNode(5))
    drawn = [Record("t0", "abc"[i % 3], {"u0": i, "v0": 5}, 1000 + i, after=After.LOSE_STATE) for i in range(12)]
    case = Case(nodes, (*drawn, Record("t1", "b", {"u1": 3, "v1": 4}, 1020)), rocksdb=True)
    small = shrunk(case, lambda c: sum(r.topic == "t0" and (r.row or {})["u0"] > 7 for r in c.records) >= 2)
    assert [type(node) for node in small.nodes] == [StreamNode, ToNode]
    assert len(small.records) == 2
    assert {(r.key, r.timestamp, r.after) for r in small.records} == {("a", 0, After.COMMIT)}
    assert not small.rocksdb


def test_should_print_a_case_as_a_test_that_makes_the_same_case():
    @seed(SEED)
    @settings(
        max_examples=30, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def check(case):
        made = []
        names = {**vars(case_module), **vars(expressions_module)}
        exec(as_test(case, "pasted").replace("assert compared(case, java).difference is None", "made(case)"), names)
        names["made"] = made.append
        names["pasted"](None)
        assert made == [case]

    check()


def test_should_draw_every_kind_of_node_and_both_kinds_of_commits():
    met = set()

    @seed(SEED)
    @settings(
        max_examples=300, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def check(case):
        met.update(type(node).__name__ for node in case.nodes)
        met.update(node.window.kind for node in case.nodes if getattr(node, "window", None))
        met.update(record.after.value for record in case.records)
        met.add("each" if case.commits_each else "batches")

    check()
    nodes = {name for name in vars(case_module) if name.endswith("Node") and name != "Node"}
    assert met >= nodes | {"tumbling", "hopping", "session", "sliding", "each", "batches", *(a.value for a in After)}
    assert len(KINDS) == len(set(KINDS))


@pytest.mark.spark
def test_should_interpret_the_compiled_sql_as_spark_does(spark):
    """Checks the contract of `batches.pipeline_table`: random batches through both implementations, column by column."""
    compared = []

    @seed(SEED)
    @settings(
        max_examples=BATCHES_ON_SPARK,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(cases(Only(frozenset(KINDS) - {"processors", "suppress"})))
    def check(case):
        try:
            plan = case.plan
        except InvalidTopology:
            reject()
        for subtopology in plan.subtopologies:
            records = [r for topic in subtopology.sources for r in _kafka_records(case, topic)]
            rows = [_kafka_row(r) for r in records]
            frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=KAFKA_RECORDS))
            frame.createOrReplaceTempView("fuzz_batch")
            statements = Statements(subtopology, "fuzz_records", AHEAD_MS)
            numbers = range(len(subtopology.pipelines))
            # Few records are grouped by Arrow, many by Spark. The second time, statements for few are run as they were planned.
            given_rows, few = SparkRows.of(frame), len(records)
            completed = [statements.tables(given_rows, numbers, at_most) for at_most in (few, few, 1_000_000)]
            for number, pipeline in enumerate(subtopology.pipelines):
                text = pipeline_sql(subtopology, pipeline, "fuzz_batch", AHEAD_MS)
                expected = spark.sql(text).toArrow()
                given = pipeline_table(subtopology, pipeline, records, expressions(case))
                plain = given.select(expected.schema.names)
                assert set(given.schema.names) - set(plain.schema.names) <= {Partial.NEWEST}, text
                assert plain.schema.types == expected.schema.types, text
                assert _listed(plain) == _listed(expected), as_test(case, "test_of_this_batch")
                for tables in completed:
                    assert tables[number].schema.names == given.schema.names, text
                    assert tables[number].schema.types == given.schema.types, text
                    assert _listed(tables[number]) == _listed(given), as_test(case, "test_of_this_batch")
                compared.append(pipeline.end)

    check()
    assert len(compared) >= BATCHES_ON_SPARK


def _kafka_records(case, source):
    """The case's records of a topic; of a repartition topic records of the same kind, with keys of another one."""
    own = [r for r in case.records if r.topic == source.topic]
    if own:
        values = [(r.key, r.row, r.timestamp) for r in own]
    else:
        names = [c.name for c in source.schema]
        texts = {c.name for c in source.schema if c.type == "STRING"}
        values = [
            ("ab"[i % 2], {name: str(i) if name in texts else i for name in names}, r.timestamp)
            for i, r in enumerate(case.records)
        ]
    return [
        KafkaRecord(source.topic, offset, key and key.encode(), None if row is None else json.dumps(row).encode(), at)
        for offset, (key, row, at) in enumerate(values)
    ]


def _kafka_row(record):
    return {
        "key": record.key,
        "value": record.value,
        "topic": record.topic,
        "partition": 0,
        "offset": record.offset,
        "timestamp": record.timestamp * 1000,
        "headers": None,
    }


def _listed(table):
    """Rows in any order; what a row that is not good has besides its status, count and offset is not looked at."""
    kept = ("__p", "__status", "__rows", "__record_offset")
    rows = [row if row["__status"] == 0 else {k: v for k, v in row.items() if k in kept} for row in table.to_pylist()]
    return sorted((_value(row) for row in rows), key=repr)


def _value(row):
    return {k: json.loads(v) if k == "__value" and v is not None else v for k, v in row.items()}
