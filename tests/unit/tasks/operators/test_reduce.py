"""Aggregation of rows by users' functions: order, windows, late rows, deletions, and the messages about wrong functions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batches import Batches

from tidemark.errors import InvalidTopology
from tidemark.tasks.operators.reduce import ReduceOperator
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Column, Reduce, StoreKind, StoreSpec, Window

HERE = "tests.support.reducers"
X = Column("x", "BIGINT")
ID = Column("id", "STRING")
STARTS = (Column("window_start", "BIGINT"), Column("window_end", "BIGINT"))


def largest(function: str = "keep_larger", window: Window | None = None) -> Batches:
    kind = StoreKind.WINDOW if window else StoreKind.KEY_VALUE
    store = StoreSpec("s", kind, 100 if window else None, 20 if window else None, columns=(X,))
    columns = (ID, *STARTS, X) if window else (ID, X)
    node = Reduce("RED", ("in",), columns, (store,), f"{HERE}:{function}", None, window, "id")
    return Batches(lambda: ReduceOperator(node), node.stores)


def appending() -> Batches:
    seen = Column("seen", "STRING")
    store = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=(seen,))
    node = Reduce("RED", ("in",), (ID, seen), (store,), f"{HERE}:append", f"{HERE}:nothing_seen", None, "id")
    return Batches(lambda: ReduceOperator(node), node.stores)


def rows(*given: tuple[str, int, int | None]) -> pa.Table:
    """(key, timestamp, x) in the order of `__seq`; x None is a deleted row."""
    keys, times, xs = zip(*given, strict=True) if given else ((), (), ())
    return pa.table([keys, times, range(len(given)), [x is None for x in xs], xs], rows_schema([X]))


def test_should_use_the_first_row_of_a_key_as_its_value():
    emitted = largest().run(rows(("a", 5, 3)), newest_ms=5)
    assert emitted.rows.to_pylist() == [{"__k": "a", "__ts": 5, "__seq": 0, "__deleted": False, "id": "a", "x": 3}]


def test_should_say_where_the_memory_ran_out_without_the_record():
    """The note ends the traceback, which the log of the stream's task and the alert show."""
    with pytest.raises(MemoryError) as raised:
        largest("runs_out_of_memory").run(rows(("Jane Doe", 5, 41), ("Jane Doe", 6, 42)))
    assert raised.value.__notes__ == [f"RED: {HERE}:runs_out_of_memory, timestamp 6"]


@pytest.mark.parametrize("batches", [[[1, 2]], [[1], [2]]])
def test_should_give_the_function_the_same_single_precision_number_for_any_division_into_batches(batches):
    columns = (Column("f", "FLOAT"), Column("before", "DOUBLE"))
    store = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=columns)
    reduce = Reduce("RED", ("in",), (ID, *columns), (store,), f"{HERE}:last_two", f"{HERE}:a_third", None, "id")
    node = Batches(lambda: ReduceOperator(reduce), reduce.stores)
    for batch in batches:
        (emitted,) = node.run(rows(*(("a", 1, x) for x in batch))).rows.to_pylist()
    assert (emitted["f"], emitted["before"]) == (float(np.float32(0.2)), float(np.float32(0.1)))


@pytest.mark.parametrize("batches", [[[1, 2, 3]], [[1], [2], [3]]])
def test_should_give_the_function_whole_numbers_of_a_column_of_them_for_any_division_into_batches(batches):
    columns = (Column("n", "BIGINT"), Column("seen", "STRING"))
    store = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=columns)
    reduce = Reduce(
        "RED", ("in",), (ID, *columns), (store,), f"{HERE}:add_quotients", f"{HERE}:no_quotients", None, "id"
    )
    node = Batches(lambda: ReduceOperator(reduce), reduce.stores)
    for batch in batches:
        node.run(rows(*(("a", 1, x) for x in batch)))
    assert node.contents("s") == {b"a": b'{"n":6,"seen":"0;1;3;","__ts":1}'}


