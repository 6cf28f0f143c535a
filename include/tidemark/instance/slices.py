"""The end of each bounded read of a sub-topology, chosen so that its sources advance together.

Kafka Streams' `PartitionGroup` with `max.task.idle.ms` = 0 defines the order: of the first unread records of its sources,
a task takes the one with the smallest timestamp, and it skips a source only if the broker has nothing unread of it. A slice
is the beginning of that sequence. Times are event times, so a topic that was loaded later than its records happened, or
out of order, is cut where Kafka Streams would cut it (`docs/decisions/0015-two-gears.md`). See invariant: sources advance
together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemark.names import TopicPartition
from tidemark.topology.paths import RecordPaths
from tidemark.topology.plan import SubTopology

Integers = npt.NDArray[np.int64]
Offsets = Mapping[TopicPartition, int]

LOOK_AHEAD_RECORDS = 200_000
"""The least number of offsets whose times are read at once: each read costs a Spark job, however small it is."""

NO_TIME = -1
"""Time of a record without a usable timestamp: older than all others, so it is taken as soon as it is the first unread."""

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class UnreadRecords:
    """The unread records of one source partition, with their event times as far as these are known.

    `start`, `known_end` and `end` are next offsets: of the first unread record, of the part that `offsets` and `times` cover,
    and of the records that the broker has. `offsets` ascend. A dead letter, without a usable time, has `NO_TIME`.
    """

    start: int
    known_end: int
    end: int
    offsets: Integers
    times: Integers

    @property
    def is_known(self) -> bool:
        """Return whether the times of all records that the broker has are known."""
        return self.known_end >= self.end


@dataclass(frozen=True)
class Choice:
    """Next offsets after a slice, one per source. `blocking`: more could be taken if more times were known."""

    ends: tuple[int, ...]
    records: int
    blocking: bool


def choose_ends(sources: Sequence[UnreadRecords], most_records: int) -> Choice:
    """Return the first `most_records` of one task's unread records in Kafka Streams' order, as far as that is known.

    `sources` are in the order in which equal timestamps are taken. Within a source the order is that of offsets, so a
    record that is older than one before it counts as old as that one: it is taken as soon as it is the first unread.
    """
    reached = [np.maximum.accumulate(source.times) for source in sources]
    counts = [len(times) for times in reached]
    # After the known part of a source any time may follow: no other source may pass the time that it has reached.
    limits = [
        (int(times[-1]) if len(times) else NO_TIME - 1, number)
        for number, (source, times) in enumerate(zip(sources, reached, strict=True))
        if not source.is_known
    ]
    if limits:
        counts = _until(reached, *min(limits))
    blocking = bool(limits) and sum(counts) < most_records
    if sum(counts) > most_records:
        counts = _first(reached, counts, most_records)
    ends = tuple(
        source.known_end if count == len(source.offsets) else int(source.offsets[count])
        for source, count in zip(sources, counts, strict=True)
    )
    return Choice(ends, sum(counts), blocking)


def _until(reached: Sequence[Integers], limit_ms: int, limiting: int) -> list[int]:
    """Return how many records of each source precede any record that may follow the limiting source's known ones."""
    return [
        int(np.searchsorted(times, limit_ms, side="right" if number <= limiting else "left"))
        for number, times in enumerate(reached)
    ]


def _first(reached: Sequence[Integers], counts: Sequence[int], most_records: int) -> list[int]:
    """Return how many of each source's first `counts` records are among the first `most_records` of all."""
    if most_records < 1:
        return [0] * len(counts)
    merged = np.concatenate([times[:count] for times, count in zip(reached, counts, strict=True)])
    last_ms = np.partition(merged, most_records - 1)[most_records - 1]
    found = [
        int(np.searchsorted(times[:count], last_ms, side="left")) for times, count in zip(reached, counts, strict=True)
    ]
    left = most_records - sum(found)
    for number, (times, count) in enumerate(zip(reached, counts, strict=True)):
        equal = int(np.searchsorted(times[:count], last_ms, side="right")) - found[number]
        found[number] += min(equal, left)
        left -= min(equal, left)
    return found


