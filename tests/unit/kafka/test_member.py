"""The heartbeats of a group's member."""

from __future__ import annotations

import pytest

from tidemark.kafka.member import heartbeat_ms
from tidemark.settings import Settings


@pytest.mark.parametrize(
    ("session_ms", "heartbeat"), [(1_000, 200), (2_000, 200), (6_000, 600), (10_000, 1_000), (45_000, 1_000)]
)
def test_should_send_heartbeats_so_often_that_tasks_are_taken_over_a_second_after_a_session(session_ms, heartbeat):
    assert heartbeat_ms(Settings.load(session_timeout_ms=session_ms)) == heartbeat
