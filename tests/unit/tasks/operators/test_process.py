"""Users' processors in both forms: stores, forwarding, punctuation, restarts, and the messages about wrong ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batches import Batches
from tests.support.used_processors import ForwardsForACaller

from tidemark.errors import ExitCode, InvalidTopology, StoreFailed, UserCodeFailed
from tidemark.processors import Punctuate
from tidemark.stream_times import LATEST_TIMESTAMP_MS
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.operators.context import Schedule, TaskContext
from tidemark.tasks.operators.process import ProcessOperator
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Column, Process, StoreKind, StoreSpec

HERE = "tests.support.used_processors"
COLUMNS = (Column("n", "BIGINT"), Column("mean", "DOUBLE"))
X = Column("x", "BIGINT")
STORE = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=COLUMNS)


OPENED_MS = 1_050
"""The clock when a processor's task is opened: its wall-clock schedules begin here."""


def a_node(name: str, is_batched: bool = False, store: StoreSpec = STORE, keeps_key: bool = False) -> Process:
    path = name if ":" in name else f"{HERE}:{name}"
    return Process("PROC", ("in",), COLUMNS, (store,), path, is_batched, keeps_key)


def processing(
    name: str,
    is_batched: bool = False,
    store: StoreSpec = STORE,
    keeps_key: bool = False,
    needs_positions: bool = False,
) -> Batches:
    node = a_node(name, is_batched, store, keeps_key)
    batches = Batches(lambda: ProcessOperator(node, OPENED_MS, needs_positions), node.stores)
    batches.wall_ms = OPENED_MS
    return batches


def rows(*given: tuple[str | None, int, int | None]) -> pa.Table:
    """(key, timestamp, x) in the order of `__seq`; x None is a deleted row."""
    keys, times, xs = zip(*given, strict=True) if given else ((), (), ())
    return pa.table([keys, times, range(len(given)), [x is None for x in xs], xs], rows_schema([X]))


def seen(emitted) -> list[tuple]:
    found = emitted.rows.to_pylist()
    assert [r["__seq"] for r in found] == sorted(r["__seq"] for r in found)
    return [(r["__k"], r["__ts"], r["n"]) for r in found]


def test_should_give_records_one_by_one_and_keep_the_order_of_what_is_forwarded():
    node = processing("CountPerKey")
    node.stream_time_ms = 5
    emitted = node.run(rows(("b", 5, 1), ("a", 6, 1), ("b", 7, 1)), newest_ms=7)
    assert emitted.rows.schema == rows_schema(COLUMNS)
    assert seen(emitted) == [("b", 5, 1), ("a", 6, 1), ("b", 7, 2)]


def test_should_forward_what_a_reused_dictionary_holds_at_each_call():
    assert seen(processing("ForwardsOneDictionaryAgain").run(rows(("a", 5, 3)))) == [
        ("a", 5, 0),
        ("a", 5, 1),
        ("a", 5, 2),
    ]


def test_should_give_a_deletion_as_a_record_without_row_and_forward_deletions():
    node = processing("CountPerKey")
    node.run(rows(("a", 5, 1)), newest_ms=5)
    emitted = node.run(rows(("a", 6, None), ("a", 7, 1)), newest_ms=7).rows.to_pylist()
    assert [(r["__deleted"], r["n"]) for r in emitted] == [(True, None), (False, 1)]
    assert node.contents("s") == {b"a": b'{"n":1,"mean":1}'}


def test_should_read_floats_back_as_floats_from_the_store():
    node = processing("CountPerKey")
    node.run(rows(("a", 5, 1)), newest_ms=5)
    assert node.run(rows(), newest_ms=10).rows["mean"].to_pylist() == [1.0]


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT"])
def test_should_read_a_negative_zero_back_after_its_batch_as_within_it(kind):
    node = processing("PutsNegativeZero", store=replace(STORE, columns=(Column("n", "BIGINT"), Column("mean", kind))))
    within = node.run(rows(("a", 5, 1), ("a", 6, 1))).rows["mean"].to_pylist()
    after = node.run(rows(("a", 7, 1))).rows["mean"].to_pylist()
    assert [repr(mean) for mean in (*within, *after)] == ["-0.0", "-0.0"]


def test_should_continue_from_the_store_with_a_new_processor():
    node = processing("CountPerKey")
    node.run(rows(("a", 5, 1)), newest_ms=5)
    node.restart()
    assert seen(node.run(rows(("a", 6, 1)), newest_ms=6)) == [("a", 6, 2)]


