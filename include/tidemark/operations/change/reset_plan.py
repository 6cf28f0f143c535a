"""The plan of a reset of offsets: the new offsets, what is read again or skipped, and what happens to the state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemark.errors import StartRefused
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TopicPartition
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.recovery.evidence import Watermarks
from tidemark.registry.description import Description
from tidemark.topology.plan import StoreSpec


@dataclass(frozen=True)
class SourceReset:
    """The reset of one source partition. `asked_offset` is `to_offset`, unless records after it have been deleted.

    A repartition topic (`is_internal`) is moved only in three cases: to its end if the stores begin empty, to its beginning
    if it was created again, and to the nearest offset that exists if records were deleted from it.
    """

    partition: TopicPartition
    from_offset: int
    to_offset: int
    is_internal: bool
    asked_offset: int

    @property
    def again(self) -> int:
        """The number of offsets that are read again."""
        return max(0, self.from_offset - self.to_offset)

    @property
    def skipped(self) -> int:
        """The number of offsets that are never read."""
        return max(0, self.to_offset - self.from_offset)


@dataclass(frozen=True)
class ResetPlan:
    """The plan of a reset.

    `rewritten` stores are copied to new changelogs, because the old ones would be ahead of Kafka. `accepted` are topics
    that were deleted, created again or truncated; the application continues without what they held. `grown` are sources that
    have more partitions than at the last commit.
    """

    application_id: str
    to: ResetTo
    state: StateAfter
    sources: tuple[SourceReset, ...]
    rewritten: tuple[str, ...]
    emptied: tuple[str, ...]
    windowed: tuple[str, ...]
    accepted: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        """Whether every offset is already there, no store begins empty, and every topic is the one that was committed."""
        return self.state is StateAfter.KEEP and self.moves_nothing and not self.accepted

    @property
    def targets(self) -> list[str]:
        """The offsets asked for of the user's partitions, in the format of `parse_offsets`."""
        own = [source for source in self.sources if not source.is_internal]
        return [f"{s.partition.topic}:{s.partition.partition}={s.asked_offset}" for s in own]

    @property
    def moves_nothing(self) -> bool:
        """Whether every offset is already there."""
        return not any(source.again or source.skipped for source in self.sources)

    @property
    def warnings(self) -> list[str]:
        """The consequences, as text."""
        again, skipped = (sum(getattr(s, what) for s in self.sources) for what in ("again", "skipped"))
        summary: list[str] = []
        if again and self.state is StateAfter.KEEP:
            summary.append(
                f"up to {again} records are processed again on top of what the stores hold: they count twice"
            )
            if self.windowed:
                summary.append(
                    f"stream time stays, so records older than the grace are late in {', '.join(self.windowed)}"
                )
        elif again:
            summary.append(f"up to {again} records are processed again, and their outputs emitted again")
        if skipped:
            summary.append(f"up to {skipped} records are never processed")
        summary += [
            f"{s.partition} begins at offset {s.to_offset}: records from offset {s.asked_offset} on have been deleted"
            for s in self.sources
            if s.asked_offset < s.to_offset
        ]
        if self.accepted:
            summary.append(
                f"{', '.join(self.accepted)}: deleted, created again or truncated since the last commit; their contents are "
                "given up"
            )
        if self.grown:
            summary.append(
                f"{', '.join(self.grown)}: got more partitions; a key whose records from before are read, too, is processed by "
                "two tasks, each with a part of them"
            )
        if self.emptied:
            summary.append(f"the contents of {', '.join(self.emptied)} are given up")
        return summary


def require_kept(stores: Iterable[StoreSpec]) -> None:
    """Raise `StartRefused` if a reset cannot keep the contents of a store, because no changelog holds them.

    After any other commit than its own, a store that is not logged begins empty. One that is also in memory has lost its
    contents when its instance stopped, so a reset changes nothing for it.
    """
    if unlogged := [store.name for store in stores if not store.is_logged and not store.in_memory]:
        names = ", ".join(unlogged)
        drops = " ".join(f"--drop {name}" for name in unlogged)
        raise StartRefused(
            f"not logged, so --state keep would lose the contents of: {names}; use --state empty, which empties every store; "
            "or, to keep the others, first write a version of the topology that logs them or does without them, and give up "
            f"their contents with `tidemark upgrade run NAME {drops}`"
        )


def require_fixed_tables(description: Description, grown: Collection[str]) -> None:
    """Raise `StartRefused` if a topic in `grown` is the changelog of its own table, which therefore cannot begin empty."""
    for name, store in description.stores.items():
        if store.spec.source_topic in grown:
            raise StartRefused(
                f"{store.spec.source_topic} got more partitions, and store {name} has its records from before as contents, "
                "so it does not begin empty: copy the records by key to a new topic with that many partitions, and give a "
                "topology that reads it another application id"
            )


def parse_offsets(texts: Sequence[str]) -> dict[TopicPartition, int]:
    """Parse `topic:partition=offset`, once per partition. Raises `StartRefused`."""
    found: dict[TopicPartition, int] = {}
    for text in texts:
        place, _, offset = text.rpartition("=")
        topic, _, number = place.rpartition(":")
        if not topic or not number.isdecimal() or not offset.isdecimal():
            raise StartRefused(f"--offset {text}: write TOPIC:PARTITION=OFFSET, e.g. pulse-events:0=1200")
        partition = TopicPartition(topic, int(number))
        if partition in found:
            raise StartRefused(f"--offset {text}: {partition} is given twice; give each partition one offset")
        found[partition] = int(offset)
    return found


def target_offsets(
    to: ResetTo,
    sources: Mapping[TopicPartition, Watermarks],
    given: Mapping[TopicPartition, int],
    at_ms: int | None,
    ends: EndOffsets,
) -> dict[TopicPartition, int]:
    """Return the offsets asked for of the user's partitions. Blocks for one request.

    A given offset may be below the first one that exists. Raises `StartRefused` for one beyond the end.
    """
    if to is ResetTo.EARLIEST:
        return {partition: marks.low for partition, marks in sources.items()}
    if to is ResetTo.LATEST:
        return {partition: marks.end for partition, marks in sources.items()}
    if to is ResetTo.TIME:
        if at_ms is None:
            raise StartRefused("--to time needs --time: 2026-08-01T12:00:00Z, epoch milliseconds, or -10m")
        return ends.at_time(list(sources), at_ms)
    for partition in given.keys() - sources.keys():
        raise StartRefused(f"--offset {partition}: the application does not read this partition")
    for partition in sources.keys() - given.keys():
        raise StartRefused(
            f"--to offsets needs an offset of every partition: --offset {partition.topic}:{partition.partition}=… is missing"
        )
    for partition, offset in given.items():
        if offset > sources[partition].end:
            raise StartRefused(
                f"--offset {partition}: {offset} does not exist, the partition ends at offset {sources[partition].end}"
            )
    return dict(given)
