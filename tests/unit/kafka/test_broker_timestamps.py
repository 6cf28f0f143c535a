"""Topics that take event time as their records' timestamp, and those that refuse some of it."""

from __future__ import annotations

import pytest
from tests.support.broker_timestamps import MINUTE

from tidemark.kafka.record_timestamps import NO_BOUND_MS, TimestampBounds, bounds_of

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (NOW - 9 * MINUTE - 1, NOW - 9 * MINUTE),
        (NOW - 9 * MINUTE, NOW - 9 * MINUTE),
        (NOW - 9 * MINUTE + 1, NOW - 9 * MINUTE + 1),
        (NOW + 4 * MINUTE - 1, NOW + 4 * MINUTE - 1),
        (NOW + 4 * MINUTE, NOW + 4 * MINUTE),
        (NOW + 4 * MINUTE + 1, NOW + 4 * MINUTE),
    ],
)
def test_should_give_a_record_the_nearest_timestamp_that_the_topic_takes(at, expected):
    bounds = TimestampBounds(10 * MINUTE, 5 * MINUTE)
    given = [{"key": b"k", "value": b"v", "timestamp": at}, {"key": b"k", "value": b"v", "timestamp": NOW}]
    assert [message["timestamp"] for message in bounds.within(given, NOW)] == [expected, NOW]
    assert given[0]["timestamp"] == at


def test_should_recognise_a_topic_that_takes_every_timestamp():
    none = str(NO_BOUND_MS)
    before, after = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
    assert bounds_of({before: none, after: none}) is None
    assert bounds_of({before: "5", after: "6", "message.timestamp.type": "LogAppendTime"}) is None
    assert bounds_of({before: none, after: "6"}) == TimestampBounds(NO_BOUND_MS, 6)
