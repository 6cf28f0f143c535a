"""The recomputation itself, on hand-made lists: a late record or a crash point is a value in the list."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.support.truth.compare import Claim, Difference, compare_dead_letters, compare_last, compare_updates
from tests.support.truth.recompute import PATIENT_MONITORING, Batch, batches_of, event, recompute_rows
from tests.support.truth.topics import Past, Row

RULES = PATIENT_MONITORING
NOW = 1_700_000_040_000
"""A multiple of the window."""
MINUTE = 60_000


def beat(offset: int, at_ms: int, patient: str = "p1", partition: int = 0, stamp: int | None = None) -> Row:
    value = {"patient_id": patient, "beat_ms": at_ms, "ibi_ms": 800, "recording": "data"}
    stamp = at_ms if stamp is None else stamp
    return Row("pulse-events", partition, offset, stamp, patient.encode(), json.dumps(value).encode(), ())


def raw(offset: int, value: bytes | None, stamp: int = NOW) -> Row:
    return Row("pulse-events", 0, offset, stamp, b"p1", value, ())


def counted(rows: list[Row], *ranges: tuple[int, int]):
    return recompute_rows({0: rows}, [Batch(0, start, end) for start, end in ranges], RULES)


def test_should_count_once_per_batch_and_keep_the_history():
    truth = counted([beat(0, NOW), beat(1, NOW + 1), beat(2, NOW + 2), beat(3, NOW + MINUTE)], (0, 2), (2, 4))
    assert truth.histories == {("p1", NOW): [2, 3], ("p1", NOW + MINUTE): [1]}
    assert truth.counts[("p1", NOW)] == 3
    assert (truth.outputs, truth.late_rows, truth.unprocessed, truth.faults) == (3, 0, 0, [])
    assert truth.tasks[0].stream_time_ms == NOW + MINUTE


def test_should_judge_lateness_at_the_start_of_the_batch_at_minus_one_zero_and_plus_one():
    for over, expected in ((-1, 0), (0, 1), (1, 1)):
        first = beat(0, NOW + MINUTE + RULES.grace_ms + over)
        late = beat(1, NOW + 5)
        assert counted([first, late], (0, 1), (1, 2)).late_rows == expected, over
        # In one batch with the record that would close the window it still counts.
        assert counted([first, late], (0, 2)).late_rows == 0


def test_should_count_late_rows_one_by_one_and_let_them_advance_stream_time():
    rows = [beat(0, NOW + 10 * MINUTE), beat(1, NOW), beat(2, NOW), beat(3, NOW + 11 * MINUTE, "p2")]
    truth = counted(rows, (0, 1), (1, 4))
    assert truth.late_rows == 2
    assert ("p1", NOW) not in truth.counts
    assert truth.tasks[0].stream_time_ms == NOW + 11 * MINUTE


def test_should_keep_stream_time_per_task():
    ahead, behind = beat(0, NOW + 10 * MINUTE, "p1", 0), beat(0, NOW, "p2", 1)
    truth = recompute_rows({0: [ahead], 1: [behind]}, [Batch(0, 0, 1), Batch(1, 0, 1)], RULES)
    assert truth.late_rows == 0


def test_should_not_report_offsets_of_transaction_markers_as_a_gap():
    truth = counted([beat(0, NOW), beat(5, NOW)], (0, 3), (3, 7))
    assert truth.faults == []
    assert truth.counts == {("p1", NOW): 2}


def test_should_report_overlap_gap_and_unread_end():
    rows = [beat(n, NOW + n) for n in range(6)]
    assert "overlaps" in counted(rows, (0, 3), (2, 6)).faults[0]
    gap = counted(rows, (0, 2), (3, 6))
    assert "leaves a gap" in gap.faults[0]
    assert gap.unprocessed == 1
    assert counted(rows, (0, 4)).unprocessed == 2
    assert recompute_rows({0: rows}, [], RULES).unprocessed == 6


def test_should_make_dead_letters_of_bad_records_without_advancing_stream_time():
    ahead = RULES.max_ahead_ms
    bad = [
        raw(0, b""),
        raw(1, b"{not json"),
        raw(2, b"[1, 2]"),
        raw(3, b'{"patient_id": "p1", "beat_ms": "noon", "ibi_ms": 800, "recording": "data"}'),
        raw(4, b'{"beat_ms": 1, "ibi_ms": 800, "recording": "data"}'),
        raw(5, b'{"patient_id": "p1", "beat_ms": null}'),
        raw(6, b'{"patient_id": "p1", "beat_ms": -1}'),
        beat(7, NOW + ahead + 1, stamp=NOW),
        raw(8, b'{"patient_id": "p1", "beat_ms": 9223372036854775808}', NOW),
    ]
    truth = counted([*bad, beat(9, NOW + ahead, stamp=NOW)], (0, 10))
    assert sorted(truth.dead) == [("pulse-events", 0, n) for n in range(9)]
    assert truth.tasks[0].stream_time_ms == NOW + ahead
    assert event(raw(0, b'{"patient_id": "p1", "beat_ms": 0}'), RULES) == ("p1", 0)
    assert event(raw(0, None, NOW), RULES) == ("p1", NOW)


def test_should_turn_commit_records_into_batches_and_report_false_claims():
    record = {
        "application_id": "patient-monitoring",
        "task": "0_0",
        "kind": "batch",
        "sources": {"pulse-events": {"0": [0, 2]}},
        "stream_times": {"task_ms": NOW, "by_store": {"pulse-counts": NOW}},
        "rows": 2,
        "late_rows": 0,
        "bad_rows": 0,
        "sinks": {"pulse-counts": 1},
        "changelogs": {"patient-monitoring-pulse-counts-changelog": 1},
    }
    start = record | {"kind": "start", "sources": {"pulse-events": {"0": [0, 0]}}}
    wrong = record | {"stream_times": {"task_ms": NOW, "by_store": {"pulse-counts": NOW + 1}}, "late_rows": 3}
    rows = [beat(0, NOW), beat(1, NOW)]

    def faults(*records):
        commits = [Row("c", 0, n, NOW, b"0_0", json.dumps(r).encode(), ()) for n, r in enumerate(records)]
        return recompute_rows({0: rows}, batches_of(commits, RULES), RULES).faults

    assert faults(start, record) == []
    assert len(faults(start, wrong)) == 2
    other = record | {"application_id": "another"}
    assert faults(start, other, record) == []


def test_should_bring_back_the_counts_of_an_earlier_batch_after_a_rewind_and_emit_later_ones_again():
    rows = [beat(0, NOW), beat(1, NOW + 1), raw(2, b"{not json"), beat(3, NOW + MINUTE), beat(4, NOW + 2)]
    first, second = Batch(0, 0, 1, number=0), Batch(0, 1, 4, number=1)
    back, again = Batch(0, 4, 1, "rewind", 2, 0), Batch(0, 1, 5, number=3)
    truth = recompute_rows({0: rows}, [first, second, back, again], RULES)
    assert truth.faults == []
    assert truth.histories == {("p1", NOW): [1, 2, 3], ("p1", NOW + MINUTE): [1, 1]}
    assert truth.logged == {("p1", NOW): [1, 2, 1, 3], ("p1", NOW + MINUTE): [1, None, 1]}
    assert truth.dead_again == {("pulse-events", 0, 2): 1}
    # Stream time went back, too: what would have been late before is not.
    assert truth.late_rows == 0
    assert "no record" in recompute_rows({0: rows}, [Batch(0, 0, 4, number=5), back], RULES).faults[0]


def test_should_distinguish_missing_repeated_and_unexplained_updates():
    window = ("p1", NOW)

    def verdict(found: list[int]) -> tuple[int, int, int]:
        difference = compare_updates({window: [2, 3, 7]}, {window: found} if found else {}, Difference())
        return difference.missing, difference.duplicated, difference.wrong

    assert verdict([2, 3, 7]) == (0, 0, 0)
    assert verdict([]) == (3, 0, 0)
    assert verdict([2, 3]) == (1, 0, 0)
    assert verdict([2, 3, 3, 7]) == (0, 1, 0)
    assert verdict([2, 3, 7, 2, 3, 7]) == (0, 3, 0)
    assert verdict([2, 7, 3]) == (0, 0, 1)
    assert verdict([2, 3, 8]) == (1, 0, 1)
    assert compare_updates({}, {window: [1]}, Difference()).wrong == 1


def test_should_expect_each_dead_letter_once_with_its_bytes():
    def letter(offset: int, value: bytes = b"{not json") -> Row:
        headers = {"reason": b"json", "topic": b"pulse-events", "partition": b"0", "offset": str(offset).encode()}
        named = tuple((f"tidemark.{name}", text) for name, text in headers.items())
        return Row("patient-monitoring-dlq", 0, offset, NOW, b"p1", value, named)

    expected = {("pulse-events", 0, n): raw(n, b"{not json") for n in (1, 2)}

    def verdict(*found: Row) -> tuple[int, int, int]:
        difference = compare_dead_letters(expected, found, Difference())
        return difference.missing, difference.duplicated, difference.wrong

    assert verdict(letter(1), letter(2)) == (0, 0, 0)
    assert verdict(letter(1)) == (1, 0, 0)
    assert verdict(letter(1), letter(2), letter(2)) == (0, 1, 0)
    assert verdict(letter(1), letter(2), letter(3)) == (0, 0, 1)
    assert verdict(letter(1), letter(2, b"changed")) == (0, 0, 1)
    assert verdict(letter(1), letter(2)._replace(headers=())) == (1, 0, 1)


def test_should_process_no_records_for_a_reset_or_a_repair_and_continue_at_its_offsets():
    rows = [beat(n, NOW + n) for n in range(6)]
    ahead = [Batch(0, 0, 2), Batch(0, 2, 4, "reset"), Batch(0, 4, 4, "repair"), Batch(0, 4, 6)]
    truth = recompute_rows({0: rows}, ahead, RULES)
    assert (truth.counts, truth.unprocessed, truth.faults) == ({("p1", NOW): 4}, 0, [])
    assert truth.tasks[0].next_offset == 6
    # The first of a new life, which knows nothing of what came before.
    again = [Batch(0, 4, 0, "reset"), Batch(0, 0, 6)]
    assert recompute_rows({0: rows}, again, RULES).counts == {("p1", NOW): 6}


def test_should_use_kept_rows_from_before_the_first_offset_but_none_from_before_a_new_start():
    rows = [beat(n, NOW + n) for n in range(6)]
    place = ("pulse-events", 0)
    assert Past().of(place, 0, rows) == rows
    assert Past(kept={place: rows[:4]}).of(place, 3, rows[3:]) == rows
    assert Past(since={place: 2}, kept={place: rows[:4]}).of(place, 3, rows[3:]) == rows[2:]


def test_should_compare_a_changelog_with_its_last_values_as_claimed():
    truth = counted([beat(0, NOW), beat(1, NOW + 1), beat(2, NOW + MINUTE)], (0, 1), (1, 3))
    first, second, strange = ("p1", NOW), ("p1", NOW + MINUTE), ("p9", NOW)
    for logged, last, left in (
        ({first: [7, 2], second: [1]}, 0, 0),
        ({first: [2], second: [1], strange: [3, None]}, 0, 0),
        ({first: [2]}, 1, 0),
        ({first: [2, None], second: [1]}, 1, 0),
        ({first: [1], second: [1]}, 1, 1),
        ({first: [2], second: [1], strange: [3]}, 1, 1),
    ):
        for claim, wrong in ((Claim.LAST_VALUES, last), (Claim.WHAT_IS_LEFT, left)):
            found = Difference()
            compare_last(truth, logged, claim, found)
            assert found.wrong == wrong, (logged, claim)


def test_should_compare_a_commit_record_with_all_generations_of_a_changelog():
    rules = replace(RULES, generation=1)
    record = {
        "rows": 1, "late_rows": 0, "bad_rows": 0, "stream_times": {"by_store": {RULES.store: NOW}},
        "sinks": {RULES.sink_topic: 1}, "changelogs": {RULES.changelog_topic: 1},
    }  # fmt: skip
    assert rules.changelog_topic == f"{RULES.changelog_topic}-1"
    assert recompute_rows({0: [beat(0, NOW)]}, [Batch(0, 0, 1, record=record)], rules).faults == []
    less = {**record, "changelogs": {}}
    assert recompute_rows({0: [beat(0, NOW)]}, [Batch(0, 0, 1, record=less)], rules).faults != []