def test_should_undo_the_stores_of_a_discarded_batch():
    node = processing("CountPerKey")
    node.prepare(rows(("a", 5, 1)), newest_ms=5)
    assert seen(node.run(rows(("a", 5, 1)), newest_ms=5))[0] == ("a", 5, 1)


def test_should_delete_a_key_when_none_is_put():
    node = processing("PutsNothingForZero")
    node.run(rows(("a", 1, 1), ("b", 2, 2)))
    assert not node.run(rows(("a", 3, 0))).refused
    assert stored(node) == {"b": 2}


def test_should_begin_clean_after_a_batch_that_failed_halfway():
    node = processing("PutsWrongColumn")
    for _ in range(2):
        with pytest.raises(InvalidTopology):
            node.prepare(rows(("a", 5, 1), ("a", 6, 1)))
    assert node.contents("s") == {}


def summary(emitted):
    return [(r.node, r.sequence, r.key, r.row, r.error) for r in emitted.refused]


def stored(node):
    return {key.decode(): json.loads(value)["n"] for key, value in node.contents("s").items()}


@pytest.mark.parametrize("odd", [1, 3, 5])
def test_should_refuse_a_record_when_the_processor_raises_and_undo_its_changes(odd):
    node = processing("RefusesOdd")
    node.run(rows(("a", 1, 8)))
    emitted = node.run(rows(("a", 2, 2), ("a", 3, odd), ("b", 4, odd), ("a", 5, 4)))
    assert seen(emitted) == [("a", 2, 10), ("a", 5, 14)]
    error = f"ValueError: {odd} is odd"
    assert summary(emitted) == [("PROC", 1, "a", {"x": odd}, error), ("PROC", 2, "b", {"x": odd}, error)]
    assert "in process\n" in emitted.refused[0].traceback
    assert stored(node) == {"a": 14, "only by 8": 8, "only by 2": 2, "only by 4": 4}
    # Nothing is logged for what was undone.
    assert set(node.written["s"]) == {b"a", b"only by 2", b"only by 4"}


def test_should_refuse_a_record_as_it_was_read_when_the_processor_changed_its_row():
    emitted = processing("ChangesItsRow").run(rows(("a", 1, 7), ("b", 2, 8)))
    assert [row.row for row in emitted.refused] == [{"x": 7}, {"x": 8}]


def test_should_refuse_a_record_when_the_error_has_no_text():
    emitted = processing("RaisesWithoutText").run(rows(("a", 1, 7)))
    assert [row.error for row in emitted.refused] == [
        "ErrorWithoutText: (its text is unknown, because its __str__ raised)"
    ]


@pytest.mark.parametrize("name", ["RefusesOdd", "RuinsOdd"])
@given(batches=st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=12), max_size=4))
def test_should_hold_the_same_state_as_without_the_refused_records(name, batches):
    with_odd, without = processing(name), processing(name)
    for batch in batches:
        given_rows = [(key, 1, x) for key, x in batch]
        emitted = with_odd.run(rows(*given_rows))
        even = [row for row in given_rows if row[2] % 2 == 0]
        assert [r["n"] for r in emitted.rows.to_pylist()] == [r["n"] for r in without.run(rows(*even)).rows.to_pylist()]
        assert len(emitted.refused) == len(given_rows) - len(even)
        assert with_odd.written == without.written
    assert with_odd.contents("s") == without.contents("s")


RUINED = {
    1: "column n is int64 and cannot hold a value",
    3: "store 's': column n is int64 and cannot hold a value",
    5: "store 's': key None is NoneType; keys are str",
    7: f"a row with timestamp {2**70}; give one in epoch milliseconds, from 0 to {LATEST_TIMESTAMP_MS}",
    9: "forward() with key 9; keys are str",
    11: "a row with timestamp -70000; give one in epoch milliseconds, from 0",
}


@pytest.mark.parametrize("odd", RUINED)
def test_should_refuse_a_record_when_the_processors_output_is_invalid(odd):
    node = processing("RuinsOdd")
    emitted = node.run(rows(("a", 1, 2), ("a", 2, odd), ("b", 3, 4), ("a", 4, 6)))
    assert seen(emitted) == [("a", 1, 2), ("b", 3, 4), ("a", 4, 8)]
    ((*where, error),) = summary(emitted)
    assert (where, error.split(":")[0], RUINED[odd] in error) == (["PROC", 1, "a", {"x": odd}], "UnusableValue", True)
    assert stored(node) == {"a": 8, "b": 4, "only by 2": 2, "only by 4": 4, "only by 6": 6}


