"""How far back a changelog's history goes: a raised setting counts only for what was written after the raise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.changes import version_one

from tidemark.recovery.evidence import KeptDeletions
from tidemark.registry.description import Description, describe_state
from tidemark.registry.kept_history import KeptHistory, compacted_until_ms, observed_histories
from tidemark.registry.reader import describe_resolved

MINUTE, HOUR, NOW = 60_000, 3_600_000, 1_800_000_000_000
KNOWN = KeptHistory(10 * MINUTE, 24 * HOUR)


def config(lag_ms: int, deletions_ms: int = 24 * HOUR) -> dict[str, str]:
    return {"min.compaction.lag.ms": str(lag_ms), "delete.retention.ms": str(deletions_ms)}


def test_should_know_a_changelog_that_is_new_with_the_settings_that_it_has() -> None:
    assert observed_histories({}, {"t": config(5, 7)}, NOW) == {"t": KeptHistory(5, 7)}
    assert observed_histories({"gone": KNOWN}, {}, NOW) == {}


@pytest.mark.parametrize(
    ("lag_ms", "compacted_before_ms"),
    [
        (10 * MINUTE - 1, 0),
        (10 * MINUTE, 0),
        # What was superseded ten minutes before the raise may be gone; brokers learn of a setting within a minute.
        (10 * MINUTE + 1, NOW + MINUTE - 10 * MINUTE),
    ],
)
def test_should_count_a_raised_lag_only_for_what_the_smaller_one_has_left(
    lag_ms: int, compacted_before_ms: int
) -> None:
    assert KNOWN.observed(config(lag_ms), NOW) == replace(
        KNOWN, min_compaction_lag_ms=lag_ms, compacted_before_ms=compacted_before_ms
    )


@pytest.mark.parametrize(
    ("deletions_ms", "raised_ms", "smaller_ms"),
    [(24 * HOUR - 1, 0, 0), (24 * HOUR, 0, 0), (24 * HOUR + 1, NOW + MINUTE, 24 * HOUR)],
)
def test_should_keep_when_the_retention_of_deletions_was_raised_and_its_smaller_value(
    deletions_ms: int, raised_ms: int, smaller_ms: int
) -> None:
    assert KNOWN.observed(config(10 * MINUTE, deletions_ms), NOW) == replace(
        KNOWN,
        delete_retention_ms=deletions_ms,
        deletions_raised_ms=raised_ms,
        smaller_delete_retention_ms=smaller_ms,
    )


def test_should_keep_the_smallest_retention_of_deletions_over_several_raises() -> None:
    first = KNOWN.observed(config(10 * MINUTE, 48 * HOUR), NOW)
    second = first.observed(config(10 * MINUTE, 72 * HOUR), NOW + HOUR)
    assert (second.deletions_raised_ms, second.smaller_delete_retention_ms) == (NOW + HOUR + MINUTE, 24 * HOUR)
    lowered = second.observed(config(10 * MINUTE, HOUR), NOW + 2 * HOUR)
    assert (lowered.deletions_raised_ms, lowered.smaller_delete_retention_ms) == (NOW + HOUR + MINUTE, 24 * HOUR)
    third = lowered.observed(config(10 * MINUTE, 2 * HOUR), NOW + 3 * HOUR)
    assert (third.deletions_raised_ms, third.smaller_delete_retention_ms) == (NOW + 3 * HOUR + MINUTE, HOUR)


@pytest.mark.parametrize(
    ("now_ms", "has_gap"),
    [
        (NOW + HOUR // 2 - 1, False),
        (NOW + HOUR // 2, True),
        # A tombstone that was first cleaned before the raise still ends after the smaller value.
        (NOW + 2 * HOUR, True),
        (NOW + 6 * 24 * HOUR, True),
    ],
)
def test_should_end_tombstones_from_before_a_raise_after_the_smaller_retention(now_ms: int, has_gap: bool) -> None:
    raised = KeptHistory(MINUTE, HOUR).observed(config(MINUTE, 168 * HOUR), NOW)
    kept = KeptDeletions(168 * HOUR, raised.deletions_raised_ms, raised.smaller_delete_retention_ms)
    assert (kept.gap_since(NOW - HOUR // 2, now_ms) is not None) is has_gap


def test_should_remember_an_earlier_raise_after_later_starts() -> None:
    raised = KNOWN.observed(config(HOUR), NOW)
    later = raised.observed(config(HOUR), NOW + HOUR).observed(config(MINUTE), NOW + 2 * HOUR)
    assert later.compacted_before_ms == raised.compacted_before_ms
    again = later.observed(config(2 * HOUR), NOW + 3 * HOUR)
    assert again.compacted_before_ms == NOW + 3 * HOUR + MINUTE - MINUTE


@pytest.mark.parametrize(
    ("known", "lag_ms", "until_ms"),
    [
        (None, HOUR, NOW - HOUR),
        (KNOWN, 10 * MINUTE, NOW - 10 * MINUTE),
        (KNOWN, MINUTE, NOW - MINUTE),
        # Raised since the last start: nobody knows when.
        (KNOWN, HOUR, NOW - 10 * MINUTE),
        (KeptHistory(HOUR, 24 * HOUR, NOW - 5 * MINUTE), HOUR, NOW - 5 * MINUTE),
        (KeptHistory(HOUR, 24 * HOUR, NOW - 2 * HOUR), HOUR, NOW - HOUR),
    ],
)
def test_should_judge_history_by_the_smallest_lag_that_it_was_kept_under(
    known: KeptHistory | None, lag_ms: int, until_ms: int
) -> None:
    assert compacted_until_ms(known, config(lag_ms), NOW) == until_ms


@pytest.mark.parametrize(
    ("since_ms", "gap"),
    [
        (NOW - 2 * HOUR, None),
        (NOW - 2 * HOUR - 1, "is from before a raise of delete.retention.ms, and older than the smaller value"),
        (NOW - 24 * HOUR, "is older than delete.retention.ms"),
    ],
)
def test_should_find_deletions_missing_that_a_smaller_setting_has_removed(since_ms: int, gap: str | None) -> None:
    assert KeptDeletions(24 * HOUR, NOW - 2 * HOUR, HOUR).gap_since(since_ms, NOW) == gap


def test_should_keep_the_history_in_the_description_until_the_next_start() -> None:
    plan, counts = version_one("app").plan(), {"app-in": 4}
    first = describe_resolved(plan, None, counts, {}, {"app-n-changelog": KNOWN})
    assert Description.from_bytes(first.to_bytes()) == first
    assert describe_state(plan, counts).continuing(first).kept_history == {"app-n-changelog": KNOWN}
    raised = {"app-n-changelog": KNOWN.observed(config(HOUR), NOW)}
    assert describe_resolved(plan, first, counts, {}, raised) == replace(first, kept_history=raised)
