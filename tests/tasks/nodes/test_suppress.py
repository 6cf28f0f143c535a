"""Suppress: finals once each, whatever the batches are; the bounds of its buffer; restarts (rule 2)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.nodes.harness import Harness

from tidemark.errors import BufferFull, ExitCode
from tidemark.tasks.nodes.suppress import SuppressOperator
from tidemark.topology.plan import Column, StoreKind, StoreSpec, Suppress, WhenFull

STORE = StoreSpec("buffer", StoreKind.KEY_VALUE, None, None)
COLUMNS = (Column("id", "STRING"), Column("window_start", "BIGINT"), Column("window_end", "BIGINT"), Column("n", "INT"))
SIZE, GRACE = 10, 5


def a_node(max_records=None, max_bytes=None, when_full=WhenFull.SHUT_DOWN) -> Suppress:
    return Suppress("SUPPRESS", ("AGG",), COLUMNS, (STORE,), GRACE, max_records, max_bytes, when_full)


def a_harness(**bounds) -> Harness:
    return Harness(SuppressOperator(a_node(**bounds)), [STORE])


def early(**bounds) -> Harness:
    return a_harness(when_full=WhenFull.EMIT_EARLY, **bounds)


def row(k: str, start: int, n: int | None, ts: int = 0, deleted: bool = False) -> dict:
    return {"k": k, "ts": ts, "id": k, "window_start": start, "window_end": start + SIZE, "n": n, "deleted": deleted}


def seen(rows: list[dict]) -> list[tuple]:
    return [(r["k"], r["window_start"], "deleted" if r["deleted"] else r["n"]) for r in rows]


@pytest.mark.parametrize(("after", "expected"), [(14, []), (15, [("a", 0, 1)]), (16, [("a", 0, 1)])])
def test_should_emit_a_window_once_stream_time_reaches_its_end_plus_grace(after, expected):
    assert seen(a_harness().batch([[row("a", 0, 1)]], -1, after)) == expected


def test_should_keep_everything_while_there_is_no_stream_time():
    harness = a_harness()
    assert harness.batch([[row("a", 0, 1)]], -1, -1) == []
    assert seen(harness.batch([[]], -1, 15)) == [("a", 0, 1)]


def test_should_emit_nothing_from_nothing():
    assert a_harness().batch([[]], -1, 100) == []


def test_should_emit_the_last_update_of_a_window_with_the_newest_timestamp():
    harness = a_harness()
    harness.batch([[row("a", 0, 1, ts=7)]], -1, 7)
    harness.batch([[row("a", 0, 2, ts=3), row("a", 0, 3, ts=2) | {"seq": 9}]], 7, 7)
    (final,) = harness.batch([[]], 7, 15)
    assert final == {
        "k": "a", "ts": 7, "seq": 0, "deleted": False, "id": "a", "window_start": 0, "window_end": 10, "n": 3
    }  # fmt: skip


def test_should_emit_finals_by_window_end_then_key_then_window_start():
    harness = a_harness()
    harness.batch([[row("b", 10, 1), row("b", 0, 2), row("é", 0, 3), row("a", 10, 4), row("a", 0, 5)]], -1, 0)
    finals = harness.batch([[]], 0, 99)
    assert seen(finals) == [("a", 0, 5), ("b", 0, 2), ("é", 0, 3), ("a", 10, 4), ("b", 10, 1)]
    assert [f["seq"] for f in finals] == [0, 1, 2, 3, 4]


def test_should_count_up_behind_the_sequence_of_the_batch():
    harness = a_harness()
    (final,) = harness.batch([[row("a", 0, 1), row("a", 20, 1) | {"seq": 41}]], -1, 15)
    assert final["seq"] == 42


def test_should_never_store_a_window_that_closes_in_the_batch_that_brought_it():
    harness = a_harness()
    harness.batch([[row("a", 0, 1), row("b", 0, None, deleted=True)]], -1, 15)
    assert harness.written["buffer"] == {}


def test_should_forget_a_window_that_is_deleted():
    harness = a_harness()
    harness.batch([[row("a", 0, 1), row("b", 0, 2)]], -1, 0)
    harness.batch([[row("a", 0, None, deleted=True)]], 0, 0)
    assert seen(harness.batch([[]], 0, 15)) == [("b", 0, 2)]


def test_should_not_log_the_deletion_of_what_is_not_there():
    harness = a_harness()
    harness.batch([[row("a", 0, None, deleted=True)]], -1, 0)
    assert harness.written["buffer"] == {}


def test_should_drop_and_count_updates_of_windows_that_closed_before_the_batch():
    harness = a_harness()
    assert seen(harness.batch([[row("a", 0, 1)]], -1, 15)) == [("a", 0, 1)]
    assert harness.batch([[row("a", 0, 2), row("b", 0, None, deleted=True)]], 15, 15) == []
    assert harness.late_rows == 1


def test_should_refuse_a_deletion_that_does_not_say_of_which_window():
    with pytest.raises(ValueError, match="SUPPRESS: a row, deleted or not, must say its window_start"):
        a_harness().batch([[row("a", 0, 1, deleted=True) | {"window_start": None}]])


@pytest.mark.parametrize(("bounds", "message"), [
    ({"max_records": 1}, "SUPPRESS: 2 open windows of .* wait in 'buffer', which may hold 1 records; raise the bound"),
    ({"max_bytes": 100}, "which may hold 100 bytes"),
])  # fmt: skip
def test_should_stop_when_the_buffer_is_beyond_its_bound(bounds, message):
    harness = a_harness(**bounds)
    harness.batch([[row("a", 0, 1)]], -1, 0)
    with pytest.raises(BufferFull, match=message) as caught:
        harness.batch([[row("b", 0, 1)]], 0, 0)
    assert caught.value.exit_code is ExitCode.REFUSED


def test_should_not_stop_for_windows_that_close_in_time():
    harness = a_harness(max_records=1)
    harness.batch([[row("a", 0, 1)]], -1, 0)
    assert seen(harness.batch([[row("b", 10, 1)]], 0, 15)) == [("a", 0, 1)]


def test_should_emit_the_oldest_windows_early_when_full():
    harness = early(max_records=1)
    assert seen(harness.batch([[row("c", 10, 3), row("b", 0, 2), row("a", 0, 1)]], -1, 0)) == [("a", 0, 1), ("b", 0, 2)]


def test_should_emit_as_few_early_as_the_bytes_need():
    harness = early(max_bytes=250)
    sizes = []
    for i in range(4):
        sizes.append(len(harness.batch([[row(f"{i}", 10 * i, 1)]], -1, 0)))
    assert sizes == [0, 0, 1, 1]


def test_should_emit_a_window_again_at_its_close_only_if_it_changed_since_it_was_emitted_early():
    harness = early(max_records=0)
    assert seen(harness.batch([[row("a", 0, 1, ts=9), row("b", 0, 1)]], -1, 0)) == [("a", 0, 1), ("b", 0, 1)]
    assert harness.batch([[]], 0, 0) == []
    harness.op = SuppressOperator(a_node())
    assert harness.batch([[row("a", 0, 2, ts=3)]], 0, 0) == []
    finals = harness.batch([[]], 0, 15)
    assert seen(finals) == [("a", 0, 2)]
    assert finals[0]["ts"] == 9
    assert harness.contents("buffer") == {}


def test_should_delete_at_its_close_a_window_that_was_emitted_early():
    harness = early(max_records=0)
    harness.batch([[row("a", 0, 1), row("b", 0, 1)]], -1, 0)
    harness.op = SuppressOperator(a_node())
    assert harness.batch([[row("a", 0, None, deleted=True)]], 0, 0) == []
    assert seen(harness.batch([[row("b", 0, None, deleted=True)]], 0, 15)) == [
        ("a", 0, "deleted"), ("b", 0, "deleted")
    ]  # fmt: skip


def test_should_forget_an_early_window_whose_deletion_is_emitted_early_too():
    harness = early(max_records=0)
    harness.batch([[row("a", 0, 1)]], -1, 0)
    assert seen(harness.batch([[row("a", 0, None, deleted=True)]], 0, 0)) == [("a", 0, "deleted")]
    assert harness.contents("buffer") == {}
    assert harness.batch([[]], 0, 15) == []


UPDATES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(0, 9) | st.none(), st.integers(0, 50)), max_size=12
)
STEPS = st.lists(st.tuples(UPDATES, st.integers(0, 15)), max_size=5)


@settings(deadline=None)
@given(STEPS, st.data())
def test_should_emit_the_same_finals_once_each_however_the_records_are_split_into_batches(steps, data):
    whole, split = a_harness(), a_harness()
    held, expected, before = {}, [], -1
    got_whole, got_split = [], []
    for given_updates, advance in steps:
        updates = [row(k, 10 * w, n, ts, n is None) for k, w, n, ts in given_updates]
        updates = [u | {"seq": i} for i, u in enumerate(updates)]
        after = max(before, 0) + advance
        for u in updates:
            window = (u["window_end"], u["k"])
            if u["window_end"] + GRACE <= before:
                continue
            if u["deleted"]:
                held.pop(window, None)
            else:
                held[window] = (u["n"], max(u["ts"], held.get(window, (0, -1))[1]))
        for window in sorted(w for w in held if w[0] + GRACE <= after):
            expected.append((window[1], window[0] - SIZE, *held.pop(window)))
        got_whole += whole.batch([updates], before, after)
        rest = updates
        while rest and data.draw(st.booleans()):
            cut = data.draw(st.integers(0, len(rest)))
            got_split += split.batch([rest[:cut]], before, before)
            rest = rest[cut:]
            split.op = SuppressOperator(a_node())
        got_split += split.batch([rest], before, after)
        before = after
    assert [(r["k"], r["window_start"], r["n"], r["ts"]) for r in got_whole] == expected
    assert [(r["k"], r["window_start"], r["n"], r["ts"]) for r in got_split] == expected
    assert whole.contents("buffer") == split.contents("buffer")


@settings(deadline=None)
@given(STEPS, st.integers(0, 3))
def test_should_leave_downstream_with_the_finals_also_when_some_went_out_early(steps, bound):
    harness, reference = early(max_records=bound), a_harness()
    kept, finals, before = {}, {}, -1
    for given_updates, advance in steps:
        updates = [row(k, 10 * w, n, ts, n is None) | {"seq": i} for i, (k, w, n, ts) in enumerate(given_updates)]
        after = max(before, 0) + advance
        for r in harness.batch([updates], before, after):
            window = (r["k"], r["window_start"])
            if r["deleted"]:
                assert window in kept
                del kept[window]
            else:
                kept[window] = r["n"]
        finals |= {(r["k"], r["window_start"]): r["n"] for r in reference.batch([updates], before, after)}
        before = after
    closed = {w: n for w, n in kept.items() if w[1] + SIZE + GRACE <= before}
    assert closed == finals
