"""Which keys of a store its changelog can be held to: the one judgement of time for restores and drills (rules 11 and 30).

A changelog says something of every key that it holds a record of. Of a key without one it says something only where such a
record would still be there: the broker may have deleted the beginning of the topic, by age or because somebody purged it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidemark.checks.verdict import Verdict
from tidemark.tasks.values import first_live_segment
from tidemark.topology.plan import StoreSpec

_ALL_SEGMENTS = 1 << 62


class Absence(StrEnum):
    """What it means that a changelog has no record of a key that a store holds."""

    DIFFERENCE = "difference"
    AGED = "aged"
    DELETED = "deleted"


@dataclass(frozen=True)
class Keeping:
    """What a changelog topic is set to keep. `retention_ms` is None where it deletes nothing by age."""

    topic: str
    min_compaction_lag_ms: int
    retention_ms: int | None

    @classmethod
    def of(cls, topic: str, config: Mapping[str, str]) -> Keeping:
        """From the topic's settings as the broker tells them."""
        deletes = "delete" in config.get("cleanup.policy", "delete")
        retention_ms = int(config.get("retention.ms", "-1"))
        lag_ms = int(config.get("min.compaction.lag.ms", "0"))
        return cls(topic, lag_ms, retention_ms if deletes and retention_ms >= 0 else None)


@dataclass(frozen=True)
class Beginning:
    """Where a changelog partition begins. `first_record_ms` is its first record's time, None where it holds none or where
    nothing before it was deleted."""

    low_offset: int
    first_record_ms: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the broker has deleted nothing: what has no record was never written, or its tombstone is compacted away."""
        return self.low_offset == 0


@dataclass(frozen=True)
class EvidenceBounds:
    """Which segments count. Each is None where it leaves nothing out.

    What lies before `first_live` has expired, and either side may have dropped it. A key before `first_present` may have had
    its only record in the part of the changelog that is deleted: by age, if it also lies before `first_kept`.
    """

    first_live: int | None
    first_kept: int | None
    first_present: int | None

    @property
    def is_whole(self) -> bool:
        """Whether every key that has not expired and has no record differs."""
        return self.first_present is None or (self.first_live is not None and self.first_present <= self.first_live)

    def has_expired(self, segment: int) -> bool:
        """Whether no key of the segment counts."""
        return self.first_live is not None and segment < self.first_live

    def absence(self, segment: int) -> Absence:
        """What a key of the segment without a record is."""
        if self.first_present is None or segment >= self.first_present:
            return Absence.DIFFERENCE
        return Absence.AGED if self.first_kept is not None and segment < self.first_kept else Absence.DELETED


def bounds_of(
    spec: StoreSpec,
    stream_time_ms: int,
    retention_ms: int | None,
    beginning: Beginning,
    max_ahead_ms: int,
    now_ms: int,
) -> EvidenceBounds:
    """Which segments of a store count; `retention_ms` is the changelog's, None where it deletes nothing by age.

    A window begins at most `max_ahead_ms` after each of its records was written (rule 14), and records are written in the
    order of the clock. So a window that begins later than that after the first record that is left has all of its records
    behind that one; and one that the broker has deleted by age begins at most so long after the oldest age it keeps.
    Keys without a window have no time: where the beginning is gone, any of them may have been in it.
    """
    first_live = first_live_segment(spec, stream_time_ms)
    if beginning.is_whole:
        return EvidenceBounds(first_live, None, None)
    if spec.segment_ms is None or beginning.first_record_ms is None:
        first_present = _ALL_SEGMENTS
    else:
        first_present = (beginning.first_record_ms + max_ahead_ms) // spec.segment_ms + 1
    if spec.segment_ms is None or retention_ms is None:
        return EvidenceBounds(first_live, None, first_present)
    return EvidenceBounds(first_live, (now_ms - retention_ms + max_ahead_ms) // spec.segment_ms + 1, first_present)


@dataclass(frozen=True)
class Figures:
    """What a comparison comes to, in keys that either side holds. Every key is compared or left out; those that differ were
    compared, and `deleted` of those left out may have been in a beginning that no age explains the loss of.

    `is_whole`: of every key that has not expired the changelog would hold the record.
    """

    compared: int
    left_out: int
    differing: int
    deleted: int
    is_whole: bool

    @property
    def verdict(self) -> Verdict:
        """Of one store. With nothing compared it is not enough evidence, unless a whole changelog says that it is empty."""
        if self.differing:
            return Verdict.FAILED
        if self.deleted or not (self.compared or self.is_whole):
            return Verdict.NOT_ENOUGH_EVIDENCE
        return Verdict.OK

    @property
    def told(self) -> str:
        """The three figures in words."""
        return f"{self.compared} keys compared, {self.left_out} left out, {self.differing} differ"


def total(figures: Iterable[Figures]) -> Figures:
    """Of several stores together. That all of them are empty proves nothing of any restore, so it is never whole."""
    found = list(figures)
    return Figures(
        sum(one.compared for one in found),
        sum(one.left_out for one in found),
        sum(one.differing for one in found),
        sum(one.deleted for one in found),
        is_whole=False,
    )


def overall(figures: Iterable[Figures]) -> Verdict:
    """Of several stores: the worst of them, and not enough evidence where not one key was compared."""
    found = list(figures)
    verdicts = {one.verdict for one in (*found, total(found))}
    return next(
        (verdict for verdict in (Verdict.FAILED, Verdict.NOT_ENOUGH_EVIDENCE) if verdict in verdicts), Verdict.OK
    )
