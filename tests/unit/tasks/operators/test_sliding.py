"""Sliding windows compared with their definition and with Kafka Streams, record by record."""

from __future__ import annotations

from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batches import Batches
from tests.unit.tasks.operators import test_sessions as sessions

from tidemark.stores.layout import ValueLayout, slots_of, split_window_key
from tidemark.tasks.operators import sliding
from tidemark.tasks.operators.sliding import SlidingAggregateOperator
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Aggregation, SlidingWindow, StoreKind, StoreSpec

DIFFERENCE, GRACE = 10, 5
STORE = StoreSpec("s", StoreKind.WINDOW, 200, 20)
AGGREGATION = Aggregation(
    "AGG", STORE, SlidingWindow(DIFFERENCE, GRACE), "id", sessions.AGGREGATION.aggregates, sessions.AGGREGATION.columns
)
Records = list[tuple[str, int, int]]


def partials(records: Records) -> pa.Table:
    """(key, timestamp, value) records in the order of their offsets."""
    return sessions.partials(records, one_by_one=True)


class KafkaStreams:
    """One key of `KStreamSlidingWindowAggregate`: by window start the values in it and the newest timestamp."""

    def __init__(self) -> None:
        self.windows: dict[int, tuple[list[int], int]] = {}

    def process(self, time: int, value: int, first_open_end: int) -> None:
        if time + DIFFERENCE < first_open_end:
            return
        if time < DIFFERENCE:
            self._process_early(time, value, first_open_end)
        else:
            self._process(time, value, first_open_end)

    def _process(self, time: int, value: int, first_open_end: int) -> None:
        known = dict(self.windows)
        previous = left = right = None
        for start in sorted((s for s in known if time - 2 * DIFFERENCE <= s <= time), reverse=True):
            end, newest = start + DIFFERENCE, known[start][1]
            if end < time:
                left, previous = known[start], newest
                break
            self._update(start, known[start], time, value, first_open_end)
            if end > time:
                right = right or known[start]
            elif newest < time:
                previous = newest
            else:
                return
        if previous is not None and previous + 1 not in known and previous + 1 + DIFFERENCE >= time:
            self._update(previous + 1, ([], time), time, value, first_open_end)
        if time - DIFFERENCE not in known:
            has_more = left is not None and time - DIFFERENCE <= previous
            self._update(time - DIFFERENCE, (left[0] if has_more else [], time), time, value, first_open_end)
        if time + 1 not in known and right is not None and right[1] > time:
            self.windows[time + 1] = right

    def _process_early(self, time: int, value: int, first_open_end: int) -> None:
        known = dict(self.windows)
        combined, right = known.get(0), None
        for start in sorted(s for s in known if 0 < s <= time):
            right = known[start]
            self._update(start, right, time, value, first_open_end)
        if right is None and combined is not None and combined[1] > time:
            right = combined
        if time + 1 not in known and right is not None and right[1] > time:
            self.windows[time + 1] = right
        if combined is not None and combined[1] < time and combined[1] + 1 not in known:
            self._update(combined[1] + 1, ([], time), time, value, first_open_end)
        self._update(0, combined or ([], time), time, value, first_open_end)

    def _update(self, start: int, window: tuple[list[int], int], time: int, value: int, first_open_end: int) -> None:
        if start + DIFFERENCE >= first_open_end:
            self.windows[start] = ([*window[0], value], max(window[1], time))


def windows_of(records: Records) -> dict[tuple[str, int], tuple[int, int, float, int]]:
    """By key and start: count, least, most and newest timestamp of each window that the records make."""
    found = {}
    for key, ts, _ in records:
        for start in (max(0, ts - DIFFERENCE), ts + 1):
            inside = [(v, t) for k, t, v in records if k == key and start <= t <= start + DIFFERENCE]
            if inside:
                values = [v for v, _ in inside]
                found[key, start] = (len(inside), min(values), float(max(values)), max(t for _, t in inside))
    return found


def batches(emits: bool = True) -> Batches:
    return Batches(lambda: SlidingAggregateOperator(AGGREGATION, emits), AGGREGATION.stores)


