"""Offsets of a partition that has another leader, or a newer leader epoch, than the client knows."""

from __future__ import annotations

import time

import pytest

from tidemark.kafka.offsets import EndOffsets

pytestmark = [pytest.mark.broker, pytest.mark.timeout(360)]


@pytest.mark.parametrize("comes_back", [True, False])
def test_should_retry_when_the_leader_has_moved(replicated, comes_back):
    place = replicated.place
    replicated.produce(1)
    ends = EndOffsets(replicated.client(), 30.0)
    assert ends.of([place]) == {place: 1}
    replicated.await_leader(1)
    replicated.cluster.kill_node(1)
    replicated.await_leader(2, 3)
    if comes_back:  # As a replica that leads no more.
        replicated.cluster.start_node(1)
    began = time.monotonic()
    assert ends.of([place]) == ends.stable([place]) == {place: 1}
    assert ends.beginnings([place]) == {place: 0}
    # Well before the client looks for leaders by itself, which it does every few minutes.
    assert time.monotonic() - began < 60
