"""A search in the commit records reads each partition only until it has what it looks for."""

from __future__ import annotations

from collections import Counter

import pytest

from tidemark.commit import history
from tidemark.commit.history import oldest_writes
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.names import TaskId, TopicPartition
from tidemark.stream_times import StreamTimes

SINCE = 1_700_000_000_000
APP = "app"
CHANGELOG = f"{APP}-w-changelog"


def a_record(partition: int, ago_ms: int, before: int, wrote: int, subtopology: int = 0) -> CommitRecord:
    """A commit that found the changelog of its task ending at `before` and wrote `wrote` records to it."""
    changelog = CHANGELOG if subtopology == 0 else f"{CHANGELOG}-{subtopology}"
    return CommitRecord(
        kind=CommitKind.BATCH, application_id=APP, topology_version="1", task=TaskId(subtopology, partition), instance=0,
        batch=1, commit_time_ms=SINCE - ago_ms, sources={"in": {partition: (0, 1)}}, stream_times=StreamTimes.none(),
        rows=1, late_rows=0, bad_rows=0, filtered_rows=0, sinks={}, changelogs={changelog: wrote},
        ends_before={changelog: {partition: before}},
    )  # fmt: skip


class Ends:
    """Offsets of a topic that is read from its beginning."""

    def of(self, partitions):
        return dict.fromkeys(partitions, 100)

    def beginnings(self, partitions):
        return dict.fromkeys(partitions, 0)

    def at_time(self, partitions, at_ms):
        return dict.fromkeys(partitions, 0)


@pytest.fixture
def found(monkeypatch):
    """`found(records, lows)` asks for the changelogs in `lows`; what was found, and the records read of each partition."""

    def ask(records, lows):
        read = Counter()

        def read_committed_until(config, partition, start, end, **options):
            for record in records:
                if record.task.partition == partition.partition:
                    read[partition.partition] += 1
                    yield ChangelogBatch([str(record.task).encode()], [record.to_bytes()], end)

        monkeypatch.setattr(history, "read_committed_until", read_committed_until)
        suffixes = {TopicPartition(topic, number): topic.removeprefix(CHANGELOG) for topic, number in lows}
        wanted = {at: TaskId(int(suffix[1:] or 0), at.partition) for at, suffix in suffixes.items()}
        lows = {TopicPartition(*place): low for place, low in lows.items()}
        return oldest_writes({}, Ends(), APP, wanted, lows, SINCE, stalled_after_s=1), read

    return ask


def test_should_read_each_partition_only_until_its_own_changelogs_are_found(found):
    records = [a_record(number, -1, 10 * each, 1) for number in (0, 1, 2) for each in range(1, 50)]
    first, read = found(records, {(CHANGELOG, number): 5 for number in (0, 1, 2)})
    assert first == {TopicPartition(CHANGELOG, number): 10 for number in (0, 1, 2)}
    assert read == {0: 1, 1: 1, 2: 1}


def test_should_go_on_until_all_changelogs_of_a_partition_are_found(found):
    records = [
        *[a_record(0, -1, 10, 1)] * 5,
        *[a_record(0, -1, 30, 1, subtopology=1)] * 5,
    ]
    first, read = found(records, {(CHANGELOG, 0): 5, (f"{CHANGELOG}-1", 0): 5})
    assert first == {TopicPartition(CHANGELOG, 0): 10, TopicPartition(f"{CHANGELOG}-1", 0): 30}
    assert read == {0: 6}


def test_should_read_one_record_when_a_changelog_is_idle(found):
    """Nothing that comes later can be missing below the first offset that exists."""
    idle = [a_record(0, -1, 10, 0)] * 50
    first, read = found(idle, {(CHANGELOG, 0): 10})
    assert first == {TopicPartition(CHANGELOG, 0): 10}
    assert read == {0: 1}


@pytest.mark.parametrize(("low", "first"), [(10, 10), (11, 12), (12, 12), (13, 12), (99, 12)])
def test_should_find_the_first_young_write_that_may_be_missing(found, low, first):
    """A commit that wrote nothing proves nothing if only the marker of an older transaction is missing after it."""
    records = [a_record(0, 1, 5, 3), a_record(0, 0, 10, 0), a_record(0, -1, 12, 1), a_record(0, -2, 14, 1)]
    assert found(records, {(CHANGELOG, 0): low})[0] == {TopicPartition(CHANGELOG, 0): first}


def test_should_leave_out_a_changelog_that_no_young_commit_names(found):
    assert found([a_record(0, 1, 5, 3)], {(CHANGELOG, 0): 1}) == ({}, {0: 1})