@pytest.mark.parametrize("odd", [1, 3, 5, 7, 9, 11, 13])
def test_should_find_the_rows_for_which_a_batched_processors_output_is_invalid(odd):
    node = processing("RuinsOddInColumns", is_batched=True)
    emitted = node.run(rows(("a", 2, 2), ("a", 3, odd), ("b", 4, 4), ("a", 6, 6)))
    assert [(row[1], row[2]) for row in summary(emitted)] == [(1, "a")]
    assert stored(node) == {"a 2": 2, "b 4": 4, "a 6": 6}
    assert sorted(seen(emitted)) == sorted(
        [("a", -1, 2), ("b", -1, 4), ("a", -1, 6), ("a", 2, 2), ("b", 4, 4), ("a", 6, 6)]
    )


@pytest.mark.parametrize("batches", [[[1, 2, 1]], [[1], [2], [1]], [[1, 2], [1]]])
def test_should_hold_the_same_single_precision_number_before_and_after_a_batch_ends(batches):
    store = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=(Column("f", "FLOAT"),))
    node = processing("KeepsTenths", store=store)
    emitted = [node.run(rows(*(("a", 1, x) for x in batch))).rows for batch in batches]
    one, two = float(np.float32(0.1)), float(np.float32(0.2))
    assert [value for found in emitted for value in found["mean"].to_pylist()] == [None, one, one, two, two, one]


@pytest.mark.parametrize(
    ("forwarded_ms", "is_refused"),
    [(-1, True), (0, False), (LATEST_TIMESTAMP_MS, False), (LATEST_TIMESTAMP_MS + 1, True)],
)
def test_should_refuse_a_time_that_no_record_may_have(forwarded_ms, is_refused):
    for name, is_batched in (("ForwardsAtX", False), ("GivesAtX", True)):
        emitted = processing(name, is_batched=is_batched).run(rows(("a", 50, forwarded_ms)), newest_ms=50)
        assert seen(emitted) == ([] if is_refused else [("a", forwarded_ms, 1)])
        assert len(emitted.refused) == is_refused


@pytest.mark.parametrize("batches", [[[1, 1]], [[1], [1]]])
@pytest.mark.parametrize(
    ("name", "kind", "form"),
    [
        ("WritesTheNumberBefore", "DOUBLE", "1.0"),
        ("WritesTheNumberBefore", "BIGINT", "1"),
        ("WritesTheQuotientBefore", "DOUBLE", "1.0"),
        ("WritesTheQuotientBefore", "BIGINT", "1"),
        ("WritesTheQuotientBefore", "TINYINT", "1"),
        ("WritesTheDecimalBefore", "BIGINT", "1"),
        ("WritesTheBytesBefore", "STRING", "1"),
    ],
)
def test_should_give_a_value_in_the_same_form_before_and_after_a_batch_ends(name, kind, form, batches):
    store = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=(Column("d", kind),))
    node = processing(name, store=store)
    emitted = [node.run(rows(*(("a", 1, x) for x in batch))).rows for batch in batches]
    assert [key for found in emitted for key in found["__k"].to_pylist()] == ["None", form]


@pytest.mark.parametrize("batches", [[[1, 2]], [[1], [2]]])
def test_should_refuse_a_record_with_a_row_that_its_store_cannot_hold_for_any_division_into_batches(batches):
    store = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=(Column("d", "BIGINT"),))
    node = processing("WritesTheHalfBefore", store=store)
    refused = [row.row["x"] for batch in batches for row in node.run(rows(*(("a", 1, x) for x in batch))).refused]
    assert refused == [1]
    assert node.contents("s") == {b"a": b'{"d":1}'}


def test_should_end_with_a_refusal_when_the_output_of_a_callback_is_invalid():
    node = processing("ForwardsTextInACallback")
    with pytest.raises(UserCodeFailed, match="the callback by stream_time at time 5 raised UnusableValue;") as raised:
        node.run(rows(("a", 5, 1)), newest_ms=5)
    assert "column n is int64" in raised.value.records
    assert node.contents("s") == {}


def test_should_find_the_rows_for_which_a_batched_processor_raises():
    node = processing("RefusesOddInColumns", is_batched=True)
    emitted = node.run(rows(("a", 1, 2), ("a", 2, 3), ("b", 3, 4), ("a", 4, 6), ("c", 5, 1)))
    assert [(row[1], row[2]) for row in summary(emitted)] == [(1, "a"), (4, "c")]
    assert stored(node) == {"a": 8, "b": 4}
    assert sorted(seen(emitted)) == sorted(
        [("a", 1, 2), ("b", 3, 4), ("a", 4, 6), ("a", -1, 2), ("b", -1, 4), ("a", -1, 8)]
    )


