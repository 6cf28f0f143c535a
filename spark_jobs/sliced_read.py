"""Reads a sub-topology without end, in slices between explicit offsets (see invariant: sources advance together)."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from spark_jobs.bounded_read import BoundedReader
from tidemark.clock import Period
from tidemark.errors import OutcomeUnknown
from tidemark.instance.hand_over import HandOver
from tidemark.instance.slices import Offsets, Slice, Slices
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.kafka.offsets import EndOffsets, is_unanswered
from tidemark.settings import Settings
from tidemark.topology.plan import SubTopology

log = logging.getLogger(__name__)

_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.01, 0.05
_POLLS_PER_COMMIT = 4
_LOST_S = 10.0
"""A new leader may report an earlier end for a moment."""
_AWAY_S = 60.0
"""Brokers that do not answer are asked again for this long. Meanwhile the instance stays in its group."""


class _Condition:
    """Something that may pass by itself, and since when it lasts."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def lasts_s(self) -> float:
        """Note that it lasts, and return for how long it has been noted without an end."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s

    def ends(self) -> None:
        """Note that it does not last any more."""
        self._since_s = None


class SlicedReader:
    """Reads slice after slice. The next slice is computed while the task loop processes the previous one."""

    def __init__(
        self, settings: Settings, subtopology: SubTopology, reader: BoundedReader, ends: EndOffsets, out: HandOver
    ) -> None:
        self._commit_interval_s = settings.commit_interval_ms / 1000
        # Where nothing is unread, the brokers are asked again after this time.
        self._poll_s = min(_LONGEST_POLL_S, max(_SHORTEST_POLL_S, self._commit_interval_s / _POLLS_PER_COMMIT))
        self._subtopology = subtopology
        self._reader = reader
        self._ends = ends
        self._out = out
        self._away, self._lost = _Condition(), _Condition()

    def run(self, starts: Offsets, size: BatchSize) -> None:
        """Read from `starts` until the hand-over is stopped. Blocks.

        While more is unread than one batch may have, slices follow one another. Otherwise a batch has all unread records, and
        the next one begins after the commit interval.

        Raises `OutcomeUnknown` if brokers do not answer for `_AWAY_S`, or if records before `starts` are gone, and the errors
        that Spark raises.
        """
        slices = Slices(self._subtopology, starts, size.records, self._reader.times)
        while not self._out.stopped.is_set():
            began = time.monotonic()
            ends = self._end_offsets(slices.starts)
            if ends is None:
                self._out.stopped.wait(self._poll_s)
                continue
            if not slices.unread(ends):
                self._out.stopped.wait(self._poll_s)
                continue
            slices.most_records = size.records
            taken = slices.next(ends)
            self._hand_over(taken, began)
            if taken.is_all:
                self._out.stopped.wait(max(0.0, began + self._commit_interval_s - time.monotonic()))

    def _end_offsets(self, starts: Offsets) -> Offsets | None:
        """Return the end offsets of all partitions, or None if brokers do not answer for a moment."""
        try:
            ends = self._ends.stable(list(starts))
            early = [place for place, start in starts.items() if ends[place] < start]
            # An open transaction holds the stable offset back, but not the end of the records.
            written = self._ends.of(early)
        except OutcomeUnknown as error:
            if not is_unanswered(error) or self._away.lasts_s() > _AWAY_S:
                raise
            log.warning("no end offsets of the sources of sub-topology %d: %s", self._subtopology.index, error)
            return None
        self._away.ends()
        lost = [place for place in early if written[place] < starts[place]]
        if not lost:
            self._lost.ends()
        elif self._lost.lasts_s() > _LOST_S:
            place = lost[0]
            raise OutcomeUnknown(
                f"{place.topic}[{place.partition}] ends at offset {written[place]}, and is to be read from {starts[place]} on: "
                "its records were deleted, or the topic was created again"
            )
        return ends

    def _hand_over(self, taken: Slice, began: float) -> None:
        tables = self._reader.tables(taken.starts, taken.ends)
        for batch in self._reader.batches(taken.starts, taken.ends, tables):
            read = Period.since(began)
            log.info(
                "batch: subtopology=%d offsets=%d partials=%d seconds=%.3f",
                self._subtopology.index, sum(end - batch.starts[p] for p, end in batch.ends.items()),
                sum(t.num_rows for t in batch.pipelines), read.seconds,
            )  # fmt: skip
            self._out.put(replace(batch, read=read))
            if self._out.stopped.is_set():
                return