@pytest.mark.parametrize("batches", [[[1, 2, 7]], [[1], [2], [7]], [[1, 2], [7]]])
def test_should_give_the_function_null_for_a_column_that_it_left_out_for_any_division_into_batches(batches):
    columns = (Column("n", "BIGINT"), Column("large", "BIGINT"))
    store = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=columns)
    reduce = Reduce(
        "RED", ("in",), (ID, *columns), (store,), f"{HERE}:count_and_keep_large", f"{HERE}:none_counted", None, "id"
    )
    node = Batches(lambda: ReduceOperator(reduce), reduce.stores)
    for batch in batches:
        done = node.run(rows(*(("a", 1, x) for x in batch)))
        assert not done.refused
    assert node.contents("s") == {b"a": b'{"n":3,"large":7,"__ts":1}'}


@pytest.mark.parametrize("batches", [[[1, 2, 3]], [[1], [2], [3]]])
@pytest.mark.parametrize("function", ["add_only_x", "add_x_under_another_key"])
def test_should_store_the_key_in_its_column_as_it_emits_it_whatever_the_function_returns(function, batches):
    store = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=(ID, X))
    reduce = Reduce("RED", ("in",), (ID, X), (store,), f"{HERE}:{function}", None, None, "id")
    node = Batches(lambda: ReduceOperator(reduce), reduce.stores)
    for batch in batches:
        keyed = rows(*(("a", 1, x) for x in batch)).append_column("id", pa.array(["a"] * len(batch)))
        (emitted,) = node.run(keyed).rows.to_pylist()
    assert (emitted["id"], emitted["x"]) == ("a", 6)
    assert node.contents("s") == {b"a": b'{"id":"a","x":6,"__ts":1}'}


def test_should_emit_each_changed_key_once_with_the_newest_time_of_its_rows():
    node = largest()
    node.run(rows(("a", 5, 3)), newest_ms=5)
    emitted = node.run(rows(("b", 9, 1), ("a", 7, 4), ("a", 6, 2)), newest_ms=9).rows.to_pylist()
    # In the place of its last row each.
    assert [(r["id"], r["__ts"], r["__seq"], r["x"]) for r in emitted] == [("b", 9, 0, 1), ("a", 7, 2, 4)]
    assert node.contents("s") == {b"a": b'{"x":4,"__ts":7}', b"b": b'{"x":1,"__ts":9}'}


def test_should_emit_a_result_for_each_row_of_the_last_record():
    given = rows(("a", 5, 1), ("a", 5, 2), ("a", 6, 3), ("a", 6, 4))
    places = given.set_column(2, "__seq", pa.array([0, 0, 1, 1], pa.int64()))
    emitted = largest().run(places, newest_ms=6).rows.to_pylist()
    assert [(r["__ts"], r["__seq"], r["x"]) for r in emitted] == [(6, 1, 3), (6, 1, 4)]


def test_should_emit_the_newer_of_row_and_stored_timestamp_for_any_division_into_batches():
    split, whole = largest(), largest()
    split.run(rows(("a", 100, 3)), newest_ms=100)
    (late,) = split.run(rows(("a", 50, 4)), newest_ms=100).rows.to_pylist()
    (both,) = whole.run(rows(("a", 100, 3), ("a", 50, 4)), newest_ms=100).rows.to_pylist()
    assert (late["__ts"], late["x"]) == (both["__ts"], both["x"]) == (100, 4)
    assert split.contents("s") == whole.contents("s") == {b"a": b'{"x":4,"__ts":100}'}


def test_should_start_the_timestamp_again_after_a_deletion():
    for cuts in ([slice(0, 3)], [slice(0, 1), slice(1, 2), slice(2, 3)]):
        node, given_rows = largest("forget_at_nine"), rows(("a", 100, 1), ("a", 90, 9), ("a", 50, 2))
        emitted = [node.run(given_rows.slice(c.start, c.stop - c.start)).rows.to_pylist()[-1] for c in cuts]
        assert [r["__ts"] for r in emitted] == [100, 100, 50][-len(cuts) :]
        assert node.contents("s") == {b"a": b'{"x":2,"__ts":50}'}