@pytest.mark.parametrize(("name", "is_batched"), [("LeavesAtOdd", False), ("LeavesAtOddInColumns", True)])
def test_should_refuse_a_record_when_the_processor_calls_sys_exit(name, is_batched):
    node = processing(name, is_batched)
    emitted = node.run(rows(("a", 1, 2), ("a", 2, 3), ("b", 3, 4)))
    assert summary(emitted) == [("PROC", 1, "a", {"x": 3}, "SystemExit: 3")]
    assert {"a": 2, "b": 4}.items() <= stored(node).items()


def test_should_limit_the_message_about_refused_records():
    emitted = processing("RefusesOdd").run(rows(*(("a", 1, 1) for _ in range(1500))))
    assert len(emitted.refused) == 1500
    assert sum(row.traceback is not None for row in emitted.refused) == 1000
    assert max(len((row.traceback or "").encode()) for row in emitted.refused) <= 4096


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("FailsInACallback", "ZeroDivisionError", "ZeroDivisionError: division by zero"),
        ("LeavesInACallback", "SystemExit", "SystemExit: 3"),
    ],
)
def test_should_end_with_a_refusal_when_a_callback_raises(name, error, text):
    """The text of the error may quote a row, so it is not in the message, which everybody sees."""
    node = processing(name)
    with pytest.raises(UserCodeFailed, match=f"PROC: .*callback by stream_time at time 5 raised {error};") as raised:
        node.run(rows(("a", 5, 1)), newest_ms=5)
    assert (raised.value.exit_code, raised.value.records) == (30, text)


@pytest.mark.parametrize(
    ("name", "is_batched", "said", "text"),
    [
        ("FailsInInit", False, "init() raised FileNotFoundError", "FileNotFoundError: rates.csv"),
        ("FailsInInitInColumns", True, "init() raised FileNotFoundError", "FileNotFoundError: rates.csv"),
        ("LeavesInInit", False, "init() raised SystemExit", "SystemExit: 3"),
        (
            "RaisesWithoutTextInInit",
            False,
            "init() raised ErrorWithoutText",
            "ErrorWithoutText: (its text is unknown, because its __str__ raised)",
        ),
        (
            "FailsWhenItIsMade",
            False,
            "creating it raised ZeroDivisionError",
            "ZeroDivisionError: division by zero",
        ),
    ],
)
def test_should_end_with_a_refusal_when_a_processor_cannot_be_created(name, is_batched, said, text):
    """The text of the error may quote what the code has read, so it is not in the message, which everybody sees."""
    message = f"PROC: {HERE}:{name}: {said}; no record is to blame"
    with pytest.raises(UserCodeFailed, match=re.escape(message)) as raised:
        ProcessOperator(a_node(name, is_batched), OPENED_MS)
    assert (raised.value.exit_code, raised.value.records) == (ExitCode.REFUSED, text)
    assert raised.value.__cause__ is not None


def test_should_say_where_the_memory_ran_out_without_the_record():
    """The note ends the traceback, which the log of the stream's task and the alert show."""
    with pytest.raises(MemoryError) as raised:
        processing("RunsOutOfMemory").run(rows(("Jane Doe", 5, 41)))
    assert raised.value.__notes__ == [f"PROC: {HERE}:RunsOutOfMemory, timestamp 5"]


def test_should_log_an_error_of_close_without_what_it_may_quote(caplog):
    """The lines of a warning are copied to the log of the stream's task, but those with records."""
    ProcessOperator(a_node("CannotBeClosed"), OPENED_MS).close()
    warning, records = caplog.records[-1].getMessage().split("\n")
    assert warning == f"PROC: {HERE}:CannotBeClosed: close() raised SystemExit"
    assert records.startswith("tidemark records: Traceback ")
    assert records.endswith(" SystemExit: 3")
    assert caplog.records[-1].exc_info is None


def test_should_allow_a_retry_when_a_processor_finds_the_disk_full():
    with pytest.raises(StoreFailed) as raised:
        ProcessOperator(a_node("FindsNoRoomInInit"), OPENED_MS)
    assert raised.value.exit_code == ExitCode.RETRY


def test_should_return_copies_in_a_range_that_include_earlier_writes_of_the_batch():
    node = processing("Prefixes")
    node.run(rows(("ab", 1, 1), ("b", 1, 2)))
    emitted = node.run(rows(("aé", 2, 3), ("a", 3, 4), ("?a", 4, 0), ("?", 5, 0)))
    found = [("a", 1, 4), ("ab", 1, 1), ("aé", 1, 3)]
    assert seen(emitted) == [*found, *found, ("b", 1, 2)]