def seen(emitted) -> list[tuple[int, int, int]]:
    return sorted((r["window_start"], r["window_end"], r["n"]) for r in emitted.rows.to_pylist())


def test_should_make_the_window_that_ends_with_a_record():
    emitted = batches().run(partials([("a", 15, 7)]), newest_ms=15)
    assert emitted.rows.schema == rows_schema(AGGREGATION.columns)
    assert emitted.rows.to_pylist() == [
        {"__k": "a", "__ts": 15, "__seq": 0, "__deleted": False, "id": "a",
         "window_start": 5, "window_end": 15, "n": 1, "least": 7, "most": 7.0},
    ]  # fmt: skip


def test_should_let_no_window_begin_before_the_epoch():
    node = batches()
    assert seen(node.run(partials([("a", 3, 1)]), newest_ms=3)) == [(0, 10, 1)]
    assert seen(node.run(partials([("a", 7, 1)]), newest_ms=7)) == [(0, 10, 2), (4, 14, 1)]


@pytest.mark.parametrize(("ts", "together"), [(29, True), (30, True), (31, False)])
def test_should_include_both_ends_of_a_window(ts, together):
    node = batches()
    node.run(partials([("a", 20, 1)]), newest_ms=20)
    counts = {start: n for start, _, n in seen(node.run(partials([("a", ts, 1)]), newest_ms=ts))}
    assert counts[ts - DIFFERENCE] == (2 if together else 1)


@pytest.mark.parametrize(("after", "is_made"), [(DIFFERENCE, True), (DIFFERENCE + 1, True), (DIFFERENCE + 2, False)])
def test_should_make_the_window_after_a_record_only_if_something_falls_into_it(after, is_made):
    node = batches()
    node.run(partials([("a", 20, 1)]), newest_ms=20)
    assert ((21, 31, 1) in seen(node.run(partials([("a", 20 + after, 1)]), newest_ms=20))) == is_made


@pytest.mark.parametrize(("stream_time", "late"), [(25, 0), (26, 2), (35, 2), (36, 2)])
def test_should_count_a_record_as_late_when_all_its_windows_are_closed(stream_time, late):
    node = batches()
    node.run(partials([("z", stream_time, 1)]), newest_ms=stream_time)
    emitted = node.run(partials([("a", 20, 1), ("a", 20, 1)]), newest_ms=stream_time)
    assert emitted.late_rows == late


@pytest.mark.parametrize(("stream_time", "is_emitted"), [(24, True), (25, True), (26, False)])
def test_should_leave_a_window_as_it_is_when_it_ended_before_the_grace(stream_time, is_emitted):
    node = batches()
    node.run(partials([("a", 25, 1), ("z", stream_time, 1)]), newest_ms=stream_time)
    emitted = seen(node.run(partials([("a", 20, 1)]), newest_ms=stream_time))
    assert ((10, 20, 1) in emitted) == is_emitted
    assert (21, 31, 1) in emitted
    assert (15, 25, 2) in emitted


def test_should_forget_a_record_when_all_its_windows_had_closed_before_it_arrived():
    node = batches()
    node.run(partials([("z", 30, 1)]), newest_ms=30)
    emitted = node.run(partials([("a", 20, 1)]), newest_ms=30)
    assert (seen(emitted), emitted.late_rows, len(node.contents("s"))) == ([], 1, 1)
    # It would be in this record's window, and have a window of its own behind it, had it been kept.
    assert seen(node.run(partials([("a", 28, 1)]), newest_ms=30)) == [(18, 28, 1)]


def test_should_not_add_a_late_record_to_results_of_a_closed_window():
    node = batches()
    node.run(partials([("a", 20, 1), ("a", 24, 1), ("z", 31, 1)]), newest_ms=31)
    # [14, 24] closed at 26; the record at 22 is in [21, 31] alone, and makes [23, 33] for the record at 24.
    assert seen(node.run(partials([("a", 22, 1)]), newest_ms=31)) == [(21, 31, 2), (23, 33, 1)]


