"""Users' processors in both forms: stores, forwarding, punctuation, restarts, and what is said of wrong ones."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.nodes.batches import Batches

from tidemark.errors import InvalidTopology
from tidemark.processors import Punctuate
from tidemark.tasks.nodes.context import Schedule
from tidemark.tasks.nodes.process import ProcessOperator
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Column, Process, StoreKind, StoreSpec

HERE = "tests.tasks.nodes.used_processors"
COLUMNS = (Column("n", "BIGINT"), Column("mean", "DOUBLE"))
X = Column("x", "BIGINT")
STORE = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=COLUMNS)


def a_node(name: str, is_batched: bool = False, store: StoreSpec = STORE) -> Process:
    return Process("PROC", ("in",), COLUMNS, (store,), name if ":" in name else f"{HERE}:{name}", is_batched)


def processing(name: str, is_batched: bool = False, store: StoreSpec = STORE) -> Batches:
    node = a_node(name, is_batched, store)
    return Batches(lambda: ProcessOperator(node), node.stores)


def rows(*given: tuple[str, int, int | None]) -> pa.Table:
    """(key, timestamp, x) in the order of `__seq`; x None is a deleted row."""
    keys, times, xs = zip(*given, strict=True) if given else ((), (), ())
    return pa.table([keys, times, range(len(given)), [x is None for x in xs], xs], rows_schema([X]))


def seen(emitted) -> list[tuple]:
    found = emitted.rows.to_pylist()
    assert [r["__seq"] for r in found] == list(range(len(found)))
    return [(r["__k"], r["__ts"], r["n"]) for r in found]


def test_should_give_records_one_by_one_and_keep_the_order_of_what_is_forwarded():
    node = processing("CountPerKey")
    node.stream_time_ms = 5
    emitted = node.run(rows(("b", 5, 1), ("a", 6, 1), ("b", 7, 1)), newest_ms=7)
    assert emitted.rows.schema == rows_schema(COLUMNS)
    assert seen(emitted) == [("b", 5, 1), ("a", 6, 1), ("b", 7, 2)]


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


def test_should_carry_on_from_the_store_with_a_new_instance():
    node = processing("CountPerKey")
    node.run(rows(("a", 5, 1)), newest_ms=5)
    node.restart()
    assert seen(node.run(rows(("a", 6, 1)), newest_ms=6)) == [("a", 6, 2)]


def test_should_undo_the_stores_of_a_batch_that_is_thrown_away():
    node = processing("CountPerKey")
    node.prepare(rows(("a", 5, 1)), newest_ms=5)
    assert seen(node.run(rows(("a", 5, 1)), newest_ms=5))[0] == ("a", 5, 1)


def test_should_begin_clean_after_a_batch_that_failed_half_way():
    node = processing("CountPerKey")
    with pytest.raises(TypeError):
        node.prepare(rows(("a", 5, 1), ("a", 6, None)).set_column(3, "__deleted", [[False, False]]))
    assert seen(node.run(rows(("a", 6, 1)), newest_ms=6))[0] == ("a", 6, 1)


def test_should_see_in_a_range_what_the_batch_put_before_and_give_copies():
    node = processing("Prefixes")
    node.run(rows(("ab", 1, 1), ("b", 1, 2)))
    emitted = node.run(rows(("aé", 2, 3), ("a", 3, 4), ("?a", 4, 0), ("?", 5, 0)))
    found = [("a", 1, 4), ("ab", 1, 1), ("aé", 1, 3)]
    assert seen(emitted) == [*found, *found, ("b", 1, 2)]


def test_should_take_the_table_that_a_batched_processor_gives_back_and_then_what_it_forwards():
    node = processing("SumInColumns", is_batched=True)
    assert seen(node.run(rows(("a", 5, 1), ("b", 6, 2), ("a", 7, 3)), newest_ms=7)) == [
        ("a", 7, 2), ("b", 6, 1), ("tick", 0, 0),
    ]  # fmt: skip
    emitted = node.run(rows(("a", 8, 1)), newest_ms=8)
    assert emitted.rows.schema.names == rows_schema(COLUMNS).names
    assert emitted.rows.to_pylist() == [
        {"__k": "a", "__ts": 8, "__seq": 0, "__deleted": False, "n": 3, "mean": 5.0},
    ]


def test_should_not_call_a_batched_processor_without_rows():
    assert processing("GivesAList", is_batched=True).run(rows()).rows.num_rows == 0


@pytest.mark.parametrize(
    ("before", "after", "due"),
    [(-1, -1, None), (-1, 0, 0), (-1, 25, 20), (0, 9, None), (0, 10, 10), (9, 10, 10), (10, 19, None), (10, 45, 40)],
)
def test_should_call_back_with_the_newest_multiple_that_stream_time_passed(before, after, due):
    schedule = Schedule(10, Punctuate.STREAM_TIME, print)
    assert schedule.due_ms(BatchTime(before, after, 0), None) == due


@given(st.lists(st.integers(0, 50), max_size=12))
def test_should_neither_lose_nor_repeat_a_multiple_over_batches_and_restarts(steps):
    node, called = processing("Clocked"), []
    for step in steps:
        called += [n for key, _, n in seen(node.run(rows(), newest_ms=max(node.stream_time_ms, 0) + step))]
        node.restart()
    assert called == sorted(set(called))
    assert not called or called[-1] == node.stream_time_ms // 10 * 10


@pytest.mark.parametrize(
    ("last", "now", "due"), [(None, 250, None), (199, 199, None), (199, 200, 200), (150, 420, 400), (200, 299, None)]
)
def test_should_call_back_when_the_clock_passed_a_multiple_since_the_last_batch(last, now, due):
    schedule = Schedule(100, Punctuate.WALL_CLOCK, print)
    assert schedule.due_ms(BatchTime(-1, -1, now), last) == due


def test_should_call_back_by_the_clock_without_any_record():
    node = processing("Clocked")
    node.wall_ms = 150
    assert seen(node.run(rows())) == []
    node.wall_ms = 201
    assert seen(node.run(rows())) == [("wall", 200, 200)]
    assert seen(node.run(rows())) == []


def test_should_show_records_the_stream_time_of_the_batchs_start():
    node = processing("Clocked")
    node.run(rows(("a", 3, 1)), newest_ms=3)
    assert seen(node.run(rows(("a", 9, 1)), newest_ms=9)) == [("a", 9, 3)]


@pytest.mark.parametrize(
    ("name", "is_batched", "message"),
    [
        ("PutsWrongColumn", False, "store 's': no column nn; the columns are n, mean"),
        ("PutsWrongType", False, "store 's': column n is int64"),
        ("GivesAList", True, "gave list; return a pyarrow.Table"),
        ("ForgetsColumns", True, "the table has no column __ts, mean, n"),
        ("GivesNoKeys", True, "rows without __k or __ts"),
    ],
)
def test_should_say_what_a_processor_did_wrong(name, is_batched, message):
    with pytest.raises(InvalidTopology, match=f"PROC: {HERE}:{name}.*{message}"):
        processing(name, is_batched).run(rows(("a", 1, 1)))


def test_should_let_a_processors_error_through_with_a_note_of_node_and_record():
    with pytest.raises(ZeroDivisionError) as raised:
        processing("Fails").run(rows(("a", 1, 5)))
    assert raised.value.__notes__ == [f"PROC: {HERE}:Fails, key 'a', timestamp 1, row {{'x': 5}}"]


@pytest.mark.parametrize(
    ("name", "is_batched", "message"),
    [
        ("CountPerKey", True, "is no ArrowProcessor"),
        ("SumInColumns", False, "is no Processor"),
        ("WantsAnotherStore", False, "store 'another' is not this processor's; it has s"),
    ],
)
def test_should_refuse_a_processor_of_the_other_form_or_with_a_store_it_was_not_given(name, is_batched, message):
    with pytest.raises(InvalidTopology, match=message):
        ProcessOperator(a_node(name, is_batched))


def test_should_refuse_to_read_a_store_before_there_is_a_batch():
    with pytest.raises(RuntimeError, match="outside of process"):
        ProcessOperator(a_node("UsesStoreInInit"))


@pytest.mark.parametrize(
    "store", [StoreSpec("s", StoreKind.KEY_VALUE, None, None), StoreSpec("s", StoreKind.WINDOW, 1, 1, columns=COLUMNS)]
)
def test_should_refuse_a_store_that_holds_no_rows_by_key(store):
    with pytest.raises(InvalidTopology, match="no key-value store of rows"):
        ProcessOperator(a_node("CountPerKey", store=store))