def test_should_emit_the_table_a_batched_processor_returns_and_then_what_it_forwards():
    node = processing("SumInColumns", is_batched=True)
    assert seen(node.run(rows(("a", 5, 1), ("b", 6, 2), ("a", 7, 3)), newest_ms=7)) == [
        ("a", 7, 2), ("b", 6, 1), ("tick", 7, 7),
    ]  # fmt: skip
    emitted = node.run(rows(("a", 8, 1)), newest_ms=8)
    assert emitted.rows.schema.names == rows_schema(COLUMNS).names
    assert emitted.rows.to_pylist() == [
        {"__k": "a", "__ts": 8, "__seq": 0, "__deleted": False, "n": 3, "mean": 5.0},
    ]


def test_should_not_call_a_batched_processor_without_rows():
    assert processing("GivesAList", is_batched=True).run(rows()).rows.num_rows == 0


@pytest.mark.parametrize(
    ("before", "after", "is_due"),
    [(-1, -1, False), (-1, 0, True), (-1, 25, True), (0, 9, False), (0, 10, True), (9, 10, True), (10, 19, False),
     (10, 45, True)],
)  # fmt: skip
def test_should_call_back_when_stream_time_passes_a_multiple(before, after, is_due):
    assert (Schedule(10, Punctuate.STREAM_TIME, print, 0).next_ms(before) <= after) == is_due


def test_should_call_back_by_stream_time_as_kafka_streams_does_with_a_commit_after_every_record():
    # Kafka Streams' TopologyTestDriver prints the same calls for these records: with the stream time, not the multiple,
    # and of two schedules the one that was due first.
    node, called = processing("TwoSchedules"), []
    for timestamp in (3, 9, 12, 5, 45, 46, 50):
        found = seen(node.run(rows(("k", timestamp, 1)), newest_ms=timestamp))
        called.append([(key, at) for key, at, _ in found])
    assert called == [
        [("k", 3), ("every 10", 3), ("every 15", 3)], [("k", 9)], [("k", 12), ("every 10", 12)], [("k", 5)],
        [("k", 45), ("every 15", 45), ("every 10", 45)], [("k", 46)], [("k", 50), ("every 10", 50)],
    ]  # fmt: skip


def test_should_call_back_once_for_all_multiples_that_a_batch_passes():
    node = processing("TwoSchedules")
    node.run(rows(("k", 3, 1)), newest_ms=3)
    found = seen(node.run(rows(("k", 12, 1), ("k", 45, 1)), newest_ms=45))
    assert [(key, at) for key, at, _ in found] == [("k", 12), ("k", 45), ("every 10", 45), ("every 15", 45)]


def test_should_call_back_by_wall_clock_as_kafka_streams_does():
    # Opened at 1050 with a schedule of 100 ms; the steps and the calls are those of Kafka Streams' TopologyTestDriver.
    node, called = processing("Clocked"), []
    for by in (99, 1, 50, 270, 29, 1, 100):
        node.wall_ms += by
        called.append([at for _, at, _ in seen(node.run(rows()))])
    assert called == [[], [1150], [], [1470], [], [], [1600]]


@given(st.lists(st.integers(0, 50), max_size=12))
def test_should_neither_lose_nor_repeat_a_call_by_stream_time_over_batches_and_restarts(steps):
    node, called, passed = processing("Clocked"), [], []
    for step in steps:
        before = node.stream_time_ms
        called += [n for key, _, n in seen(node.run(rows(), newest_ms=max(before, 0) + step))]
        if before // 10 != node.stream_time_ms // 10:
            passed.append(node.stream_time_ms)
        node.restart()
    assert called == passed


def test_should_call_back_by_wall_clock_without_any_record():
    node = processing("Clocked")
    node.wall_ms = OPENED_MS + 99
    assert seen(node.run(rows())) == []
    node.wall_ms = OPENED_MS + 100
    assert seen(node.run(rows())) == [("wall", node.wall_ms, node.wall_ms)]
    assert seen(node.run(rows())) == []


def test_should_call_back_again_by_wall_clock_after_a_discarded_batch():
    node = processing("Clocked")
    node.wall_ms = OPENED_MS + 130
    assert seen(node.prepare(rows())) == [("wall", node.wall_ms, node.wall_ms)]
    node.wall_ms += 5
    assert seen(node.run(rows())) == [("wall", node.wall_ms, node.wall_ms)]
    assert seen(node.run(rows())) == []