def shares_of(unread: Mapping[int, int], most_records: int) -> dict[int, int]:
    """Return each partition's part of a batch, in proportion to its unread records, so that all reach the end together."""
    total = sum(unread.values())
    if total <= most_records:
        return dict(unread)
    return {number: min(count, max(1, most_records * count // total)) for number, count in unread.items()}


@dataclass(frozen=True)
class Slice:
    """The range of one bounded read, as next offsets of every partition. `is_all`: it covers all that the broker had."""

    starts: Offsets
    ends: Offsets
    is_all: bool


Times = Mapping[TopicPartition, tuple[Integers, Integers]]
"""Offsets and event times of all records of source partitions, as in `UnreadRecords`."""

LookUp = Callable[[Mapping[TopicPartition, tuple[int, int]]], Times]
"""A function that reads the event times between two offsets of each partition, the second exclusive. Blocks."""


class Slices:
    """Cuts the unread records of one sub-topology's tasks into slices. Not safe for use from several threads.

    For a task with unread records of only one source, only offsets count. Otherwise event times are read ahead of the
    slices, once per record, and kept until the records are taken: 16 bytes for each of up to twice `most_records`, or twice
    `LOOK_AHEAD_RECORDS` if that is more.
    """

    def __init__(self, subtopology: SubTopology, starts: Offsets, most_records: int, look_up: LookUp) -> None:
        ranks = RecordPaths(subtopology).source_ranks()
        self._topics = [topic for _, topic in sorted(zip(ranks, subtopology.source_topics, strict=True))]
        self.most_records = most_records
        """Records of the next slice; may be changed before each."""
        self._look_up = look_up
        self._unread = {place: _nothing_known(start, start) for place, start in starts.items()}

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """Return where the next slice begins."""
        return {place: unread.start for place, unread in self._unread.items()}

    def unread(self, ends: Offsets) -> int:
        """Return the offsets from the next slice's start to `ends`: at least as many as there are records."""
        return sum(max(0, ends[place] - unread.start) for place, unread in self._unread.items())

    def next(self, ends: Offsets) -> Slice:
        """Return the next slice of the records before `ends`, the broker's. Blocks if times have to be read."""
        ends = {place: max(unread.start, ends[place]) for place, unread in self._unread.items()}
        starts = self.starts
        is_all = self.unread(ends) <= self.most_records
        chosen = dict(ends) if is_all else self._chosen(ends)
        self._unread = {place: _after(unread, chosen[place]) for place, unread in self._unread.items()}
        return Slice(starts, chosen, is_all)

    def _chosen(self, ends: Offsets) -> dict[TopicPartition, int]:
        left: dict[int, int] = {}
        for place, start in self.starts.items():
            left[place.partition] = left.get(place.partition, 0) + ends[place] - start
        shares = shares_of(left, self.most_records)
        self._unread = {place: _known_to(unread, ends[place]) for place, unread in self._unread.items()}
        choices = {number: self._choice(number, share) for number, share in shares.items()}
        blocked = {number: shares[number] for number, choice in choices.items() if choice.blocking}
        if blocked:
            self._look_further(blocked)
            choices |= {number: self._choice(number, share) for number, share in blocked.items()}
        return {
            place: end
            for number, choice in choices.items()
            for place, end in zip(self._places(number), choice.ends, strict=True)
        }

    def _places(self, number: int) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in self._topics]

    def _choice(self, number: int, share: int) -> Choice:
        sources = [self._unread[place] for place in self._places(number)]
        if sum(source.start < source.end for source in sources) > 1:
            return choose_ends(sources, share)
        # Only one source has unread records: offsets alone decide.
        return Choice(tuple(min(source.end, source.start + share) for source in sources), share, blocking=False)

    def _look_further(self, shares: Mapping[int, int]) -> None:
        """Read the times of every source of these tasks for which fewer records are known than the task's share."""
        at_once = LOOK_AHEAD_RECORDS // len(self._unread)
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        for number, share in shares.items():
            for place in self._places(number):
                unread = self._unread[place]
                if not unread.is_known and len(unread.offsets) < share:
                    ranges[place] = unread.known_end, min(unread.end, unread.known_end + max(share, at_once))
        found = self._look_up(ranges)
        for place, (_, known_end) in ranges.items():
            before = self._unread[place]
            offsets, times = found.get(place, (_NONE, _NONE))
            self._unread[place] = UnreadRecords(
                before.start,
                known_end,
                before.end,
                np.concatenate([before.offsets, offsets]),
                np.concatenate([before.times, times]),
            )


def _nothing_known(start: int, end: int) -> UnreadRecords:
    return UnreadRecords(start, start, end, _NONE, _NONE)


def _known_to(unread: UnreadRecords, end: int) -> UnreadRecords:
    return UnreadRecords(unread.start, unread.known_end, end, unread.offsets, unread.times)


def _after(unread: UnreadRecords, start: int) -> UnreadRecords:
    """Return what is left after everything before `start` was taken."""
    if start >= unread.known_end:
        return _nothing_known(start, unread.end)
    first = int(np.searchsorted(unread.offsets, start))
    return UnreadRecords(start, unread.known_end, unread.end, unread.offsets[first:], unread.times[first:])