def test_should_reduce_in_sequence_order_whatever_order_the_table_has():
    given_rows = rows(("a", 1, 1), ("a", 2, 2), ("a", 3, 3)).take([2, 0, 1])
    assert appending().run(given_rows).rows["seen"].to_pylist() == ["a1;a2;a3;"]


def test_should_begin_with_the_initializer_when_there_is_one():
    assert appending().run(rows(("k", 1, 8))).rows["seen"].to_pylist() == ["k8;"]


def test_should_delete_a_key_when_the_function_returns_none_and_begin_again():
    node = largest("forget_at_nine")
    node.run(rows(("a", 1, 1)))
    emitted = node.run(rows(("a", 2, 9)))
    assert [(r["id"], r["x"], r["__deleted"]) for r in emitted.rows.to_pylist()] == [("a", None, True)]
    assert node.contents("s") == {}
    assert node.run(rows(("a", 3, 4))).rows["x"].to_pylist() == [4]


def test_should_ignore_rows_without_a_key():
    emitted = largest().run(rows(("a", 1, 1), (None, 2, 2)))
    assert emitted.rows["id"].to_pylist() == ["a"]


def test_should_call_the_function_of_a_window_with_no_row_for_a_deleted_value():
    node = largest("keep_larger_of_what_is_there", window=Window(10, 10, 90))
    (first,) = node.run(rows(("a", 5, None)), newest_ms=5).rows.to_pylist()
    assert (first["__deleted"], first["window_start"], node.contents("s")) == (True, 0, {})
    (second,) = node.run(rows(("a", 5, 7), ("a", 6, None)), newest_ms=6).rows.to_pylist()
    assert (second["x"], second["__ts"]) == (7, 6)


def test_should_emit_the_windows_of_a_row_in_order_whatever_their_timestamps():
    node = largest(window=Window(20, 10, 90))
    node.run(rows(("a", 15, 1)), newest_ms=15)
    node.run(rows(("a", 25, 1)), newest_ms=25)
    emitted = node.run(rows(("a", 17, 1)), newest_ms=25).rows.to_pylist()
    assert [(r["window_start"], r["__ts"]) for r in emitted] == [(0, 17), (10, 25)]


def test_should_ignore_deleted_rows():
    emitted = largest().run(rows(("a", 1, None)))
    assert (emitted.rows.num_rows, emitted.rows.schema) == (0, rows_schema((ID, X)))


@pytest.mark.parametrize(("stream_time", "late"), [(24, 0), (25, 1), (26, 1)])
def test_should_count_a_row_as_late_for_each_window_that_is_closed(stream_time, late):
    node = largest(window=Window(20, 10, 5))
    node.run(rows(("z", stream_time, 1)), newest_ms=stream_time)
    emitted = node.run(rows(("a", 15, 7)), newest_ms=stream_time)
    assert emitted.late_rows == late
    found = [(r["window_start"], r["window_end"], r["x"]) for r in emitted.rows.to_pylist()]
    assert found == [(0, 20, 7), (10, 30, 7)][late:]


def test_should_put_a_row_into_no_window_before_the_epoch():
    emitted = largest(window=Window(20, 10, 5)).run(rows(("a", 3, 7)), newest_ms=3)
    assert emitted.rows["window_start"].to_pylist() == [0]


def test_should_keep_windows_separate_in_their_segments():
    node = largest(window=Window(10, 10, 90))
    node.run(rows(("a", 5, 1), ("a", 45, 2)), newest_ms=45)
    assert node.stores["s"].segments() == [0, 2]
    emitted = node.run(rows(("a", 6, 3)), newest_ms=45)
    assert emitted.rows.select(["window_start", "x"]).to_pylist() == [{"window_start": 0, "x": 3}]


@pytest.mark.parametrize(
    ("function", "message"),
    [("not_a_row", "int; return a dictionary"), ("unknown_column", "no column y")],
)
def test_should_name_the_function_that_returned_something_other_than_a_row(function, message):
    node = largest(function)
    with pytest.raises(InvalidTopology, match=f"RED: {HERE}:{function}.*{message}"):
        node.run(rows(("a", 1, 1), ("a", 2, 2)))


