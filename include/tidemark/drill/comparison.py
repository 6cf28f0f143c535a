"""Comparison of a built store with the savepoint's: the access to disks and brokers that `judge` needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.drill.rebuild import Built, DrillRebuilder, SavedState
from tidemark.drill.store_diff import compare, summary
from tidemark.drill.verdicts import judge
from tidemark.errors import CopyUnusable
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.drill_history.report import RebuildMethod, StoreDrill
from tidemark.recovery.facts import TaskFacts
from tidemark.restore.bounds import Beginning, EvidenceBounds, Keeping, bounds_of
from tidemark.restore.restorer import RestoreSuspended
from tidemark.stores.rocksdb import opened


@dataclass(frozen=True)
class StoreComparator:
    """Compares built stores; `keepings` by changelog topic. Safe to use from several threads, one per store."""

    rebuilder: DrillRebuilder
    keepings: Mapping[str, Keeping]

    def weigh(self, way: RebuildMethod, kind: str, state: SavedState, built: Built) -> StoreDrill:
        """Compare the store that was built as `kind` with that of the savepoint. Blocks.

        Raises `SavepointFailed`, `OutcomeUnknown`.
        """
        context = self.rebuilder.context
        changelog = context.evidence.witnesses.changelog_of(state.task, state.spec)
        keeping = self.keepings[changelog.topic]
        if built.fault is not None:
            return judge(state, way, built, None, (), keeping)
        try:
            folder = self.rebuilder.fetch(state)
        except CopyUnusable as error:
            fault = f"savepoint {state.savepoint_id} cannot be compared with: {error}"
            return judge(state, way, built.failed(fault), None, (), keeping)
        low = context.clients.ends.beginnings([changelog])[changelog]
        bounds = self._bounds(way, state, built, low, keeping)
        with opened(folder) as saved, opened(self.rebuilder.folder_of(kind, state)) as rebuilt:
            compared = compare(saved, rebuilt, bounds)
            if compared.aged or compared.deleted:
                compared = compare(saved, rebuilt, bounds, self._tombstoned(changelog, low, built.end_offset))
        subtopology = context.plan.subtopologies[state.task.subtopology]
        first = [summary(subtopology, state.spec, difference) for difference in compared.first]
        return judge(state, way, built, compared, first, keeping)

    def _bounds(
        self, way: RebuildMethod, state: SavedState, built: Built, low: int, keeping: Keeping
    ) -> EvidenceBounds:
        """Return the bounds as a restore's verification has them.

        If the store was built from a savepoint, that provides what the changelog has lost, and the tail is whole.
        """
        context, checkpoint = self.rebuilder.context, state.copy.checkpoint
        beginning = Beginning(0)
        if way is not RebuildMethod.SAVEPOINT:
            changelog = context.evidence.witnesses.changelog_of(state.task, state.spec)
            beginning = context.rebuilder.beginning(
                state.spec, changelog, low, built.end_offset, self.rebuilder.should_continue
            )
        return bounds_of(
            state.spec,
            checkpoint.stream_time_ms,
            keeping.retention_ms,
            beginning,
            context.clients.settings.max_timestamp_ahead_ms,
            context.clients.clock(),
        )

    def _tombstoned(self, changelog: TopicPartition, low: int, end: int) -> set[bytes]:
        """Return the keys whose last record is a tombstone."""
        deleted: set[bytes] = set()
        reached = low
        for batch in self.rebuilder.context.clients.read(changelog, low, end, self.rebuilder.should_continue):
            reached = batch.next_offset
            for key, value in zip(batch.keys, batch.values, strict=True):
                deleted.add(key) if value is None else deleted.discard(key)
        if reached < end:
            raise RestoreSuspended(f"{changelog} at {reached} of {end}")
        return deleted


def distance(states: Sequence[SavedState], facts: Mapping[TaskId, TaskFacts]) -> tuple[int, float]:
    """Return how far the application is ahead of these states: source offsets over all tasks, and seconds of commit time."""
    offsets, seconds = 0, 0.0
    for task, checkpoint in {state.task: state.copy.checkpoint for state in states}.items():
        found = facts[task]
        for partition, committed in found.committed.items():
            offsets += max(0, committed.offset - checkpoint.source_offsets.get(partition.topic, committed.offset))
        if found.record is not None and found.record.batch > checkpoint.batch:
            seconds = max(seconds, (found.record.commit_time_ms - checkpoint.commit_time_ms) / 1000)
    return offsets, seconds