def test_should_report_when_the_wall_clock_would_call_back_next():
    operator = ProcessOperator(a_node("Clocked"), OPENED_MS)
    assert not operator.is_due(OPENED_MS + 99)
    assert operator.is_due(OPENED_MS + 100)
    operator.committed(OPENED_MS + 130)
    assert not operator.is_due(OPENED_MS + 199)
    assert operator.is_due(OPENED_MS + 200)
    assert not ProcessOperator(a_node("CountPerKey"), OPENED_MS).is_due(OPENED_MS + 1_000_000)


def test_should_call_back_by_wall_clock_when_the_time_is_named_by_its_text():
    node = processing("ClockedByText")
    node.wall_ms = OPENED_MS + 100
    assert seen(node.run(rows())) == [("wall", node.wall_ms, node.wall_ms)]


def test_should_refuse_a_schedule_by_an_unknown_time():
    with pytest.raises(InvalidTopology, match=r"PROC: .*schedule\(\) by 'sun'; give Punctuate"):
        processing("ClockedByAnUnknownTime")


def test_should_refuse_to_schedule_while_a_batch_is_processed():
    with pytest.raises(InvalidTopology, match=r"PROC: .*schedule.*in init"):
        processing("SchedulesLate").run(rows(("a", 1, 1)))


def test_should_show_each_record_the_stream_time_as_kafka_streams_does():
    node = processing("Clocked")
    node.run(rows(("a", 3, 1)), newest_ms=3)
    assert seen(node.run(rows(("a", 9, 1)), newest_ms=9)) == [("a", 9, 9)]
    assert [n for _, _, n in seen(node.run(rows(("a", 5, 1), ("a", 8, 1)), newest_ms=9))] == [9, 9]
    # A later record of the batch does not make the ones before it look late.
    backlog = node.run(rows(("a", 11, 1), ("a", 10, 1), ("a", 19, 1)), newest_ms=19)
    assert [n for _, _, n in seen(backlog)][:3] == [11, 11, 19]


def test_should_not_show_a_stream_time_later_than_the_tasks():
    node = processing("Clocked")
    assert [n for _, _, n in seen(node.run(rows(("a", 500, 1)), newest_ms=3))][:1] == [3]


def test_should_pass_records_without_key_to_a_processor_and_forward_them():
    node = processing("PassesOn")
    assert seen(node.run(rows((None, 5, 7), ("a", 6, 8)), newest_ms=6)) == [(None, 5, 7), ("a", 6, 8)]


def test_should_accept_rows_without_key_from_a_batched_processor():
    emitted = processing("GivesNoKeys", is_batched=True).run(rows((None, 1, 1), ("a", 2, 2)))
    assert seen(emitted) == [(None, 1, 1), (None, 2, 2)]


def test_should_refuse_a_record_when_a_store_is_asked_for_its_null_key():
    emitted = processing("CountPerKey").run(rows((None, 5, 7), ("a", 6, 1)), newest_ms=6)
    assert [(row[1], row[4].split("store ")[1]) for row in summary(emitted)] == [
        (0, "'s': key None is NoneType; keys are str")
    ]
    assert seen(emitted)[0] == ("a", 6, 1)


def test_should_keep_the_position_of_each_row_that_a_batched_processor_returns():
    emitted = processing("KeepsPositions", is_batched=True).run(rows(("a", 1, 7), ("b", 2, 9), ("a", 3, 8)))
    assert emitted.rows["__seq"].to_pylist() == [0, 2]
    emitted = processing("PassesOnInColumns", is_batched=True).run(rows(("a", 1, 7), ("b", 2, 9)))
    assert emitted.rows["__seq"].to_pylist() == [1, 1]


@pytest.mark.parametrize("name", ["ReversesPositions", "InventsPositions", "ForgetsPositions"])
def test_should_refuse_positions_that_are_not_the_batchs_in_order(name):
    given = rows(("a", 1, 7), ("b", 2, 8))
    with pytest.raises(InvalidTopology, match=f"PROC: {HERE}:{name}: __seq of the table is not that of the batch's"):
        processing(name, is_batched=True, needs_positions=True).run(given)
    # Elsewhere they do not matter, and a table that was sorted by something else is no fault.
    assert set(processing(name, is_batched=True).run(given).rows["__seq"].to_pylist()) == {1}