def test_should_refuse_a_row_when_the_function_raises_and_continue_from_the_previous_row():
    node = largest("changes_and_raises_at_nine")
    emitted = node.run(rows(("a", 1, 1), ("a", 2, 9), ("b", 3, 4), ("a", 4, 2)))
    assert [(r.sequence, r.key, r.row, r.error) for r in emitted.refused] == [(1, "a", {"x": 9}, "ValueError: nine")]
    assert emitted.rows.select(["id", "x", "__ts"]).to_pylist() == [
        {"id": "b", "x": 4, "__ts": 3}, {"id": "a", "x": 3, "__ts": 4},
    ]  # fmt: skip
    emitted = node.run(rows(("a", 5, 9)))
    assert (len(emitted.refused), emitted.rows.num_rows, node.written["s"]) == (1, 0, {})


def test_should_refuse_a_row_when_the_function_calls_sys_exit():
    emitted = largest("leaves_at_nine").run(rows(("a", 1, 1), ("a", 2, 9)))
    assert [(r.sequence, r.row, r.error) for r in emitted.refused] == [(1, {"x": 9}, "SystemExit: 3")]
    assert [row["x"] for row in emitted.rows.to_pylist()] == [1]


def test_should_refuse_a_row_whose_result_its_columns_cannot_hold():
    node = largest("text_of_nine")
    emitted = node.run(rows(("a", 1, 1), ("a", 2, 9), ("b", 3, 4), ("a", 4, 2)))
    ((sequence, error),) = [(r.sequence, r.error) for r in emitted.refused]
    assert sequence == 1
    assert "UnusableValue: RED: " in error
    assert "column x is int64 and cannot hold a value" in error
    assert emitted.rows.select(["id", "x", "__ts"]).to_pylist() == [
        {"id": "b", "x": 4, "__ts": 3}, {"id": "a", "x": 3, "__ts": 4},
    ]  # fmt: skip


@pytest.mark.parametrize("batches", [[[1, 1, 2]], [[1], [1], [2]]])
def test_should_refuse_each_row_whose_result_its_column_cannot_hold_for_any_division_into_batches(batches):
    columns = (Column("n", "BIGINT"),)
    store = StoreSpec("s", StoreKind.KEY_VALUE, None, None, columns=columns)
    reduce = Reduce("RED", ("in",), (ID, *columns), (store,), f"{HERE}:add_half", f"{HERE}:none_halved", None, "id")
    node = Batches(lambda: ReduceOperator(reduce), reduce.stores)
    refused = [row.row["x"] for batch in batches for row in node.run(rows(*(("a", 1, x) for x in batch))).refused]
    assert refused == [1, 1]
    assert node.contents("s") == {b"a": b'{"n":1,"__ts":1}'}


def test_should_refuse_a_row_in_all_of_its_windows():
    node = largest("changes_and_raises_at_nine", window=Window(20, 10, 90))
    node.run(rows(("a", 5, 1)), newest_ms=5)
    # Its first window has a row already, its second has not: there it would be the first.
    emitted = node.run(rows(("a", 15, 9)), newest_ms=15)
    assert (len(emitted.refused), emitted.rows.num_rows) == (1, 0)
    assert node.written["s"] == {}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("keep_larger", "is not an import path"),
        ("tests.no_such:f", "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:no_such", "has no such name"),
        (f"{HERE}:CONSTANT", "has it as int"),
    ],
)
def test_should_refuse_an_import_path_that_names_no_function(path, message):
    node = Reduce("RED", (), (ID, X), (StoreSpec("s", StoreKind.KEY_VALUE, None, None),), path, None, None, "id")
    with pytest.raises(InvalidTopology, match=f"RED: .*{message}"):
        ReduceOperator(node)


RECORDS = st.lists(st.tuples(st.sampled_from("ab"), st.just(1), st.integers(-5, 5)), max_size=5)


@given(st.lists(RECORDS, max_size=5))
def test_should_reach_the_same_result_for_any_division_into_batches_and_restarts(cuts):
    node = appending()
    for cut in cuts:
        node.run(rows(*cut))
        node.restart()
    whole = appending()
    whole.run(rows(*(record for cut in cuts for record in cut)))
    assert node.contents("s") == whole.contents("s")
