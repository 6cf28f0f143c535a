"""Bounds that a caller sets, at one below, at, and one above each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.names import TaskId
from tidemark.queries.errors import PositionGone, QueryInvalid, StateUnavailable
from tidemark.queries.position import Position, ReadBounds, TaskRole, position_token


def at(task="0_1", *, offset=10, lag=5, lag_ms=50, batch=7, role=TaskRole.STANDBY) -> Position:
    return Position(TaskId.parse(task), role, "0", "1", offset, offset - 1, offset + lag, lag, lag_ms, 0, batch, 0)


@pytest.mark.parametrize(
    ("bounds", "refused"),
    [
        (ReadBounds(), None),
        (ReadBounds(max_lag_records=5), None),
        (ReadBounds(max_lag_records=4), "lags by 5 records, max_lag_records is 4"),
        (ReadBounds(max_lag_ms=50), None),
        (ReadBounds(max_lag_ms=49), "lags by 50 ms, max_lag_ms is 49"),
        (ReadBounds.of(None, None, "0_1:10"), None),
        (ReadBounds.of(None, None, "0_1:11"), "is at changelog offset 10, at_least is 11"),
        (ReadBounds.of(None, None, "0_2:99, 0_1:9"), None),
        (ReadBounds.of(None, None, "0_1@7"), None),
        (ReadBounds.of(None, None, "0_1@8"), "is at batch 7, at_least is batch 8"),
    ],
)
def test_should_refuse_what_is_older_than_the_caller_accepts(bounds, refused):
    why = bounds.refusal(at())
    assert why == refused if refused is None else refused in why


def test_should_not_take_the_lag_behind_an_old_end_for_the_lag():
    cut_off = replace(at(lag=0, lag_ms=3_600_000), end_age_ms=3_600_000)
    assert "has not heard from Kafka for 3600000 ms" in ReadBounds(max_lag_records=0).refusal(cut_off)
    assert ReadBounds().refusal(cut_off) is None
    assert ReadBounds(max_lag_records=0).refusal(replace(cut_off, end_age_ms=60_000)) is None


def test_should_not_believe_a_position_of_a_changelog_that_was_replaced():
    new = replace(at(offset=10), generation=2)
    own = position_token([new])
    assert own == "0_1:9.2"
    ReadBounds.of(None, None, own).require(new)
    with pytest.raises(PositionGone, match=r"0_1:9 is of generation 0 of the changelog.* by generation 2"):
        ReadBounds.of(None, None, "0_1:9").require(new)
    # A process that has not seen the change yet has nothing of the new changelog.
    with pytest.raises(StateUnavailable, match=r"is at changelog offset 10, at_least is 9\.2"):
        ReadBounds.of(None, None, own).require(at(offset=10))


def test_should_not_trust_a_copy_that_does_not_know_its_batch():
    assert "does not know its batch" in ReadBounds.of(None, None, "0_1@0").refusal(at(batch=None))


def test_should_accept_its_own_positions():
    positions = [at("0_1", offset=10), at("0_0", offset=3)]
    bounds = ReadBounds.of(None, None, position_token(positions))
    assert position_token(positions) == "0_0:2,0_1:9"
    assert [bounds.refusal(position) for position in positions] == [None, None]
    assert bounds.refusal(at("0_0", offset=1)) is not None
    assert [Position.from_dict(position.to_dict()) for position in positions] == positions


@pytest.mark.parametrize("text", ["0_1", "0_1:", "x", "0_1:-1", "0-1:3", "0_1:3.", "0_1:3.x", "0_1@3.1", "0_1:3;0_2:4"])
def test_should_say_how_a_position_is_written(text):
    with pytest.raises(QueryInvalid) as refused:
        ReadBounds.of(None, None, text)
    assert "0_1:4711" in refused.value.remedy
