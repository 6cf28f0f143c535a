"""What is found of a task before it starts: the evidence that the start plan decides on. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitRecord
from tidemark.names import TaskId, TopicPartition
from tidemark.start.identities import LostTopic
from tidemark.stores.marker import Marker
from tidemark.stream_times import StreamTimes
from tidemark.topology.plan import Guarantee


class SourceOfState(Enum):
    """Where a store's contents may come from. The order is the order of preference between equally fast ones.

    SOURCE, the source topics processed again from their start, is never taken unless it is asked for.
    """

    LOCAL = "local"
    STANDBY = "standby"
    SAVEPOINT = "savepoint"
    CHANGELOG = "changelog"
    SOURCE = "source"

    @property
    def rank(self) -> int:
        """0 is preferred."""
        return list(SourceOfState).index(self)


@dataclass(frozen=True)
class StateCopy:
    """A copy of one store and its marker. `location` names it; `bytes_to_copy` must be fetched before it can be opened.

    `suspected` says why it is not to be taken unless a person asks for it, in words that follow its location.
    """

    kind: SourceOfState
    marker: Marker
    location: str
    bytes_to_copy: int = 0
    suspected: str | None = None


@dataclass(frozen=True)
class Watermarks:
    """`low` is the first offset that exists, `end` the read_uncommitted end."""

    low: int
    end: int


@dataclass(frozen=True)
class StoreEvidence:
    """What was found of one store.

    `changelog_retention_ms` is None where the topic is only compacted. `is_source` where the changelog is a source topic,
    which holds records before the application has ever run. `impure` says why it cannot be computed again from its
    sources, see `tidemark.start.pure`; None where it can. `lost` says that the changelog was deleted or made again. What
    was written to it from `young_offset` on is too young for `retention.ms` to have deleted it; None where that is not known.
    """

    store: str
    value_layout: str
    copies: tuple[StateCopy, ...]
    changelog: TopicPartition
    changelog_watermarks: Watermarks
    delete_retention_ms: int
    store_retention_ms: int | None
    changelog_retention_ms: int | None
    is_source: bool = False
    impure: str | None = None
    lost: LostTopic | None = None
    young_offset: int | None = None


@dataclass(frozen=True)
class SourceEvidence:
    """What was found of one source partition. `fresh_offset` is where a new application would begin.

    `is_compacted` is only asked where the source's beginning matters. `lost` says that the topic was deleted or made again.
    """

    partition: TopicPartition
    committed_offset: int | None
    watermarks: Watermarks
    fresh_offset: int
    is_compacted: bool = False
    lost: LostTopic | None = None


@dataclass(frozen=True)
class TaskEvidence:
    """Everything that decides how a task starts. The first source leads."""

    application_id: str
    task: TaskId
    sources: tuple[SourceEvidence, ...]
    committed_metadata: OffsetMetadata | None
    last_record: CommitRecord | None
    guarantee: Guarantee
    stores: tuple[StoreEvidence, ...]
    now_ms: int


@dataclass(frozen=True)
class Standing:
    """Where Kafka says a task stands; `next_offsets` by source topic."""

    next_offsets: Mapping[str, int]
    batch: int
    stream_times: StreamTimes
