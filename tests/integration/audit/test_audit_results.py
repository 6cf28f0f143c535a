"""The comparison of a topic's records with the expected results, with Spark and without a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession
from spark_jobs.audit.accounts import Accounts
from spark_jobs.audit.reading import reading_of
from spark_jobs.audit.recomputation import sink_results_sql
from spark_jobs.audit.results import in_order_sql, lasts_sql, updates_sql
from spark_jobs.audit.session import sized
from spark_jobs.audit.validate import Validator
from spark_jobs.audit.views import PipelineView, Views
from tests.unit.audit.test_audit_ranges import history, offsets, ranged

from tidemark.audit.cut import Cut
from tidemark.audit.derivable import derivable
from tidemark.audit.expectations import BY_NAME, Check
from tidemark.audit.ranges import TaskRange
from tidemark.names import TaskId
from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

RECORDS = "p INT, k STRING, ws BIGINT, batch BIGINT, partition INT, offset BIGINT, r_n BIGINT, r_low BIGINT"
RESULTS = (
    "k STRING, role STRING, offset BIGINT, is_newest_found BOOLEAN, is_newest_expected BOOLEAN, found STRING, "
    "expected STRING, is_equal BOOLEAN, is_compacted BOOLEAN"
)


def test_should_find_repeated_results_results_that_go_back_and_the_newest_of_each_key(spark: SparkSession) -> None:
    topology = Topology("app")
    grouped = topology.stream("in", schema="id STRING, x BIGINT", key="id").group_by_key()
    grouped.aggregate(n="count(*)", low="min(x)", store="s").to("out")
    (one,) = derivable(topology.plan()).derived
    rows = [
        # key, batch, partition, offset, n, low
        ("twice", 1, 0, 10, 1, 5),
        ("twice", 1, 0, 11, 1, 5),
        ("twice", 2, 0, 12, 3, 4),
        ("fewer", 1, 0, 13, 4, 1),
        ("fewer", 2, 0, 14, 2, 1),
        ("larger", 1, 0, 15, 1, 1),
        ("larger", 2, 0, 16, 2, 9),
        ("elsewhere", 1, 0, 17, 5, 1),
        ("elsewhere", 2, 1, 18, 1, 1),
        ("of no batch", None, 0, 19, 1, 1),
    ]
    frame = spark.createDataFrame([(0, k, -1, *rest) for k, *rest in rows], RECORDS)
    frame.createOrReplaceTempView("audit_results_records")
    found = spark.sql(in_order_sql(one, "audit_results_records")).collect()
    assert {row.offset for row in found} == set(range(10, 19))
    assert {row.offset for row in found if row.is_copy} == {11}
    assert {row.offset for row in found if not row.is_last_copy} == {10}
    assert {row.offset for row in found if row.is_newest} == {12, 14, 16, 18}
    assert {row.offset for row in found if row.is_back} == {14, 16}


def test_should_look_only_at_topics_whose_results_cannot_go_both_ways(spark: SparkSession) -> None:
    rows = [
        ("counts", "update", 1),
        ("counts", "update", None),
        ("counts", "final", 2),
        ("sums", "update", 3),
    ]
    frame = spark.createDataFrame(rows, "topic STRING, role STRING, offset BIGINT").selectExpr(
        "*", "'k' AS k", "0 AS partition", "0L AS window_start", "1L AS batch", "false AS is_back"
    )
    frame.createOrReplaceTempView("audit_results_updates")
    assert [row.offset for row in spark.sql(updates_sql("audit_results_updates", {"counts"})).collect()] == [1]
    assert spark.sql(updates_sql("audit_results_updates", ())).collect() == []


def test_should_find_the_last_value_of_each_key_and_ignore_what_compaction_removed(spark: SparkSession) -> None:
    rows = [
        # key, role, offset, newest found, newest expected, found, expected, equal, compacted
        ("agrees", "update", 1, True, True, None, None, True, False),
        ("agrees", "update", 0, False, False, None, None, True, False),
        ("differs", "update", 2, True, True, "1", "2", False, False),
        ("doubled", "update", 3, False, False, None, None, True, False),
        ("doubled", "update", 4, True, True, None, None, True, False),
        ("written again", "update", 5, False, True, "7", "7", True, False),
        ("written again", "update", 6, True, False, "7", None, False, False),
        ("taken back", "update", 7, False, True, "7", "7", True, False),
        ("taken back", "update", 8, True, False, "6", None, False, False),
        ("lost", "update", None, False, True, None, "2", False, False),
        ("lost", "update", 9, True, False, "1", "1", True, False),
        ("lost whole", "update", None, False, True, None, "1", False, False),
        ("compacted", "update", None, False, True, None, "1", False, True),
        ("a final", "final", 10, True, True, "1", "2", False, False),
    ]
    frame = spark.createDataFrame(rows, RESULTS).selectExpr(
        "*", "'t' AS topic", "'0_0' AS task", "0L AS window_start", "0 AS partition"
    )
    frame.createOrReplaceTempView("audit_results_rows")
    found = spark.sql(lasts_sql("audit_results_rows")).collect()
    assert {(row.k, row.offset, row.is_equal) for row in found} == {
        ("agrees", 1, True),
        ("differs", 2, False),
        ("doubled", 4, True),
        ("written again", 6, True),
        ("taken back", 8, False),
        ("lost", 9, False),
        ("lost whole", None, False),
    }
    assert len(found) == 7


def test_should_run_a_whole_suite_in_one_job_and_distinguish_a_broken_check(spark: SparkSession) -> None:
    frame = spark.range(40_000).selectExpr("id", "id % 10 AS digit").persist()
    frame.count()
    holds, fails, breaks = (
        Check(name, "digits", unexpected, "it is so", "look")
        for name, unexpected in (("holds", "digit > 9"), ("fails", "id = 7"), ("breaks", "nowhere > 1"))
    )
    validator = Validator("a run")
    context = spark.sparkContext
    context.setJobGroup("counted", "")
    try:
        found = validator.validate("digits", frame, [holds, holds_too := replace(holds, name="holds too")], False)
    finally:
        # The session is that of other tests, too.
        context._jsc.clearJobGroup()
    # Who counts the jobs hears of them a moment later.
    context._jsc.sc().listenerBus().waitUntilEmpty(60_000)
    jobs = context.statusTracker().getJobIdsForGroup("counted")
    assert [finding.verdict for finding in found.findings] == [Verdict.OK, Verdict.OK]
    assert found.rows == 40_000
    assert len(jobs) == 1
    found = validator.validate("more", frame, [holds_too, fails], False)
    assert [finding.verdict for finding in found.findings] == [Verdict.OK, Verdict.FAILED]
    assert found.quarantined == {"fails": [{"id": 7, "digit": 7}]}
    found = validator.validate("broken", frame, [breaks], False)
    assert [finding.evidence.get("broken") for finding in found.findings] == [True]
    assert found.rows is None
    frame.unpersist()


def test_should_count_only_rows_that_an_expectation_can_judge(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, 1), (2, None), (3, None)], "rows INT, truth INT")
    can, cannot = (
        Check(name, "figures", "rows <> truth", "the figures agree", "look", judged=judged)
        for name, judged in (("can", "truth IS NOT NULL"), ("cannot", "rows > 1 AND truth IS NOT NULL"))
    )
    validator = Validator("a run")
    found = validator.validate("figures", frame, [can, cannot], False)
    assert [(one.verdict, one.evidence["rows"]) for one in found.findings] == [
        (Verdict.OK, 1),
        (Verdict.NOT_ENOUGH_EVIDENCE, 0),
    ]
    assert validator.validate("no figures", frame, [], False).findings == []


def test_should_count_sink_records_without_a_key_where_all_ranges_end_together(spark: SparkSession) -> None:
    topology = Topology("app")
    topology.stream("in", schema="id STRING", key="id").group_by_key().count(store="s").to("out")
    plan = topology.plan()
    # Batches 2 and 3 of both tasks, each of which claims five records in `out`.
    ranges = {}
    for partition in (0, 1):
        task = TaskId(0, partition)
        known = [replace(one, task=task, sources={"in": {partition: one.sources["in"][1]}}) for one in history(1, 3)]
        ranges[task] = replace(ranged(known), task=task, until=offsets(80))
    keyed = [(partition, batch) for partition in (0, 1) for batch in (2, 3) for _ in range(4)]

    def unexpected(name: str, rows: list[tuple[int, int]], keyless: int, runs: dict[TaskId, TaskRange]) -> list[object]:
        cut = Cut(runs, [], {}, {"in": 2, "out": 2})
        columns = "role STRING, topic STRING, partition INT, offset BIGINT, key BINARY, p INT, batch BIGINT"
        found = [("sink", "out", p, 50, bytearray(b"k"), p, batch) for p, batch in rows]
        frame = spark.createDataFrame([*found, *[("sink", "out", 0, 51, None, 0, None)] * keyless], columns)
        views = Views(spark)
        accounts = Accounts(PipelineView(views, cut, reading_of(plan, cut), frame, 0), plan, derivable(plan), {})
        wrong = accounts.counts().where(BY_NAME[name].unexpected).collect()
        views.close()
        return [(row.task, row.batch, row.claimed, row.found, row.keyless) for row in wrong]

    lost, doubled = "outputs_are_not_lost", "outputs_are_not_doubled"
    assert unexpected(lost, keyed, 4, ranges) == []
    assert unexpected(doubled, keyed, 4, ranges) == []
    assert unexpected(lost, keyed, 3, ranges) == [(None, None, 20, 19, 0)]
    assert unexpected(doubled, keyed, 5, ranges) == [(None, None, 20, 21, 0)]
    # The last task's range ends elsewhere, so a record without a key may belong to a later batch. A batch that lost more
    # records than there are without a key is still found.
    longer = ranges | {TaskId(0, 1): replace(ranges[TaskId(0, 1)], until=offsets(81))}
    assert unexpected(lost, keyed, 3, longer) == []
    assert unexpected(doubled, keyed, 5, longer) == []
    assert unexpected(lost, keyed[4:], 5, longer) == []
    assert unexpected(lost, keyed[4:], 4, longer) == [("0_0", 2, 5, 0, 4)]
    assert unexpected(lost, keyed, 0, longer) == [(f"0_{p}", batch, 5, 4, 0) for p in (0, 1) for batch in (2, 3)]


def test_should_size_the_session_for_an_audit_and_restore_its_settings_afterwards(spark: SparkSession) -> None:
    names = ("spark.sql.shuffle.partitions", "spark.sql.inMemoryColumnarStorage.compressed")

    def seen() -> list[str | None]:
        return [spark.conf.get(name) for name in names]

    before = seen()
    with sized(spark, 5_000_001):
        assert seen() == ["6", "false"]
    with pytest.raises(ZeroDivisionError), sized(spark, 0):
        assert seen() == ["1", "false"]
        1 / 0  # noqa: B018
    assert seen() == before


def test_should_take_key_and_window_of_a_record_from_its_windowed_key(spark: SparkSession) -> None:
    topology = Topology("app")
    counts = (
        topology.stream("in", schema="id STRING", key="id").group_by_key().windowed_by(tumbling("60s")).count(name="n")
    )
    counts.to("out", windowed_key=True)
    (one,) = derivable(topology.plan()).derived
    written = [
        (b"p1" + (60_000).to_bytes(8, "big"), 60_000, 120_000),
        (b"\xc3\xa9" + (0).to_bytes(8, "big"), 0, 60_000),
        (b"p1" + (60_000).to_bytes(8, "big"), 120_000, 180_000),
        (b"p1" + (60_000).to_bytes(8, "big"), 60_000, 120_001),
    ]
    value = b'{"id":"x","window_start":%d,"window_end":%d,"n":3}'
    rows = [
        ("sink", "out", 0, offset, 0, 1, bytearray(key), bytearray(value % (start_ms, end_ms)))
        for offset, (key, start_ms, end_ms) in enumerate(written)
    ]
    columns = "role STRING, topic STRING, partition INT, offset BIGINT, p INT, batch BIGINT, key BINARY, value BINARY"
    spark.createDataFrame(rows, columns).createOrReplaceTempView("audit_windowed_keys")
    found = spark.sql(sink_results_sql(one, "out", "audit_windowed_keys")).collect()
    # The third one's key and value name two windows, and the last one's has another end: they are results of none.
    assert [(row.k, row.ws, row.r_n) for row in found] == [
        ("p1", 60_000, 3), ("é", 0, 3), ("p1", None, 3), ("p1", None, 3),
    ]  # fmt: skip
