"""Reads a sub-topology without end, in slices between explicit offsets (see invariant: sources advance together)."""

from __future__ import annotations

import logging
import time

from spark_jobs.bounded_read import BoundedReader
from tidemark.errors import OutcomeUnknown
from tidemark.instance.hand_over import HandOver
from tidemark.instance.slices import Offsets, Slice, Slices
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.kafka.offsets import EndOffsets
from tidemark.settings import Settings
from tidemark.topology.plan import SubTopology

log = logging.getLogger(__name__)

_LONGEST_POLL_S = 0.05
_POLLS_PER_COMMIT = 4
_LOST_S = 10.0
"""A new leader may report an earlier end for a moment."""


class SlicedReader:
    """Reads slice after slice. The next slice is computed while the task loop processes the previous one."""

    def __init__(
        self, settings: Settings, subtopology: SubTopology, reader: BoundedReader, ends: EndOffsets, out: HandOver
    ) -> None:
        self._commit_interval_s = settings.commit_interval_ms / 1000
        # Where nothing is unread, the brokers are asked again after this time.
        self._poll_s = min(_LONGEST_POLL_S, self._commit_interval_s / _POLLS_PER_COMMIT)
        self._subtopology = subtopology
        self._reader = reader
        self._ends = ends
        self._out = out

    def run(self, starts: Offsets, size: BatchSize) -> None:
        """Read from `starts` until the hand-over is stopped. Blocks.

        While more is unread than one batch may have, slices follow one another. Otherwise a batch has all unread records, and
        the next one begins after the commit interval.

        Raises `OutcomeUnknown` if brokers do not answer, or if records before `starts` are gone, and the errors that Spark
        raises.
        """
        slices = Slices(self._subtopology, starts, size.records, self._reader.times)
        places = list(starts)
        last_complete = time.monotonic()
        while not self._out.stopped.is_set():
            began = time.monotonic()
            ends = self._ends.stable(places)
            lost = [place for place, start in slices.starts.items() if ends[place] < start]
            if not lost:
                last_complete = began
            elif began - last_complete > _LOST_S:
                raise OutcomeUnknown(
                    f"{lost[0].topic}[{lost[0].partition}] ends at offset {ends[lost[0]]}, and is to be read from "
                    f"{slices.starts[lost[0]]} on: its records were deleted, or the topic was created again"
                )
            if not slices.unread(ends):
                self._out.stopped.wait(self._poll_s)
                continue
            slices.most_records = size.records
            taken = slices.next(ends)
            self._hand_over(taken, began)
            if taken.is_all:
                self._out.stopped.wait(max(0.0, began + self._commit_interval_s - time.monotonic()))

    def _hand_over(self, taken: Slice, began: float) -> None:
        tables = self._reader.tables(taken.starts, taken.ends)
        for batch in self._reader.batches(taken.starts, taken.ends, tables):
            log.info(
                "batch: subtopology=%d offsets=%d partials=%d seconds=%.3f",
                self._subtopology.index, sum(end - batch.starts[p] for p, end in batch.ends.items()),
                sum(t.num_rows for t in batch.pipelines), time.monotonic() - began,
            )  # fmt: skip
            self._out.put(batch)
            if self._out.stopped.is_set():
                return
