"""The cut of one audit: the ranges of all tasks, and what must be read of each topic for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tidemark.audit.ranges import (
    PassedOver,
    Position,
    TaskRange,
    continues_from,
    has_begun_again,
    next_range,
    passed_over,
)
from tidemark.commit.history import commit_history
from tidemark.commit.record import CommitRecord
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import task_ids
from tidemark.names import TaskId, TopicPartition, by_topic, commits_topic, dlq_topic
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import TopologyPlan

_QUIET_TRIES = 20
_QUIET_WAIT_S = 0.1
_HANGING_WAIT_S = 0.5


@dataclass(frozen=True)
class End:
    """The ends of one partition. `waited_ms` is how long the read_committed end stayed below the other one."""

    partition: TopicPartition
    committed_end: int
    end: int
    waited_ms: int


@dataclass(frozen=True)
class Cut:
    """`ranges` by task; tasks without a new batch are left out. `lows` are the first offsets that topics still hold.

    `passed_over` are batches before the ranges, which cannot be judged. `left` has, by task, the number of batches after its
    range that can be audited, too.
    """

    ranges: Mapping[TaskId, TaskRange]
    ends: Sequence[End]
    lows: Mapping[TopicPartition, int]
    partitions: Mapping[str, int]
    passed_over: Sequence[PassedOver] = ()
    left: Mapping[TaskId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Cutter:
    """Reads commit records and ends. Blocks; raises `OutcomeUnknown` if the brokers do not answer.

    `stalled_ms`: a transaction that is open for this long without progress is hanging. `clock` returns epoch milliseconds.
    """

    plan: TopologyPlan
    client_config: Mapping[str, Any]
    ends: EndOffsets
    partitions: Mapping[str, int]
    stalled_ms: int
    kept_ms: int
    clock: Callable[[], int]

    def cut(self, before: Mapping[TaskId, Position], most_batches: int) -> Cut:
        """Return the cut to audit next."""
        outputs = self._outputs()
        committed, ends, is_quiet = self._settled(outputs)
        tasks = task_ids(self.plan, self.partitions)
        # Only decided records; open transactions are not waited for, as this stream may always have one.
        decided = {p: end for p, end in committed.items() if p.topic == self._commits}
        history, before = self._history(tasks, before, decided)
        is_quiet = is_quiet and self.ends.of(outputs) == ends
        readable, kept_since_ms = by_topic(committed), self.clock() - self.kept_ms
        ranges, passed, left = {}, list[PassedOver](), {}
        for task, records in history.items():
            known_until = before.get(task)
            passed += passed_over(task, records, known_until, self.plan.version, kept_since_ms)
            range_after = partial(
                next_range,
                task,
                records,
                version=self.plan.version,
                readable=readable,
                quiet_ends=by_topic(ends) if is_quiet else None,
                kept_since_ms=kept_since_ms,
            )
            found = range_after(before=known_until, most_batches=most_batches)
            if found is not None:
                if (rest := range_after(before=found.end, most_batches=sys.maxsize)) is not None:
                    left[task] = len(rest.records)
                is_newest = found.records[-1].batch == records[-1].batch
                known = known_until.commits_from if known_until else 0
                end = decided[TopicPartition(self._commits, task.partition)]
                ranges[task] = replace(found, commits_from=end if is_newest else known)
        sources = [
            TopicPartition(topic, task.partition)
            for task in ranges
            for topic in self.plan.subtopologies[task.subtopology].source_topics
        ]
        lows = self.ends.beginnings([*outputs, *dict.fromkeys(sources)])
        return Cut(ranges, self._open(outputs, committed, ends), lows, self.partitions, passed, left)

    def _history(
        self, tasks: Sequence[TaskId], before: Mapping[TaskId, Position], decided: Mapping[TopicPartition, int]
    ) -> tuple[dict[TaskId, list[CommitRecord]], dict[TaskId, Position]]:
        """Return the records of each task, and the positions that are still valid, without those of an earlier life of it."""
        known = {
            task: at
            for task, at in before.items()
            if at.commits_from <= decided.get(TopicPartition(self._commits, task.partition), 0)
        }
        history = self._read(tasks, known, decided)
        doubtful = [task for task in tasks if task in known and not continues_from(history[task], known[task])]
        if doubtful:
            whole = self._read(doubtful, {}, decided)
            for task in doubtful:
                if has_begun_again(whole[task], known[task]):
                    history[task] = whole[task]
                    del known[task]
        return history, known

    def _read(
        self, tasks: Sequence[TaskId], before: Mapping[TaskId, Position], decided: Mapping[TopicPartition, int]
    ) -> dict[TaskId, list[CommitRecord]]:
        history: dict[TaskId, list[CommitRecord]] = {task: [] for task in tasks}
        for record in commit_history(
            self.client_config,
            self.ends,
            self.plan.application_id,
            tasks,
            stalled_after_s=max(1.0, self.stalled_ms / 1000),
            from_offsets=self._unread(tasks, before),
            end_offsets=decided,
        ):
            history[record.task].append(record)
        return history

    def _unread(self, tasks: Sequence[TaskId], before: Mapping[TaskId, Position]) -> dict[TopicPartition, int]:
        """Return where each partition of the commits topic has records that some task's audits have not read."""
        starts: dict[TopicPartition, int] = {}
        for task in tasks:
            place = TopicPartition(self._commits, task.partition)
            start = before[task].commits_from if task in before else 0
            starts[place] = min(start, starts.get(place, start))
        return starts

    @property
    def _commits(self) -> str:
        return commits_topic(self.plan.application_id)

    def _outputs(self) -> list[TopicPartition]:
        app = self.plan.application_id
        logged = [s for s in self.plan.stores if s.has_changelog]
        topics = [topic for s in self.plan.subtopologies for topic in s.sink_topics]
        topics += [*(changelog_of(app, store) for store in logged), dlq_topic(app), self._commits]
        return [
            TopicPartition(topic, number)
            for topic in dict.fromkeys(topics)
            for number in range(self.partitions.get(topic, 0))
        ]

    def _settled(
        self, outputs: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], bool]:
        """Return read_committed and read_uncommitted ends, read again while they differ, as a transaction may be ending."""
        for _ in range(_QUIET_TRIES):
            # The order matters: a batch that is committed below the first ends has its commit record below the second.
            committed, ends = self.ends.stable(outputs), self.ends.of(outputs)
            if committed == ends:
                return committed, ends, True
            time.sleep(_QUIET_WAIT_S)
        return committed, ends, False

    def _open(
        self,
        outputs: Sequence[TopicPartition],
        committed: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> list[End]:
        """Wait for open transactions: each ends or advances within the timeout, or it is hanging."""
        waiting = {p for p in outputs if committed[p] < ends[p]}
        started, waited_ms = time.monotonic(), 0
        while waiting and waited_ms < self.stalled_ms:
            time.sleep(_HANGING_WAIT_S)
            now = self.ends.stable(sorted(waiting))
            waiting = {p for p in waiting if now[p] == committed[p]}
            waited_ms = int((time.monotonic() - started) * 1000)
        return [
            End(p, committed[p] if p in waiting else ends[p], ends[p], waited_ms if p in waiting else 0)
            for p in outputs
        ]
