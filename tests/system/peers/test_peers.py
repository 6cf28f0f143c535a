"""The harness with Kafka Streams alone on a small input: what it gives is what the model gives."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from bench.java_program import compiler
from tests.support.truth.topics import Row
from tests.system.peers.cases import (
    CASES,
    DIFFERENCE_MS,
    GAP_MS,
    GRACE_MS,
    MAX_ENTRIES,
    PARTITIONS,
    SIZE_MS,
    TTL_MS,
    Case,
)
from tests.system.peers.harness import run_java
from tests.system.peers.inputs import SENTINEL, Record, Size, Stage, late_records, stages
from tests.system.peers.model import expected
from tests.system.peers.outputs import compare, reduce
from tests.system.peers.sides import TidemarkSide

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.settings import Settings

START_MS = 1_760_000_040_000
SMALL = Size(records=5_000, reach=300, start_ms=START_MS, seed=1)
MINUTE_MS = 60_000


@pytest.mark.broker
def test_should_count_tumbling_windows_in_kafka_streams_as_in_the_model(broker: EmbeddedBroker, tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("there is no javac")
    case = CASES["tumbling"]
    ran = run_java(case, broker.bootstrap, tmp_path / "java", SMALL, Settings.load())
    verdict = compare({"model": expected(case, stages(case, SMALL)), "java": ran.reduced})
    assert verdict.examples == []
    assert verdict.equal > 1000
    assert ran.outputs >= verdict.equal


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_should_generate_results_to_find_and_the_same_input_for_the_same_seed_in_every_case(case: Case) -> None:
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
        ("backlog", SIZE_MS + GRACE_MS),
        ("sliding", DIFFERENCE_MS + GRACE_MS + 1),
        ("session", GAP_MS + GRACE_MS),
    ],
)
def test_should_judge_a_record_late_by_its_batch_or_in_time_by_its_own_timestamp(name: str, closed_ms: int) -> None:
    case = CASES[name]
    size = replace(SMALL, records=10_000)
    reach = case.batch_records(size.reach)
    (stage,) = stages(case, size)
    late = 0
    for partition in range(PARTITIONS):
        newest: list[int] = [0]
        for record in stage[case.roles[0]]:
            if record.partition != partition:
                continue
            # A batch that holds this record too has at most `reach - 1` records before it.
            at_start_ms = newest[max(0, len(newest) - reach)]
            if record.ts_ms + closed_ms <= at_start_ms:
                late += 1
            else:
                assert record.ts_ms > newest[-1] - GRACE_MS
            newest.append(max(newest[-1], record.ts_ms))
    assert late > 0.02 * size.records


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_should_start_tidemark_where_the_topology_of_the_case_is(case: Case, tmp_path: Path) -> None:
    command = TidemarkSide(Settings.load(), SMALL.reach).command(case, "127.0.0.1:9092", tmp_path)
    assert (Path(command.environment["TIDEMARK_TOPOLOGY_PATH"]) / f"{case.topology}.py").is_file()
    assert Path(command.arguments[1]).is_file()


def test_should_make_the_table_of_the_backlog_newer_than_its_whole_stream() -> None:
    (stage,) = stages(CASES["backlog"], SMALL)
    assert 0 < len(stage["table"]) < 0.01 * len(stage["stream"])
    newest_ms = max(record.ts_ms for record in stage["stream"] if not record.key.startswith(SENTINEL))
    assert min(record.ts_ms for record in stage["table"]) > newest_ms + SIZE_MS + GRACE_MS


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if len(case.roles) > 1])
def test_should_mix_two_topics_in_several_batches_without_equal_timestamps(name: str) -> None:
    case = CASES[name]
    first, *rest = stages(case, SMALL)
    assert sum(len(records) for records in first.values()) > 2 * case.batch_records(SMALL.reach)
    one, other = ({record.ts_ms for record in first[role]} for role in case.roles)
    assert not one & other
    assert {len(stage) for stage in rest} <= {1}


@pytest.mark.parametrize("name", ["table", "table-table", "stream-table"])
def test_should_let_the_timestamps_of_a_table_go_back_within_a_key(name: str) -> None:
    case = CASES[name]
    latest: dict[str, int] = {}
    back = 0
    for record in stages(case, SMALL)[0][case.roles[-1]]:
        back += record.ts_ms < latest.get(record.key, 0)
        latest[record.key] = record.ts_ms
    assert back > 50


@pytest.mark.parametrize(("name", "ttl_ms"), [("lru", sys.maxsize), ("ttl", TTL_MS)])
def test_should_forget_the_same_keys_wherever_batches_end(name: str, ttl_ms: int) -> None:
    case = CASES[name]
    made = stages(case, SMALL)
    written_ms: defaultdict[str, list[int]] = defaultdict(list)
    answers = Counter(found[2] is None for found in expected(case, made))
    assert min(answers.values()) > 0.1 * answers.total()
    for stage in made:
        assert len({(record.v or 0) < 0 for record in stage["in"]}) == 1, "either writes or questions"
        for partition in range(PARTITIONS):
            records = [record for record in stage["in"] if record.partition == partition]
            keys = [record.key for record in records]
            assert keys == sorted(keys)
            first_ms, last_ms = records[0].ts_ms, max(record.ts_ms for record in records)
            for record in records:
                if (record.v or 0) >= 0:
                    written_ms[record.key] += [first_ms, last_ms]
                elif written_ms[record.key]:
                    ages_ms = [now - then for now in (first_ms, last_ms) for then in written_ms[record.key][-2:]]
                    assert max(ages_ms) < ttl_ms or min(ages_ms) > ttl_ms


def test_should_count_hand_made_examples_correctly_in_the_model() -> None:
    def at(*seconds: float) -> list[Stage]:
        return [{"in": [Record(0, "k", int(1000 * second), n) for n, second in enumerate(seconds)]}]

    def counted(name: str, *seconds: float) -> dict[tuple[int, int], tuple[int, int]]:
        found = expected(CASES[name], at(*seconds))
        return {(p[1] // 1000, p[2] // 1000): (n, ts // 1000) for p, (n, ts) in found.items()}

    # The end of a window belongs to the next one; a record is late from end + grace on.
    assert counted("tumbling", 0, 59, 60, 64, 59, 65, 59) == {(0, 60): (3, 59), (60, 120): (3, 65)}
    assert counted("hopping", 70) == {(20, 80): (1, 70), (40, 100): (1, 70), (60, 120): (1, 70)}
    # Both ends belong to a sliding window; a record is late when the window after it, too, ended before the grace.
    assert counted("sliding", 100, 120) == {(80, 100): (1, 100), (100, 120): (2, 120)}
    assert expected(CASES["sliding"], at(100, 125, 99)).keys() == {("k", 80_000, 100_000), ("k", 105_000, 125_000)}
    # Exactly the gap still joins; a session is late once its end + gap + grace has passed.
    assert counted("session", 0, 30, 61, 45) == {(0, 61): (4, 61)}
    assert counted("session", 0, 100, 64, 101) == {(0, 0): (1, 0), (100, 101): (2, 101)}
    assert expected(CASES["suppress"], at(0, 1, 60, 64)) == {}
    assert expected(CASES["suppress"], at(0, 1, 60, 65)) == {("k", 0, 60_000, 2, 1000): 1}


def test_should_join_hand_made_examples_correctly_in_the_model() -> None:
    left, right = [Record(0, "k", 0, 1), Record(0, "k", 70_125, 2)], [Record(0, "k", 60_000, 8)]
    stage = {"left": left, "right": right}
    pairs = {("k", 1, 8, 60_000): 1, ("k", 2, 8, 70_125): 1}
    assert expected(CASES["stream-stream"], [stage]) == pairs
    lone = {"left": [*left, Record(0, "x", 125, 3), Record(0, "end-0", 200_000, 0)], "right": []}
    alone = {("k", 1, None, 0): 1, ("k", 2, None, 70_125): 1, ("x", 3, None, 125): 1}
    assert expected(CASES["stream-stream-left"], [lone]) == alone
    assert expected(CASES["stream-stream-left"], [{"left": lone["right"], "right": lone["left"]}]) == {}
    mirrored = {(key, None, v, ts): n for (key, v, _, ts), n in alone.items()}
    assert expected(CASES["stream-stream-outer"], [{"left": lone["right"], "right": lone["left"]}]) == mirrored
    # A late record finds what is still kept, and is given alone where nothing is.
    late = {"left": left, "right": [Record(0, "k", 130_000, 8), Record(0, "k", 200_125, 9), Record(0, "k", 0, 7)]}
    assert expected(CASES["stream-stream"], [late])["k", 1, 7, 0] == 1
    gone = {"left": [*left, Record(0, "y", 200_000, 0)], "right": late["right"]}
    assert expected(CASES["stream-stream-outer"], [gone])["k", None, 7, 0] == 1


def test_should_join_hand_made_tables_correctly_in_the_model() -> None:
    left = [Record(0, "k", 1000, 1), Record(0, "k", 500, 2), Record(0, "x", 2000, 3)]
    right = [Record(0, "k", 3000, 8), Record(0, "y", 3500, 9), Record(0, "k", 4000, None)]
    before = {"left": left, "right": right[:1]}
    after = {"left": left, "right": right}
    # The last by offset stays, whatever its timestamp; the newer of the two rows' timestamps is the result's.
    assert expected(CASES["table-table"], [before]) == {("k",): (2, 8, 3000)}
    assert expected(CASES["table-table"], [after]) == {}
    joined = {("k",): (2, None, 4000), ("x",): (3, None, 2000)}
    assert expected(CASES["table-table-left"], [after]) == joined
    assert expected(CASES["table-table-outer"], [after]) == {**joined, ("y",): (None, 9, 3500)}


def test_should_forget_hand_made_examples_correctly_in_the_model() -> None:
    def asked(name: str, *records: tuple[str, int, int]) -> list[int | None]:
        taken = [Record(0, key, minute * MINUTE_MS, v) for key, minute, v in records]
        return [place[2] for place in expected(CASES[name], [{"in": taken}])]

    assert asked("ttl", ("k", 0, 1), ("k", 50, -1), ("k", 0, -2)) == [1, 1]
    assert asked("ttl", ("k", 0, 1), ("x", 51, 2), ("k", 0, -1), ("x", 101, -2)) == [None, 2]
    fill = [(f"x{number:02}", 0, number) for number in range(MAX_ENTRIES - 1)]
    assert asked("lru", ("k", 0, 7), *fill, ("k", 0, -1), ("y", 0, 8), ("k", 0, -2), ("x00", 0, -3)) == [7, 7, None]


def test_should_reduce_outputs_to_the_last_value_of_each_key() -> None:
    def rows(*values: str) -> list[Row]:
        return [Row("t", 0, n, n, b"k", value.encode() or None, ()) for n, value in enumerate(values)]

    def windows(*spans: tuple[int, int, int]) -> list[str]:
        return [f'{{"id":"k","window_start":{s},"window_end":{e},"count":{n}}}' for s, e, n in spans]

    assert reduce(CASES["tumbling"], rows(*windows((0, 60, 1), (0, 60, 2)))) == {("k", 0, 60): (2, 1)}
    grown = windows((5, 5, 1), (9, 9, 1), (5, 9, 3), (5, 9, 4), (50, 60, 2))
    assert reduce(CASES["session"], rows(*grown)) == {("k", 5, 9): (4, 3), ("k", 50, 60): (2, 4)}
    twice = [row._replace(timestamp_ms=7) for row in rows(*windows((0, 60, 1), (0, 60, 1)))]
    assert reduce(CASES["suppress"], twice) == {("k", 0, 60, 1, 7): 2}
    assert reduce(CASES["table"], rows('{"id":"k","v":1}', "")) == {}
    assert reduce(CASES["table"], rows("", '{"id":"k","v":1}')) == {("k",): (1, 1)}
    assert reduce(CASES["table"], rows('{"id":"other","v":1}')) == {("k",): ("malformed", 0)}
    sentinel = Row("t", 0, 0, 0, b"end-1", b'{"id":"end-1","v":1}', ())
    assert reduce(CASES["table"], [sentinel]) == {}


def test_should_report_a_value_that_one_side_lacks() -> None:
    verdict = compare({"model": {("a",): 1, ("b",): 2}, "java": {("a",): 1}, "tidemark": {("a",): 1, ("b",): 2}})
    assert (verdict.equal, verdict.different) == (1, 1)
    assert verdict.examples == ["('b',): model 2, java None, tidemark 2"]
    assert compare({"model": {}, "java": {("c",): 0}}).different == 1