@pytest.mark.parametrize("needs_positions", [True, False])
def test_should_forward_from_a_batched_processor_with_the_position_of_the_record(needs_positions):
    node = processing("ForwardsWithPositions", is_batched=True, needs_positions=needs_positions)
    emitted = node.run(rows(("a", 1, 7), ("b", 2, 9), ("a", 3, 8)), newest_ms=3).rows
    assert list(zip(emitted["__seq"].to_pylist(), emitted["n"].to_pylist(), strict=True)) == [
        (0, 7), (0, 70), (1, 90), (2, 8), (2, 80)
    ]  # fmt: skip


def test_should_refuse_rows_that_a_batched_processor_forwards_without_a_position_that_is_needed():
    given = rows(("a", 1, 7), ("b", 2, 8))
    with pytest.raises(InvalidTopology, match=f"PROC: {HERE}:ForwardsWithoutPositions: forward\\(\\) without sequence"):
        processing("ForwardsWithoutPositions", is_batched=True, needs_positions=True).run(given)
    # Where nothing needs it, they count as results of the last record.
    emitted = processing("ForwardsWithoutPositions", is_batched=True).run(given, newest_ms=2).rows
    assert list(zip(emitted["__seq"].to_pylist(), emitted["n"].to_pylist(), strict=True)) == [
        (0, 7), (1, 8), (1, 80), (1, 70)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "is_batched", "message"),
    [
        ("ForwardsWithUnknownPositions", True, "sequence=101, which is not the __seq of a row of the batch"),
        ("ForwardsWithTextAsPosition", True, "sequence='1', which is str; give an int"),
        ("ForwardsWithAnArrowPosition", True, "sequence=<pyarrow.Int64Scalar: 1>, which is Int64Scalar; give an int"),
        ("ForwardsWithEarlierPositions", True, "sequence=-99, which is not the __seq of a row of the batch"),
        ("ForwardsOneRecordWithPosition", False, "sequence=0; only ArrowProcessor.process chooses the record"),
        ("ForwardsWithPositionInACallback", True, "sequence=0; only ArrowProcessor.process chooses the record"),
    ],
)
def test_should_refuse_a_position_that_no_row_of_the_batch_has(name, is_batched, message):
    with pytest.raises(InvalidTopology, match=f"PROC: {HERE}:{name}: forward\\(\\) with {message}"):
        processing(name, is_batched).run(rows(("a", 1, 7), ("b", 20, 8)), newest_ms=20)


def test_should_find_the_position_of_a_forwarded_row_without_a_search_through_the_batch():
    class Unscanned(np.ndarray):
        def __contains__(self, place):
            raise AssertionError("one forward reads all positions of the batch")

    context = TaskContext(a_node("PassesOn", is_batched=True), OPENED_MS, needs_positions=True)
    context.begin({}, ["a"], BatchTime(0, 5, OPENED_MS), is_careful=False)
    context.take_batch(np.array([3, 5, 9], dtype=np.int64).view(Unscanned))
    for place in (3, np.int64(5), 9):
        context.forward("a", {"n": 1}, 5, sequence=place)
    for place in (2, 4, 8, 10, 2**70):
        with pytest.raises(InvalidTopology, match=f"sequence={place}, which is not the __seq of a row of the batch"):
            context.forward("a", {"n": 1}, 5, sequence=place)


def test_should_need_no_positions_of_a_table_without_rows():
    emitted = processing("ReturnsNothingInLists", is_batched=True, needs_positions=True).run(rows(("a", 1, 7)))
    assert emitted.rows.num_rows == 0


@pytest.mark.parametrize("name", ["DeletesZeros", "DeletesZerosByNumbers"])
def test_should_read_which_rows_a_batched_processor_deletes(name):
    emitted = processing(name, is_batched=True).run(rows(("a", 1, 7), ("b", 2, 0), ("c", 3, None)))
    assert emitted.rows.schema.field("__deleted").type == pa.bool_()
    assert emitted.rows["__deleted"].to_pylist() == [False, True, False]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("PutsManyUnderItsKeys", "1 of 1 keys are null"),
        ("PutsManyUnderItsKeysInAList", "key None is NoneType; keys are str"),
        ("GetsManyOfItsKeys", "1 of 1 keys are null"),
    ],
)
def test_should_refuse_a_record_without_key_when_its_key_is_among_many(name, error):
    node = processing(name, is_batched=True)
    emitted = node.run(rows((None, 5, 7), ("a", 6, 1)), newest_ms=6)
    assert [(row[1], error in row[4]) for row in summary(emitted)] == [(0, True)]
    assert stored(node) == {"a": 1}