def test_should_emit_the_windows_of_one_record_in_the_order_in_which_kafka_streams_makes_them():
    node = batches()
    node.run(partials([("a", 20, 1), ("a", 28, 1)]), newest_ms=28)
    rows = node.run(partials([("a", 25, 1)]), newest_ms=28).rows.to_pylist()
    assert [r["window_start"] for r in rows] == [21, 18, 15, 26]
    assert [r["__ts"] for r in rows] == [28, 28, 25, 28]
    assert [r["__seq"] for r in rows] == [0, 0, 0, 0]


def test_should_emit_a_window_twice_that_is_left_of_the_record_and_right_of_the_one_before():
    node = batches()
    node.run(partials([("a", 20, 1), ("a", 21, 1)]), newest_ms=21)
    rows = node.run(partials([("a", 32, 5)]), newest_ms=32).rows.to_pylist()
    assert [(r["window_start"], r["n"], r["least"]) for r in rows] == [(22, 1, 5), (22, 1, 5)]


def test_should_not_mix_keys_when_one_is_a_prefix_of_the_other():
    keys = ["a", "a\0\0\0\0\0\0\0\0", "a\0", "ab"]
    node = batches()
    node.run(partials([(key, 15, i) for i, key in enumerate(keys)]), newest_ms=15)
    emitted = node.run(partials([(key, 15, i) for i, key in enumerate(keys)]), newest_ms=15).rows.to_pylist()
    assert {row["id"]: (row["n"], row["least"]) for row in emitted} == {key: (2, i) for i, key in enumerate(keys)}


def test_should_write_the_store_without_building_rows_when_nobody_reads_them():
    loud, silent = batches(), batches(emits=False)
    loud.run(partials([("a", 0, 1)]), newest_ms=0)
    assert silent.run(partials([("a", 0, 1)]), newest_ms=0).rows.num_rows == 0
    assert silent.contents("s") == loud.contents("s")


def test_should_reach_the_same_result_in_small_portions(monkeypatch):
    records = [("a", ts, ts) for ts in range(0, 60, 3)]
    whole = batches().run(partials(records)).rows
    monkeypatch.setattr(sliding, "_ROWS_AT_ONCE", 7)
    assert batches().run(partials(records)).rows == whole
    assert whole.num_rows > 20


def test_should_emit_nothing_for_empty_input():
    assert batches().run(partials([])).rows.schema == rows_schema(AGGREGATION.columns)


def test_should_refuse_windows_of_another_kind():
    with pytest.raises(TypeError):
        SlidingAggregateOperator(sessions.AGGREGATION)


BATCH = st.lists(st.tuples(st.sampled_from(["a", "ab"]), st.integers(0, 60), st.integers(-9, 9)), max_size=5)
CUTS = st.lists(st.tuples(BATCH, st.booleans()), max_size=6)


@given(CUTS)
def test_should_emit_only_changed_windows_for_any_division_into_batches(cuts):
    node, records = batches(), []
    for batch, restarts in cuts:
        if restarts:
            node.restart()
        before = windows_of(records)
        records += batch
        # Stream time stands still, so that nothing is late.
        rows = node.run(partials(batch)).rows.to_pylist()
        emitted = {(r["id"], r["window_start"]): (r["n"], r["least"], r["most"], r["__ts"]) for r in rows}
        after = windows_of(records)
        assert emitted == {at: window for at, window in after.items() if before.get(at) != window}
        assert Counter(r["window_end"] - r["window_start"] for r in rows).keys() <= {DIFFERENCE}


@given(CUTS)
def test_should_hold_the_same_as_kafka_streams_with_late_records(cuts):
    node, streams = batches(), defaultdict(KafkaStreams)
    for batch, _ in cuts:
        first_open_end = node.stream_time_ms - GRACE
        newest = max((ts for _, ts, _ in batch), default=-1)
        node.run(partials(batch), newest_ms=newest)
        for key, ts, value in batch:
            streams[key].process(ts, value, first_open_end)
    layout = ValueLayout(slots_of(AGGREGATION.aggregates))
    held = {}
    for key, value in node.contents("s").items():
        name, start = split_window_key(key)
        record = layout.decode([value])[0]
        held[name.decode(), start] = (record["f0"], record["f1"], record["f2"], record["ts"])
    assert held == {
        (key, start): (len(values), min(values), max(values), newest)
        for key, of_key in streams.items()
        for start, (values, newest) in of_key.windows.items()
    }
