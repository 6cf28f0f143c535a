"""The evidence that the start plan of a task is decided on: what was found in Kafka and in folders. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitRecord
from tidemark.kafka.topic_config import DAY_MS
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.registry.topic_identities import LostTopic
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import StreamTimes

CLOCKS_MS = DAY_MS // 2
"""The difference that is tolerated between the clocks of instances and brokers.

The topic keeps records for a day longer than the store needs them. So half of that day is left in which missing records are
noticed, although no window needs them any more.
"""


@dataclass(frozen=True)
class StateCopy:
    """A copy of one store and its checkpoint, named by `location`. `bytes_to_copy` are fetched before it can be opened.

    `suspected` is a clause that follows the location in a message: why the copy is only taken if an operator asks for
    it. None if nothing is known against it.
    """

    kind: SourceOfState
    checkpoint: StoreCheckpoint
    location: str
    bytes_to_copy: int = 0
    suspected: str | None = None


@dataclass(frozen=True)
class Watermarks:
    """The first offset that exists (`low`) and the read_uncommitted end offset (`end`) of a partition."""

    low: int
    end: int


@dataclass(frozen=True)
class KeptDeletions:
    """How long a changelog keeps tombstones: `retention_ms`; those written before `raised_ms`, `smaller_retention_ms`."""

    retention_ms: int
    raised_ms: int = 0
    smaller_retention_ms: int = 0

    def gap_since(self, since_ms: int, now_ms: int) -> str | None:
        """Return why deletions since a time may be missing from the changelog; None if all of them are there.

        The result is a clause that follows the name of a copy that was up to date at that time.
        """
        if now_ms - since_ms >= self.retention_ms:
            return "is older than delete.retention.ms"
        if since_ms < self.raised_ms and now_ms - since_ms >= self.smaller_retention_ms:
            return "is from before a raise of delete.retention.ms, and older than the smaller value"
        return None


@dataclass(frozen=True)
class StoreEvidence:
    """The evidence about one store and its changelog.

    `changelog_retention_ms` is None if the topic is only compacted. `is_source` is true if the changelog is a source
    topic, which may hold records from before the application's first run. `not_recomputable_reason` gives the reason why the
    store cannot be computed again from its sources (see `tidemark.recovery.recomputable`), and is None if it can. `lost` is
    set if the changelog was deleted, or deleted and created again. Records at or after `young_offset` are too young for
    `retention.ms` to have deleted them; it is None if that offset is not known. `lost_until_ms` is the store's stream time
    after the last commit that wrote below the changelog's first offset, or None if no commit record says it.
    """

    store: str
    value_layout: str
    copies: tuple[StateCopy, ...]
    changelog: TopicPartition
    changelog_watermarks: Watermarks
    kept_deletions: KeptDeletions
    store_retention_ms: int | None
    changelog_retention_ms: int | None
    is_source: bool = False
    not_recomputable_reason: str | None = None
    lost: LostTopic | None = None
    young_offset: int | None = None
    lost_until_ms: int | None = None


@dataclass(frozen=True)
class SourceEvidence:
    """The evidence about one source partition. `fresh_offset` is where a new application would begin.

    `is_compacted` is only looked up where the source's beginning matters. `lost` is set if the topic was deleted, or
    deleted and created again.
    """

    partition: TopicPartition
    committed_offset: int | None
    watermarks: Watermarks
    fresh_offset: int
    is_compacted: bool = False
    lost: LostTopic | None = None


@dataclass(frozen=True)
class TaskEvidence:
    """Everything that decides how a task starts. The first source is the lead source."""

    application_id: str
    task: TaskId
    sources: tuple[SourceEvidence, ...]
    committed_metadata: OffsetMetadata | None
    last_record: CommitRecord | None
    stores: tuple[StoreEvidence, ...]
    now_ms: int


@dataclass(frozen=True)
class CommittedProgress:
    """The progress of a task that Kafka has committed; `next_offsets` by source topic."""

    next_offsets: Mapping[str, int]
    batch: int
    stream_times: StreamTimes
