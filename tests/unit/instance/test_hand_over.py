"""The queue of batches when one of the threads that fill it has failed."""

from __future__ import annotations

import pytest

from tidemark.errors import BatchTooLarge, OutcomeUnknown, SparkEnded
from tidemark.instance.hand_over import HandOver
from tidemark.instance.source import SourceBatch

BATCH = SourceBatch(0, {}, {}, [], [])


def test_should_give_a_batch_or_nothing():
    out = HandOver()
    assert out.take(0.01) is None
    out.put(BATCH)
    assert out.take(0.01) is BATCH


@pytest.mark.parametrize(
    "failure", [ValueError("no such column"), BatchTooLarge("no such column"), SparkEnded("no such column")]
)
def test_should_report_a_failure_although_another_thread_still_hands_batches_over(failure):
    out = HandOver()
    out.put(BATCH)
    out.fail(failure)
    with pytest.raises(OutcomeUnknown, match="no such column") as raised:
        out.take(1)
    assert type(raised.value) is (type(failure) if isinstance(failure, BatchTooLarge) else OutcomeUnknown)
