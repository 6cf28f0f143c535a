"""The comparison of committed offsets before a change takes effect: whatever an instance has committed since shows."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.commit.metadata import OffsetMetadata
from tidemark.names import TopicPartition
from tidemark.operations.offline_transaction import changed_offset
from tidemark.stream_times import StreamTimes

PLACE, OTHER = TopicPartition("in", 0), TopicPartition("in", 1)


def committed(offset: int, batch: int = 7) -> ClientPartition:
    return ClientPartition("in", 0, offset, OffsetMetadata(batch, StreamTimes.none(), "1").encode())


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {PLACE: committed(1)}, None),
        ({PLACE: None}, {OTHER: committed(1)}, None),
        # The group had no offsets any more, so an instance continued from its commit record.
        ({PLACE: None}, {PLACE: committed(1)}, "of in[0] is 1 (batch 7), and was none when the plan was made"),
        ({PLACE: committed(40), OTHER: None}, {PLACE: committed(40), OTHER: committed(6)}, "of in[1] is 6 (batch 7)"),
        ({PLACE: committed(40)}, {PLACE: committed(40), OTHER: committed(1)}, None),
        ({PLACE: committed(40)}, {PLACE: committed(41)}, "of in[0] is 41 (batch 7), and was 40 (batch 7)"),
        ({PLACE: committed(40)}, {PLACE: committed(39)}, "of in[0] is 39 (batch 7), and was 40 (batch 7)"),
        # A tick commits a batch without records.
        ({PLACE: committed(40)}, {PLACE: committed(40, 8)}, "of in[0] is 40 (batch 8), and was 40 (batch 7)"),
        (
            {PLACE: committed(40)},
            {PLACE: ClientPartition("in", 0, 40)},
            "of in[0] is 40 (of no batch), and was 40 (batch 7)",
        ),
        ({PLACE: committed(40)}, {OTHER: committed(40)}, "of in[0] is none, and was 40 (batch 7)"),
        (
            {PLACE: committed(40), OTHER: committed(5)},
            {PLACE: committed(40), OTHER: committed(6)},
            "of in[1] is 6 (batch 7)",
        ),
    ],
)
def test_should_name_the_first_offset_that_is_not_as_it_was(before, now, expected):
    found = changed_offset(before, now)

    assert (found is None) if expected is None else (found is not None and expected in found)
