"""Figures of the last minutes, added up from the commit records that the application itself has written."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.names import TaskId, TopicPartition

WINDOW_MS = 900_000
"""How far back the figures go."""
BUCKET_MS = 10_000
"""Rates are those of the last complete bucket, and a chart has one column for each."""
_COMMITS_OF_STREAMS = frozenset({CommitKind.BATCH, CommitKind.TICK})
"""Commands move offsets, too, but process no records."""


@dataclass
class _Bucket:
    """Sums over the commits of ten seconds. `read` and `written` are by topic, `late` by sub-topology."""

    begin_ms: int
    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    late: Counter[int] = field(default_factory=Counter)
    bad: int = 0


@dataclass(frozen=True)
class CommitFigures:
    """The last 15 minutes of an application.

    `read_per_s` are offsets per second by source topic, `written_per_s` records per second by sink and changelog topic, both of
    the last complete ten seconds. `late` counts late rows by sub-topology and `bad` dead letters, in the whole window.
    `throughput` has offsets per second of all sources, from the oldest ten seconds to the newest.
    `committed` are the next offsets of the source partitions after the last commit; `last_commit_ms` is None without one.
    """

    read_per_s: Mapping[str, float]
    written_per_s: Mapping[str, float]
    late: Mapping[int, int]
    bad: int
    throughput: tuple[float, ...]
    committed: Mapping[TopicPartition, int]
    last_commit_ms: int | None


class CommitWindow:
    """Collects commit records in any order between tasks, and forgets those that are older than the window."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque()
        self._last: dict[TaskId, CommitRecord] = {}

    def remember(self, record: CommitRecord) -> None:
        """Take a record as its task's last one if it is the newest, without counting it.

        Every commit of a task raises its batch, until the application begins again without state. A commit's time comes from a
        clock that may have been wrong.
        """
        known = self._last.get(record.task)
        if known is None or known.batch <= record.batch or _begins_again(record, known):
            self._last[record.task] = record

    def add(self, record: CommitRecord) -> None:
        """Count one record."""
        self.remember(record)
        if record.kind not in _COMMITS_OF_STREAMS:
            return
        bucket = self._bucket(record.commit_time_ms)
        for topic, spans in record.sources.items():
            bucket.read[topic] += sum(end - start for start, end in spans.values())
        bucket.written.update(record.sinks)
        bucket.written.update(record.changelogs)
        bucket.late[record.task.subtopology] += record.late_rows
        bucket.bad += record.bad_rows

    def figures(self, now_ms: int) -> CommitFigures:
        """Return the figures at `now_ms` (epoch milliseconds), and forget what is too old."""
        newest = now_ms // BUCKET_MS * BUCKET_MS
        oldest = newest - WINDOW_MS
        self._buckets = deque(bucket for bucket in self._buckets if bucket.begin_ms >= oldest)
        by_begin = {bucket.begin_ms: bucket for bucket in self._buckets}
        last = by_begin.get(newest - BUCKET_MS, _Bucket(newest - BUCKET_MS))
        late: Counter[int] = Counter()
        for bucket in self._buckets:
            late.update(bucket.late)
        begins = range(oldest, newest, BUCKET_MS)
        throughput = (by_begin[at].read.total() if at in by_begin else 0 for at in begins)
        return CommitFigures(
            read_per_s=_per_second(last.read),
            written_per_s=_per_second(last.written),
            late=late,
            bad=sum(bucket.bad for bucket in self._buckets),
            throughput=tuple(count * 1000 / BUCKET_MS for count in throughput),
            committed={
                TopicPartition(topic, task.partition): offset
                for task, record in self._last.items()
                for topic, offset in record.end_offsets.items()
            },
            last_commit_ms=max((record.commit_time_ms for record in self._last.values()), default=None),
        )

    def _bucket(self, time_ms: int) -> _Bucket:
        begin = time_ms // BUCKET_MS * BUCKET_MS
        for bucket in reversed(self._buckets):
            if bucket.begin_ms == begin:
                return bucket
        self._buckets.append(_Bucket(begin))
        return self._buckets[-1]


def _per_second(counts: Mapping[str, int]) -> dict[str, float]:
    return {name: count * 1000 / BUCKET_MS for name, count in counts.items()}


def _begins_again(record: CommitRecord, known: CommitRecord) -> bool:
    return record.kind is CommitKind.START and record.commit_time_ms > known.commit_time_ms
