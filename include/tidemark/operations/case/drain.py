"""The lag of the source topics, and waiting until it is processed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from tidemark.errors import OutcomeUnknown
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.recovery.facts import TaskFacts

_LOOK_S = 1.0
_TELL_EVERY_S = 5.0


def source_lag(facts: Mapping[TaskId, TaskFacts]) -> int:
    """Return the source offsets that are not committed yet, of all tasks."""
    return sum(
        max(0, found.sources[p].end - offset) for found in facts.values() for p, offset in _reached(found).items()
    )


def _reached(facts: TaskFacts) -> dict[TopicPartition, int]:
    """Return the offset of each source up to which a task has processed it.

    A group that was empty for `offsets.retention.minutes` has no offsets; the last commit record has them.
    """
    recorded = {} if facts.record is None else facts.record.end_offsets
    return {
        partition: facts.committed[partition].offset
        if partition in facts.committed
        else recorded.get(partition.topic, marks.low)
        for partition, marks in facts.sources.items()
    }


def drain(evidence: EvidenceReader, timeout_s: float, report: Callable[[str], None]) -> None:
    """Wait until what was unprocessed at the beginning is committed. Reports the lag. Blocks. Raises `OutcomeUnknown`."""
    facts = evidence.current_offsets()
    ends = {partition: marks.end for found in facts.values() for partition, marks in found.sources.items()}
    deadline, told_at = time.monotonic() + timeout_s, 0.0
    pause = threading.Event()
    while True:
        reached = {p: offset for found in facts.values() for p, offset in _reached(found).items()}
        left = sum(max(0, end - reached.get(partition, 0)) for partition, end in ends.items())
        if left == 0:
            report("what waited is committed")
            return
        if time.monotonic() - told_at > _TELL_EVERY_S:
            told_at = time.monotonic()
            report(f"{left} of the source offsets that waited are not committed yet")
        if time.monotonic() > deadline:
            raise OutcomeUnknown(
                f"{left} source offsets still wait after {timeout_s:.0f} s: the state is in place; look at `tidemark lag NAME` "
                f"and the log of the instance"
            )
        pause.wait(_LOOK_S)
        facts = evidence.current_offsets()
