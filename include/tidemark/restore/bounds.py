"""Decision which keys of a store can be compared with its changelog. Restores and drills share it.

A record in the changelog proves what the value of its key is. A key without a record proves something only if its
record would still be there: the broker may have deleted the beginning of the topic, by age or because it was purged.
See invariants: two retentions, evidence or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidemark.registry.kept_history import KeptHistory
from tidemark.tasks.values import first_live_segment
from tidemark.topology.plan import StoreSpec
from tidemark.verdict import Verdict

_ALL_SEGMENTS = 1 << 62


class Absence(StrEnum):
    """The meaning of a key that a store holds and of which the changelog has no record."""

    DIFFERENCE = "difference"
    AGED = "aged"
    DELETED = "deleted"


@dataclass(frozen=True)
class Keeping:
    """The records that a changelog topic is configured to keep. `retention_ms` is None if it deletes nothing by age.

    Values that were superseded before `compacted_before_ms` may be compacted away, although they are younger than the lag.
    """

    topic: str
    min_compaction_lag_ms: int
    retention_ms: int | None
    compacted_before_ms: int = 0

    @classmethod
    def of(cls, topic: str, config: Mapping[str, str], known: KeptHistory | None = None) -> Keeping:
        """Read the settings of the topic, as the broker returns them. `known` is what starts have seen of it before."""
        deletes = "delete" in config.get("cleanup.policy", "delete")
        retention_ms = int(config.get("retention.ms", "-1"))
        lag_ms = int(config.get("min.compaction.lag.ms", "0"))
        retention = retention_ms if deletes and retention_ms >= 0 else None
        if known is None:
            return cls(topic, lag_ms, retention)
        return cls(topic, min(lag_ms, known.min_compaction_lag_ms), retention, known.compacted_before_ms)


@dataclass(frozen=True)
class Beginning:
    """The beginning of a changelog partition.

    `first_record_ms` is the timestamp of its first record; None if it holds none, or if nothing before it was deleted.
    """

    low_offset: int
    first_record_ms: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the broker has deleted nothing.

        If so, a key without a record was never written, or its tombstone was compacted away.
        """
        return self.low_offset == 0


@dataclass(frozen=True)
class EvidenceBounds:
    """The segments whose keys are compared. A bound that is None leaves nothing out.

    Segments before `first_live` have expired, and either side may have dropped them. A key before `first_present` may
    have had its only record in the deleted part of the changelog; deleted by age if the key is also before
    `first_kept`.
    """

    first_live: int | None
    first_kept: int | None
    first_present: int | None

    @property
    def is_whole(self) -> bool:
        """Whether every key without a record differs, unless it has expired."""
        return self.first_present is None or (self.first_live is not None and self.first_present <= self.first_live)

    def has_expired(self, segment: int) -> bool:
        """Whether the segment has expired, so that none of its keys is compared."""
        return self.first_live is not None and segment < self.first_live

    def absence(self, segment: int) -> Absence:
        """Return what it means that the changelog has no record of a key of this segment."""
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
    """Return which segments of a store are compared. `retention_ms` is the changelog's; None if it deletes nothing by age.

    A window begins at most `max_ahead_ms` after each of its records was written (see invariant: impossible timestamps),
    and records are written in the order of the wall clock. So a window that begins more than `max_ahead_ms` after the
    first remaining record was written still has all of its records, and a window whose records were deleted by age
    begins at most `max_ahead_ms` after the oldest time that retention keeps. Keys without a window have no time: if the
    beginning is deleted, any of them may have been in it.
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
    """The result of a comparison, in keys that the store or the changelog holds. Every key is compared or left out.

    `differing` keys are among those compared. `deleted` counts keys left out that may have been in a beginning whose
    deletion no age explains. `is_whole` is true if the changelog would hold a record of every key that has not expired.
    """

    compared: int
    left_out: int
    differing: int
    deleted: int
    is_whole: bool

    @property
    def verdict(self) -> Verdict:
        """The verdict on one store.

        If nothing was compared, it is not enough evidence, unless a whole changelog proves it empty.
        """
        if self.differing:
            return Verdict.FAILED
        if self.deleted or not (self.compared or self.is_whole):
            return Verdict.NOT_ENOUGH_EVIDENCE
        return Verdict.OK

    @property
    def summary(self) -> str:
        """The figures as text."""
        return f"{self.compared} keys compared, {self.left_out} left out, {self.differing} differ"


def total(figures: Iterable[Figures]) -> Figures:
    """Add up the figures of several stores.

    The sum is never whole: that all stores are empty proves nothing about a restore.
    """
    found = list(figures)
    return Figures(
        sum(one.compared for one in found),
        sum(one.left_out for one in found),
        sum(one.differing for one in found),
        sum(one.deleted for one in found),
        is_whole=False,
    )


def overall(figures: Iterable[Figures]) -> Verdict:
    """Return the verdict on several stores: the worst of theirs, and not enough evidence if not one key was compared."""
    found = list(figures)
    verdicts = {one.verdict for one in (*found, total(found))}
    return next(
        (verdict for verdict in (Verdict.FAILED, Verdict.NOT_ENOUGH_EVIDENCE) if verdict in verdicts), Verdict.OK
    )
