"""The keys that a changelog must have, and the verdict of a comparison: each rule at its boundary."""

from __future__ import annotations

import pytest

from tidemark.registry.kept_history import KeptHistory
from tidemark.restore.bounds import (
    Absence,
    Beginning,
    EvidenceBounds,
    Figures,
    Keeping,
    bounds_of,
    overall,
    total,
)
from tidemark.topology.plan import StoreKind, StoreSpec
from tidemark.verdict import Verdict

HOUR, DAY = 3_600_000, 86_400_000
NOW = 1_700_000_000_000
SEGMENT = 60_000
WINDOWS = StoreSpec("counts", StoreKind.WINDOW, 6 * HOUR, SEGMENT)
KEYS = StoreSpec("counts", StoreKind.KEY_VALUE, None, None)
WHOLE = Beginning(0)
OK, UNKNOWN, FAILED = Verdict.OK, Verdict.NOT_ENOUGH_EVIDENCE, Verdict.FAILED


def bounds(spec=WINDOWS, retention_ms=DAY, beginning=WHOLE):
    return bounds_of(spec, NOW, retention_ms, beginning, HOUR, NOW)


def test_should_leave_out_only_expired_keys_when_the_changelog_is_whole():
    found = bounds()
    first = (NOW - 6 * HOUR) // SEGMENT
    assert (found.has_expired(first - 1), found.has_expired(first)) == (True, False)
    assert {found.absence(segment) for segment in (0, first)} == {Absence.DIFFERENCE}
    assert not bounds(KEYS).has_expired(0)
    assert bounds(KEYS).absence(0) is Absence.DIFFERENCE


def test_should_expect_every_window_newer_than_the_start_of_the_changelog():
    begun = NOW - 2 * HOUR
    found = bounds(beginning=Beginning(5, begun))
    # A record may be of a window that begins an hour after it.
    newest = (begun + HOUR) // SEGMENT
    assert found.absence(newest) is Absence.DELETED
    assert found.absence(newest + 1) is Absence.DIFFERENCE


def test_should_distinguish_records_deleted_by_retention_from_those_deleted_by_hand():
    found = bounds(retention_ms=7 * HOUR, beginning=Beginning(5, NOW))
    oldest = (NOW - 7 * HOUR + HOUR) // SEGMENT
    assert found.absence(oldest) is Absence.AGED
    assert found.absence(oldest + 1) is Absence.DELETED
    assert bounds(retention_ms=None, beginning=Beginning(5, NOW)).absence(0) is Absence.DELETED


@pytest.mark.parametrize(
    ("spec", "beginning"), [(KEYS, Beginning(5)), (KEYS, Beginning(5, NOW)), (WINDOWS, Beginning(5, None))]
)
def test_should_expect_no_key_when_any_may_have_been_deleted(spec, beginning):
    assert bounds(spec, beginning=beginning).absence(NOW // SEGMENT) is Absence.DELETED
    assert not bounds(spec, beginning=beginning).is_whole


@pytest.mark.parametrize(("after_ms", "is_whole"), [(-SEGMENT, True), (0, True), (SEGMENT, False)])
def test_should_treat_a_changelog_as_whole_when_it_lost_only_expired_windows(after_ms, is_whole):
    """Over time the broker deletes the first records of every window changelog; that alone removes no evidence."""
    first_live_ms = (NOW - 6 * HOUR) // SEGMENT * SEGMENT
    begun = first_live_ms - HOUR - SEGMENT + after_ms
    assert bounds(beginning=Beginning(5, begun)).is_whole is is_whole


@pytest.mark.parametrize(
    ("config", "retention_ms"),
    [
        ({"cleanup.policy": "compact", "retention.ms": "5"}, None),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, 5),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, None),
    ],
)
def test_should_read_the_retention_of_a_topic(config, retention_ms):
    found = Keeping.of("t", {**config, "min.compaction.lag.ms": "7"})
    assert (found.retention_ms, found.min_compaction_lag_ms) == (retention_ms, 7)
    raised = Keeping.of("t", {**config, "min.compaction.lag.ms": "7"}, KeptHistory(5, 9, compacted_before_ms=3))
    assert (raised.min_compaction_lag_ms, raised.compacted_before_ms) == (5, 3)


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        (Figures(1, 0, 0, 0, is_whole=True), OK),
        (Figures(1, 0, 0, 0, is_whole=False), OK),
        (Figures(1, 9, 0, 0, is_whole=False), OK),
        (Figures(9, 1, 0, 1, is_whole=False), UNKNOWN),
        (Figures(0, 0, 0, 0, is_whole=False), UNKNOWN),
        (Figures(0, 9, 0, 0, is_whole=False), UNKNOWN),
        (Figures(0, 0, 0, 0, is_whole=True), OK),
        (Figures(9, 1, 1, 1, is_whole=False), FAILED),
    ],
)
def test_should_never_say_ok_of_a_store_without_evidence(figures, verdict):
    assert figures.verdict is verdict


def test_should_never_say_ok_when_no_key_was_compared():
    empty, full = Figures(0, 0, 0, 0, is_whole=True), Figures(3, 1, 0, 0, is_whole=True)
    unknown, wrong = Figures(0, 2, 0, 2, is_whole=False), Figures(3, 0, 1, 0, is_whole=True)
    assert overall([]) is UNKNOWN
    assert overall([empty, empty]) is UNKNOWN
    assert overall([empty, full]) is OK
    assert overall([full, unknown]) is UNKNOWN
    assert overall([unknown, wrong]) is FAILED
    assert total([full, unknown, wrong]).summary == "6 keys compared, 3 left out, 1 differ"


def test_should_leave_nothing_out_without_bounds():
    everything = EvidenceBounds(None, None, None)
    assert everything.is_whole
    assert everything.absence(-5) is Absence.DIFFERENCE
