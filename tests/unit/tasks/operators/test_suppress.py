"""Suppress: final results in Kafka Streams' order for any batches; the bounds of its buffer; restarts."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.operators import Harness

from tidemark.errors import BufferFull, ExitCode
from tidemark.tasks.operators.suppress import SuppressOperator
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


def test_should_emit_nothing_for_no_rows():
    assert a_harness().batch([[]], -1, 100) == []


def test_should_emit_the_last_update_of_a_window_with_its_timestamp():
    harness = a_harness()
    harness.batch([[row("a", 0, 1, ts=7)]], -1, 7)
    harness.batch([[row("a", 0, 2, ts=8), row("a", 0, 3, ts=9) | {"seq": 9}]], 7, 9)
    (final,) = harness.batch([[]], 9, 15)
    assert final == {
        "k": "a", "ts": 9, "seq": 0, "deleted": False, "id": "a", "window_start": 0, "window_end": 10, "n": 3
    }  # fmt: skip


def test_should_emit_finals_by_window_end_then_key_then_window_start():
    harness = a_harness()
    harness.batch([[row("b", 10, 1), row("b", 0, 2), row("é", 0, 3), row("a", 10, 4), row("a", 0, 5)]], -1, 0)
    finals = harness.batch([[]], 0, 99)
    assert seen(finals) == [("a", 0, 5), ("b", 0, 2), ("é", 0, 3), ("a", 10, 4), ("b", 10, 1)]
    assert [f["seq"] for f in finals] == [0] * 5


def test_should_give_a_final_result_the_place_of_the_record_that_closes_its_window():
    harness = a_harness()
    (final,) = harness.batch([[row("a", 0, 1), row("a", 20, 1) | {"seq": 41}]], -1, 15)
    assert final["seq"] == 41


def test_should_never_store_a_window_that_closes_in_the_batch_that_brought_it():
    harness = a_harness()
    harness.batch([[row("a", 0, 1), row("b", 0, None, deleted=True)]], -1, 15)
    assert harness.written["buffer"] == {}


def test_should_forget_a_window_that_is_deleted():
    harness = a_harness()
    harness.batch([[row("a", 0, 1), row("b", 0, 2)]], -1, 0)
    harness.batch([[row("a", 0, None, deleted=True)]], 0, 0)
    assert seen(harness.batch([[]], 0, 15)) == [("b", 0, 2)]


def test_should_not_log_the_deletion_of_an_absent_key():
    harness = a_harness()
    harness.batch([[row("a", 0, None, deleted=True)]], -1, 0)
    assert harness.written["buffer"] == {}


def test_should_emit_updates_of_a_closed_window_at_once():
    harness = a_harness()
    assert seen(harness.batch([[row("a", 0, 1, ts=15)]], -1, 15)) == [("a", 0, 1)]
    assert seen(harness.batch([[row("a", 0, 2), row("b", 0, None, deleted=True)]], 15, 15)) == [("a", 0, 2)]
    assert (harness.late_rows, harness.contents("buffer")) == (0, {})


def test_should_emit_the_final_result_of_a_session_that_ends_when_the_grace_does():
    """session(3s).grace(10s), k@140 and then k@127: the aggregation accepts k@127, so suppress must not drop it."""
    node = SuppressOperator(dataclasses.replace(a_node(), grace_ms=13))
    harness = Harness(node, [STORE])
    session = {"id": "k", "k": "k", "deleted": False}
    newest = session | {"ts": 140, "window_start": 140, "window_end": 140, "n": 1}
    assert harness.batch([[newest]], -1, 140) == []
    final = session | {"ts": 127, "window_start": 127, "window_end": 127, "n": 1}
    assert seen(harness.batch([[final]], 140, 140)) == [("k", 127, 1)]


def test_should_emit_windows_in_the_order_in_which_the_rows_close_them():
    harness = a_harness()
    harness.batch([[row("z", 0, 1), row("a", 10, 2)]], -1, 0)
    updates = [row("c", 30, 3, ts=15), row("b", 0, 4, ts=9), row("d", 30, 5, ts=25)]
    updates = [update | {"seq": i} for i, update in enumerate(updates)]
    assert seen(harness.batch([updates], 0, 25)) == [("z", 0, 1), ("b", 0, 4), ("a", 10, 2)]


ONE_RECORD, TWO_RECORDS = (0, 0), (0, 1)


@pytest.mark.parametrize(("sequence", "finals"), [(ONE_RECORD, [1, 2]), (TWO_RECORDS, [2])])
def test_should_emit_a_window_that_closes_and_changes_twice_only_if_one_record_does_both(sequence, finals):
    harness = a_harness()
    harness.batch([[row("a", 0, 1)]], -1, 0)
    updates = [row("a", 5, 7, ts=15), row("a", 0, 2, ts=15)]
    updates = [update | {"seq": number} for update, number in zip(updates, sequence, strict=True)]
    assert [n for _, start, n in seen(harness.batch([updates], 0, 15)) if start == 0] == finals


def test_should_refuse_a_deletion_that_does_not_name_its_window():
    with pytest.raises(ValueError, match="SUPPRESS: a row, deleted or not, must contain its window_start"):
        a_harness().batch([[row("a", 0, 1, deleted=True) | {"window_start": None}]])


@pytest.mark.parametrize(("bounds", "message"), [
    ({"max_records": 1}, "SUPPRESS: 2 open windows of .* wait in 'buffer', which may hold 1 records; raise the bound"),
    ({"max_bytes": 100}, "which may hold 100 bytes"),
])  # fmt: skip
def test_should_stop_when_the_buffer_exceeds_its_bound(bounds, message):
    harness = a_harness(**bounds)
    harness.batch([[row("a", 0, 1)]], -1, 0)
    with pytest.raises(BufferFull, match=message) as caught:
        harness.batch([[row("b", 0, 1)]], 0, 0)
    assert caught.value.exit_code is ExitCode.REFUSED


def test_should_not_stop_for_windows_that_close_in_time():
    harness = a_harness(max_records=1)
    harness.batch([[row("a", 0, 1)]], -1, 0)
    assert seen(harness.batch([[row("b", 10, 1, ts=15)]], 0, 15)) == [("a", 0, 1)]


def test_should_count_a_buffered_deletion_as_kafka_streams_does():
    harness = a_harness(max_records=2)
    harness.batch([[row("a", 0, 1), row("b", 0, 1)]], -1, 0)
    harness.batch([[row("a", 0, None, deleted=True)]], 0, 0)
    with pytest.raises(BufferFull):
        harness.batch([[row("c", 0, 1)]], 0, 0)
    assert seen(harness.batch([[]], 0, 15)) == [("b", 0, 1)]


def test_should_emit_the_oldest_windows_early_after_each_row():
    harness = early(max_records=1)
    assert seen(harness.batch([[row("c", 10, 3), row("b", 0, 2), row("a", 0, 1)]], -1, 0)) == [("b", 0, 2), ("a", 0, 1)]
    assert seen(harness.batch([[row("d", 20, 4), row("e", 20, 5), row("d", 20, 6)]], 0, 0)) == [
        ("c", 10, 3), ("d", 20, 4), ("d", 20, 6)
    ]  # fmt: skip


def test_should_emit_as_few_early_as_the_bytes_need():
    harness = early(max_bytes=250)
    sizes = []
    for i in range(4):
        sizes.append(len(harness.batch([[row(f"{i}", 10 * i, 1)]], -1, 0)))
    assert sizes == [0, 0, 1, 1]


def test_should_emit_a_window_again_at_its_close_only_if_it_changed_since_it_was_emitted_early():
    harness = early(max_records=0)
    assert seen(harness.batch([[row("a", 0, 1, ts=9), row("b", 0, 1, ts=9)]], -1, 9)) == [("a", 0, 1), ("b", 0, 1)]
    assert harness.batch([[]], 9, 9) == []
    harness.op = SuppressOperator(a_node())
    assert harness.batch([[row("a", 0, 2, ts=10)]], 9, 10) == []
    finals = harness.batch([[]], 10, 15)
    assert seen(finals) == [("a", 0, 2)]
    assert finals[0]["ts"] == 10
    assert harness.contents("buffer") == {}


def test_should_emit_deletions_when_windows_may_have_been_emitted_early():
    harness = early(max_records=2)
    harness.batch([[row("a", 0, 1), row("b", 0, 1), row("c", 10, 1)]], -1, 0)
    assert harness.batch([[row("b", 0, None, deleted=True)]], 0, 0) == []
    assert seen(harness.batch([[row("a", 0, None, deleted=True)]], 0, 0)) == [("a", 0, "deleted")]
    assert seen(harness.batch([[]], 0, 15)) == [("b", 0, "deleted")]


def test_should_emit_no_deletion_when_nothing_is_emitted_early():
    harness = a_harness(max_records=5)
    harness.batch([[row("a", 0, 1)]], -1, 0)
    harness.batch([[row("a", 0, None, deleted=True)]], 0, 0)
    assert harness.batch([[]], 0, 15) == []
    assert harness.contents("buffer") == {}


class KafkaStreams:
    """`KTableSuppressProcessor` over rows, its buffer sorted by window end and key."""

    def __init__(self, max_records: int | None) -> None:
        self.max_records = max_records
        self.time = -1
        self.buffer: dict[tuple[int, bytes], dict] = {}

    def process(self, update: dict) -> list[dict]:
        self.time = max(self.time, update["ts"])
        self.buffer[update["window_end"], update["k"].encode()] = update
        out = []
        for place in sorted(self.buffer):
            is_full = self.max_records is not None and len(self.buffer) > self.max_records
            if place[0] + GRACE <= self.time or is_full:
                out.append(self.buffer.pop(place))
        return [update for update in out if self.max_records is not None or not update["deleted"]]


UPDATES = st.lists(
    st.tuples(st.sampled_from(["a", "ab", "b"]), st.integers(0, 4), st.integers(0, 9) | st.none(), st.integers(0, 50)),
    max_size=25,
)


@settings(deadline=None)
@given(UPDATES, st.none() | st.integers(0, 3), st.integers(1, 8))
def test_should_emit_the_same_as_kafka_streams_when_each_batch_has_one_record(updates, bound, size):
    harness = a_harness() if bound is None else early(max_records=bound)
    streams, before = KafkaStreams(bound), -1
    for start in range(0, len(updates), size):
        rows = [row(k, 10 * w, n, ts, n is None) for k, w, n, ts in updates[start : start + size]]
        expected = [each for update in rows for each in streams.process(update)]
        after = max([before, *(update["ts"] for update in rows)])
        got = harness.batch([[update | {"seq": 0} for update in rows]], before, after)
        assert [(*each, r["ts"]) for each, r in zip(seen(got), got, strict=True)] == [
            (*each, r["ts"]) for each, r in zip(seen(expected), expected, strict=True)
        ]
        harness.op = SuppressOperator(harness.op.node)
        before = after
    held = {place: update for place, update in streams.buffer.items() if bound is not None or not update["deleted"]}
    assert [(key[:8], key[8:-8]) for key in sorted(harness.contents("buffer"))] == [
        (end.to_bytes(8, "big"), key) for end, key in sorted(held)
    ]


@settings(deadline=None)
@given(st.lists(UPDATES, max_size=5), st.data())
def test_should_reach_the_same_final_results_for_any_division_into_batches(batches, data):
    whole, split, before = a_harness(), a_harness(), -1
    finals: list[dict[tuple, tuple]] = [{}, {}]
    for given_updates in batches:
        updates = [row(k, 10 * w, n, ts, n is None) for k, w, n, ts in given_updates]
        # What the aggregation would drop, because its window closed before the batch, does not come.
        updates = [u for u in updates if u["window_end"] + GRACE > before]
        updates = [u | {"seq": i} for i, u in enumerate(updates)]
        after = max([before, *(u["ts"] for u in updates)])
        rest, at = updates, before
        while rest:
            cut = data.draw(st.integers(1, len(rest)))
            now = max([at, *(u["ts"] for u in rest[:cut])])
            for r in split.batch([rest[:cut]], at, now):
                finals[1][r["k"], r["window_start"]] = (r["n"], r["ts"])
            rest, at = rest[cut:], now
            split.op = SuppressOperator(a_node())
        for r in whole.batch([updates], before, after):
            finals[0][r["k"], r["window_start"]] = (r["n"], r["ts"])
        before = after
    assert whole.contents("buffer") == split.contents("buffer")
    # A window that closes and is deleted in one batch is emitted only where a cut lies between the two.
    assert {window: finals[1].get(window) for window in finals[0]} == finals[0]
