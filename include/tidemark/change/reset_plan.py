"""A reset of offsets before it runs: where every task goes, what is read again or passed over, what becomes of the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidemark.broker.offsets import EndOffsets
from tidemark.errors import StartRefused
from tidemark.names import TopicPartition
from tidemark.start.evidence import Watermarks


class ResetTo(StrEnum):
    """Where the offsets go. TIME: the first record whose Kafka timestamp is not older; OFFSETS: those that are given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIME = "time"


class StateAfter(StrEnum):
    """What becomes of the stores: they stay as they are, or begin anew."""

    KEEP = "keep"
    EMPTY = "empty"


@dataclass(frozen=True)
class SourceReset:
    """One source partition. A repartition topic (`is_internal`) only moves when the state begins anew, to its end, or when
    it was made again, to its beginning."""

    partition: TopicPartition
    from_offset: int
    to_offset: int
    is_internal: bool

    @property
    def again(self) -> int:
        """Offsets that are read once more."""
        return max(0, self.from_offset - self.to_offset)

    @property
    def skipped(self) -> int:
        """Offsets that are never read."""
        return max(0, self.to_offset - self.from_offset)


@dataclass(frozen=True)
class ResetPlan:
    """The whole of it.

    `rewritten` stores are copied to new changelogs, as their old place would be ahead of Kafka. `accepted` are topics that were
    deleted, made again or truncated; the application goes on without what they held.
    """

    application_id: str
    to: ResetTo
    state: StateAfter
    sources: tuple[SourceReset, ...]
    rewritten: tuple[str, ...]
    emptied: tuple[str, ...]
    windowed: tuple[str, ...]
    accepted: tuple[str, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        """Whether every offset stands there already, no store begins anew, and every topic is the one that was committed."""
        return self.state is StateAfter.KEEP and self.moves_nothing and not self.accepted

    @property
    def targets(self) -> list[str]:
        """Where the user's partitions go, as `parse_offsets` reads it."""
        return [f"{s.partition.topic}:{s.partition.partition}={s.to_offset}" for s in self.sources if not s.is_internal]

    @property
    def moves_nothing(self) -> bool:
        """Whether every offset stands there already."""
        return not any(source.again or source.skipped for source in self.sources)

    @property
    def warnings(self) -> list[str]:
        """What it means."""
        again, skipped = (sum(getattr(s, what) for s in self.sources) for what in ("again", "skipped"))
        told: list[str] = []
        if again and self.state is StateAfter.KEEP:
            told.append(f"up to {again} records are processed again on top of what the stores hold: they count twice")
            if self.windowed:
                told.append(f"stream time stays: what is older than the grace is late in {', '.join(self.windowed)}")
        elif again:
            told.append(f"up to {again} records are processed again, and their outputs emitted again")
        if skipped:
            told.append(f"up to {skipped} records are never processed")
        if self.accepted:
            told.append(
                f"{', '.join(self.accepted)}: deleted, made again or truncated since the last commit; what they held is "
                "given up"
            )
        if self.emptied:
            told.append(f"the contents of {', '.join(self.emptied)} are given up")
        return told


def parse_offsets(texts: Sequence[str]) -> dict[TopicPartition, int]:
    """`topic:partition=offset`, as often as there are partitions. Raises `StartRefused`."""
    found: dict[TopicPartition, int] = {}
    for text in texts:
        place, _, offset = text.rpartition("=")
        topic, _, number = place.rpartition(":")
        if not topic or not number.isdecimal() or not offset.isdecimal():
            raise StartRefused(f"--offset {text}: write TOPIC:PARTITION=OFFSET, e.g. pulse-events:0=1200")
        found[TopicPartition(topic, int(number))] = int(offset)
    return found


def target_offsets(
    to: ResetTo,
    sources: Mapping[TopicPartition, Watermarks],
    given: Mapping[TopicPartition, int],
    at_ms: int | None,
    ends: EndOffsets,
) -> dict[TopicPartition, int]:
    """Where the user's partitions go. Blocks for a round trip. Raises `StartRefused` for an offset that is not there."""
    if to is ResetTo.EARLIEST:
        return {partition: marks.low for partition, marks in sources.items()}
    if to is ResetTo.LATEST:
        return {partition: marks.end for partition, marks in sources.items()}
    if to is ResetTo.TIME:
        if at_ms is None:
            raise StartRefused("--to time needs --time: 2026-08-01T12:00:00Z, epoch milliseconds, or -10m")
        return ends.at_time(list(sources), at_ms)
    for partition in given.keys() - sources.keys():
        raise StartRefused(f"--offset {partition}: the application does not read it")
    for partition in sources.keys() - given.keys():
        raise StartRefused(
            f"--to offsets needs one of every partition: --offset {partition.topic}:{partition.partition}=… is missing"
        )
    for partition, offset in given.items():
        marks = sources[partition]
        if not marks.low <= offset <= marks.end:
            raise StartRefused(f"--offset {partition}: {offset} is not there, it holds {marks.low} to {marks.end}")
    return dict(given)
