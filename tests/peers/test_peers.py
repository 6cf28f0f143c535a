"""The harness with Kafka Streams alone on a small input: what it gives is what the model gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.peer import compiler
from tests.peers.cases import APART_MS, CASES, GAP_MS, GRACE_MS, JOIN_GRACE_MS, PARTITIONS, SIZE_MS, Case
from tests.peers.harness import run_java
from tests.peers.inputs import Record, Size, Stage, late_records, stages
from tests.peers.model import expected, in_order
from tests.peers.outputs import compare, reduce
from tests.truth.topics import Row

from tidemark.local.broker import EmbeddedBroker
from tidemark.settings import Settings

START_MS = 1_760_000_040_000
SMALL = Size(records=5_000, reach=300, start_ms=START_MS, seed=1)
MINUTE_MS = 60_000


@pytest.mark.broker
def test_kafka_streams_should_count_tumbling_windows_as_the_model_does(broker: EmbeddedBroker, tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("there is no javac")
    case = CASES["tumbling"]
    ran = run_java(case, broker.bootstrap, tmp_path / "java", SMALL, Settings.load())
    verdict = compare({"model": expected(case, stages(case, SMALL)), "java": ran.reduced})
    assert verdict.examples == []
    assert verdict.equal > 1000
    assert ran.outputs >= verdict.equal


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_every_case_should_have_something_to_find_and_the_same_input_for_the_same_seed(case: Case) -> None:
    made = stages(case, SMALL)
    assert made == stages(case, SMALL)
    assert made != stages(case, Size(5_000, 300, START_MS, 2))
    records = [record for stage in made for of_role in stage.values() for record in of_role]
    assert 0.9 * SMALL.records < len(records) < 1.5 * SMALL.records
    assert {record.partition for record in records} == set(range(PARTITIONS))
    assert len(set(records)) < len(records), "nothing is repeated"
    assert sum(late_records(stage, role, MINUTE_MS) for stage in made for role in stage) > 0.02 * SMALL.records
    assert len(expected(case, made)) > 100


@pytest.mark.parametrize(
    ("name", "closed_ms"),
    [
        ("tumbling", SIZE_MS + GRACE_MS),
        ("hopping", SIZE_MS + GRACE_MS),
        ("suppress", SIZE_MS + GRACE_MS),
        ("session", GAP_MS + GRACE_MS),
        ("stream-stream", APART_MS + JOIN_GRACE_MS),
        ("stream-stream-left", APART_MS + JOIN_GRACE_MS),
    ],
)
def test_a_record_should_be_late_by_the_time_of_its_batch_or_in_time_by_its_own(name: str, closed_ms: int) -> None:
    case = CASES[name]
    grace_ms = JOIN_GRACE_MS if len(case.roles) > 1 else GRACE_MS
    (stage,) = stages(case, SMALL)
    late = 0
    for partition in range(PARTITIONS):
        newest: list[int] = [0]
        for _, record in in_order(stage, case.roles, partition):
            # A batch that holds this record began at most `reach` records earlier.
            at_start_ms = newest[max(0, len(newest) - 1 - SMALL.reach)]
            if record.ts_ms + closed_ms <= at_start_ms:
                late += 1
            else:
                assert record.ts_ms > newest[-1] - grace_ms
            newest.append(max(newest[-1], record.ts_ms))
    assert late > 0.02 * SMALL.records


@pytest.mark.parametrize("name", ["stream-table", "tombstone"])
def test_a_join_with_a_table_should_be_mixed_only_in_order_and_in_one_batch(name: str) -> None:
    mixed, *rest = stages(CASES[name], SMALL)
    assert sum(len(records) for records in mixed.values()) <= SMALL.reach
    assert not {r.ts_ms for r in mixed["stream"]} & {r.ts_ms for r in mixed["table"]}
    assert [late_records(mixed, role, 0) for role in mixed] == [0, 0]
    assert {len(stage) for stage in rest} == {1}


def test_the_model_should_count_by_hand_made_examples() -> None:
    def at(*seconds: float) -> list[Stage]:
        return [{"in": [Record(0, "k", int(1000 * second), n) for n, second in enumerate(seconds)]}]

    def counted(name: str, *seconds: float) -> dict[tuple[int, int], int]:
        return {(p[1] // 1000, p[2] // 1000): n for p, n in expected(CASES[name], at(*seconds)).items()}

    # The end of a window belongs to the next one; a record is late from end + grace on.
    assert counted("tumbling", 0, 59, 60, 64, 59, 65, 59) == {(0, 60): 3, (60, 120): 3}
    assert counted("hopping", 70) == {(20, 80): 1, (40, 100): 1, (60, 120): 1}
    # Exactly the gap still joins; a session is late once its end + gap + grace has passed.
    assert counted("session", 0, 30, 61, 45) == {(0, 61): 4}
    assert counted("session", 0, 100, 64, 101) == {(0, 0): 1, (100, 101): 2}
    assert expected(CASES["suppress"], at(0, 1, 60, 64)) == {}
    assert expected(CASES["suppress"], at(0, 1, 60, 65)) == {("k", 0, 60_000, 2): 1}
    left, right = [Record(0, "k", 0, 1), Record(0, "k", 70_125, 2)], [Record(0, "k", 60_000, 8)]
    stage = {"left": left, "right": right}
    assert expected(CASES["stream-stream"], [stage]) == {("k", 1, 8): 1, ("k", 2, 8): 1}
    lone = {"left": [*left, Record(0, "x", 125, 3), Record(0, "end-0", 200_000, 0)], "right": []}
    assert expected(CASES["stream-stream-left"], [lone]) == {("k", 1, None): 1, ("k", 2, None): 1, ("x", 3, None): 1}


def test_outputs_should_be_reduced_to_what_stands_at_the_end() -> None:
    def rows(case: str, *values: str) -> list[Row]:
        return [Row(case, 0, n, 0, b"k", value.encode() or None, ()) for n, value in enumerate(values)]

    def windows(*spans: tuple[int, int, int]) -> list[str]:
        return [f'{{"id":"k","window_start":{s},"window_end":{e},"count":{n}}}' for s, e, n in spans]

    assert reduce(CASES["tumbling"], rows("t", *windows((0, 60, 1), (0, 60, 2)))) == {("k", 0, 60): 2}
    grown = windows((5, 5, 1), (9, 9, 1), (5, 9, 3), (5, 9, 4), (50, 60, 2))
    assert reduce(CASES["session"], rows("t", *grown)) == {("k", 5, 9): 4, ("k", 50, 60): 2}
    assert reduce(CASES["suppress"], rows("t", *windows((0, 60, 1), (0, 60, 1)))) == {("k", 0, 60, 1): 2}
    assert reduce(CASES["table"], rows("t", '{"id":"k","v":1}', "")) == {}
    assert reduce(CASES["table"], rows("t", "", '{"id":"k","v":1}')) == {("k",): 1}
    assert reduce(CASES["table"], rows("t", '{"id":"other","v":1}')) == {("k",): "malformed"}
    sentinel = Row("t", 0, 0, 0, b"end-1", b'{"id":"end-1","v":1}', ())
    assert reduce(CASES["table"], [sentinel]) == {}


def test_a_value_that_one_side_lacks_should_be_different() -> None:
    verdict = compare({"model": {("a",): 1, ("b",): 2}, "java": {("a",): 1}, "tidemark": {("a",): 1, ("b",): 2}})
    assert (verdict.equal, verdict.different) == (1, 1)
    assert verdict.examples == ["('b',): model 2, java None, tidemark 2"]
    assert compare({"model": {}, "java": {("c",): 0}}).different == 1