def test_should_let_a_processor_forward_under_the_key_that_it_keeps():
    node = processing("PassesOn", keeps_key=True)
    assert seen(node.run(rows((None, 5, 7), ("a", 6, 8)), newest_ms=6)) == [(None, 5, 7), ("a", 6, 8)]
    batched = processing("PassesOnInColumns", is_batched=True, keeps_key=True)
    assert seen(batched.run(rows((None, 5, 7), ("b", 6, 8)), newest_ms=6)) == [(None, 5, 7), ("b", 6, 8)]


@pytest.mark.parametrize(
    ("name", "is_batched", "message", "records"),
    [
        ("ForwardsAnotherKey", False, "while it processes a record", "key 'another' of a record with key 'a'"),
        ("CountPerKey", False, "in a callback", "key 'held:a'"),
        ("ForwardsAnotherKeyInColumns", True, "which none of the batch's records has", "key 'another'"),
        ("GivesAnotherKey", True, "which none of the batch's records has", "key 'another'"),
    ],
)
def test_should_refuse_another_key_of_a_processor_that_promises_to_keep_it(name, is_batched, message, records):
    with pytest.raises(InvalidTopology, match=f"PROC: {HERE}:{name}.*{message}.*keeps_key=True") as refused:
        processing(name, is_batched, keeps_key=True).run(rows(("a", 50, 1)), newest_ms=50)
    assert refused.value.records == records
    assert "another'" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "is_batched", "message"),
    [
        ("PutsWrongColumn", False, "store 's': no column nn; the columns are n, mean"),
        ("GivesAList", True, "returned list; return a pyarrow.Table"),
        ("ForgetsColumns", True, "the table has no column __ts, mean, n"),
        ("DeletesByStructs", True, "the table's columns are not n: int64\nmean: double: Unsupported cast"),
    ],
)
def test_should_explain_what_a_processor_did_wrong(name, is_batched, message):
    with pytest.raises(InvalidTopology, match=f"PROC: {HERE}:{name}.*{message}"):
        processing(name, is_batched).run(rows(("a", 1, 1)))


@pytest.mark.parametrize(
    ("name", "is_batched", "x", "message"),
    [
        ("PassesOn", False, 1, r"forward\(\) by a processor that declares no columns"),
        ("CountPerKey", False, None, r"forward\(\) by a processor that declares no columns"),
        ("PassesOnInColumns", True, 1, "returned a table, but declares no columns; return None"),
    ],
)
def test_should_refuse_what_a_processor_forwards_that_declares_no_columns(name, is_batched, x, message):
    node = replace(a_node(name, is_batched), columns=())
    batches = Batches(lambda: ProcessOperator(node, OPENED_MS), node.stores)
    with pytest.raises(InvalidTopology, match=f"PROC: {HERE}:{name}.*{message}.*emits="):
        batches.run(rows(("a", 1, x)))


@pytest.mark.parametrize(
    ("name", "is_batched", "message"),
    [
        ("CountPerKey", True, "is not a subclass of ArrowProcessor"),
        ("SumInColumns", False, "is not a subclass of Processor"),
        ("WantsAnotherStore", False, "store 'another' is not this processor's; it has s"),
    ],
)
def test_should_refuse_a_processor_of_the_other_form_or_with_a_store_it_was_not_given(name, is_batched, message):
    with pytest.raises(InvalidTopology, match=message):
        ProcessOperator(a_node(name, is_batched), OPENED_MS)


@pytest.mark.parametrize("name", ["UsesStoreInInit", "RangesInInit"])
def test_should_refuse_to_read_a_store_before_there_is_a_batch(name):
    with pytest.raises(InvalidTopology, match="outside of process"):
        ProcessOperator(a_node(name), OPENED_MS)


def test_should_refuse_to_forward_while_there_is_no_batch():
    with pytest.raises(InvalidTopology, match=r"PROC: .*: forward\(\) outside of process"):
        ProcessOperator(a_node("ForwardsInInit"), OPENED_MS)
    node = processing("ForwardsForACaller")
    for _ in range(2):
        with pytest.raises(InvalidTopology, match=r"forward\(\) outside of process"):
            ForwardsForACaller.forward("a", {"n": 2})
        assert seen(node.run(rows(("a", 5, 1)))) == [("a", 5, 1)]


@pytest.mark.parametrize(
    "store", [StoreSpec("s", StoreKind.KEY_VALUE, None, None), StoreSpec("s", StoreKind.WINDOW, 1, 1, columns=COLUMNS)]
)
def test_should_refuse_a_store_that_holds_no_rows_by_key(store):
    with pytest.raises(InvalidTopology, match="not a key-value store of rows"):
        ProcessOperator(a_node("CountPerKey", store=store), OPENED_MS)
