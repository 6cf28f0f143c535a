"""The gear for a sub-topology that is behind: bounded reads of slices (see invariant: sources advance together)."""

from __future__ import annotations

import logging
import time

from spark_jobs.bounded_read import BoundedReader
from tidemark.instance.hand_over import HandOver
from tidemark.instance.slices import Offsets, Slice, Slices, is_level
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.kafka.offsets import EndOffsets
from tidemark.settings import Settings
from tidemark.topology.plan import SubTopology

log = logging.getLogger(__name__)

# The approximate time from the start of a live gear's query to its first batch.
_QUERY_START_S = 1.0


class CatchUpGear:
    """Reads slice after slice. The next slice is computed while the task loop processes the previous one."""

    def __init__(
        self, settings: Settings, subtopology: SubTopology, reader: BoundedReader, ends: EndOffsets, out: HandOver
    ) -> None:
        self._commit_interval_s = settings.commit_interval_ms / 1000
        self._subtopology = subtopology
        self._reader = reader
        self._ends = ends
        self._out = out

    def run(self, starts: Offsets, size: BatchSize) -> Offsets:
        """Read from `starts` until all unread records fit into one batch, and return the next offsets. Blocks.

        Raises `OutcomeUnknown` if brokers do not answer, and the errors that Spark raises.
        """
        slices = Slices(self._subtopology, starts, size.records, self._reader.times)
        places = list(starts)
        planned = time.monotonic()
        ends = self._ends.stable(places)
        is_done = slices.unread(ends) <= size.records
        while not is_done and not self._out.stopped.is_set():
            slices.most_records = size.records
            taken = slices.next(ends)
            self._hand_over(taken, planned)
            before, planned, ends = planned, time.monotonic(), self._ends.stable(places)
            unread = slices.unread(ends)
            if not unread:
                break
            if not taken.is_all:
                continue
            is_done = is_level(unread, planned - before, _QUERY_START_S, size.records)
            if not is_done:
                # The batch was not full, so the next one waits for the commit interval.
                self._out.stopped.wait(max(0.0, before + self._commit_interval_s - planned))
                planned, ends = time.monotonic(), self._ends.stable(places)
        return slices.starts

    def _hand_over(self, taken: Slice, planned: float) -> None:
        tables = self._reader.tables(taken.starts, taken.ends)
        for batch in self._reader.batches(taken.starts, taken.ends, tables):
            log.info(
                "batch: subtopology=%d gear=catch-up offsets=%d partials=%d seconds=%.3f",
                self._subtopology.index, sum(end - batch.starts[p] for p, end in batch.ends.items()),
                sum(t.num_rows for t in batch.pipelines), time.monotonic() - planned,
            )  # fmt: skip
            self._out.put(batch)
            if self._out.stopped.is_set():
                return
