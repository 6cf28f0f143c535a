"""A search in the commit records reads each partition only until it has what it looks for."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tidemark.commit import history
from tidemark.commit.history import last_lost_writes, oldest_writes
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.names import TaskId, TopicPartition
from tidemark.stream_times import StreamTimes

SINCE = 1_700_000_000_000
APP = "app"
CHANGELOG = f"{APP}-w-changelog"


def a_record(
    partition: int, ago_ms: int, before: int, wrote: int, subtopology: int = 0, kind: CommitKind = CommitKind.BATCH
) -> CommitRecord:
    """A commit that found the changelog of its task ending at `before` and wrote `wrote` records to it."""
    changelog = CHANGELOG if subtopology == 0 else f"{CHANGELOG}-{subtopology}"
    return CommitRecord(
        kind=kind, application_id=APP, topology_version="1", task=TaskId(subtopology, partition), instance=0,
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


@pytest.fixture
def search(monkeypatch):
    """`search(records, lows)` looks for the last commits below the first offsets of changelogs, by their topic.

    They are those of task 0_0, unless `owners` names other tasks, by topic. It returns what was found, the number of records
    read, and the numbers of reads and of clients.
    """

    def ask(records, lows, owners=None, last_records=None):
        read, counted = [], Counter()

        @contextmanager
        def range_reader(config, name, **options):
            counted["clients"] += 1

            def read_range(partition, start, end):
                counted["reads"] += 1
                for record in records[start:end]:
                    read.append(record)
                    yield ChangelogBatch([str(record.task).encode()], [record.to_bytes()], end)

            yield read_range

        class AllRecords(Ends):
            def of(self, partitions):
                return dict.fromkeys(partitions, len(records))

        monkeypatch.setattr(history, "range_reader", range_reader)
        places = {TopicPartition(topic, 0): low for topic, low in lows.items()}
        wanted = {place: (owners or {}).get(place.topic, TaskId(0, 0)) for place in places}
        found = last_lost_writes(
            {}, AllRecords(), APP, wanted, places, last_records=last_records or {}, stalled_after_s=1
        )
        return found, len(read), counted

    return ask


@pytest.fixture
def lost(search):
    """`lost(records, low)` returns where the last commit begins that wrote below `low`, and the number of records read."""

    def ask(records, low):
        found, read, _ = search(records, {CHANGELOG: low})
        begins = [record.ends_before[CHANGELOG][0] for record in found.values()]
        return (begins[0] if begins else None), read

    return ask


@pytest.mark.parametrize(("low", "begins"), [(9, None), (10, None), (11, 10), (20, 10), (21, 20), (99, 30)])
def test_should_find_the_last_commit_that_wrote_to_what_a_changelog_has_lost(lost, low, begins):
    records = [a_record(0, 0, before, wrote) for before, wrote in ((5, 0), (10, 10), (20, 10), (30, 5), (36, 0))]
    assert lost(records, low)[0] == begins


def test_should_find_it_without_reading_all_commits(lost):
    records = [a_record(0, 0, 2 * number, 1) for number in range(20_000)]
    begins, read = lost(records, 30_001)
    assert begins == 30_000
    assert read < 1100


@pytest.mark.parametrize(
    ("kind", "begins"), [(CommitKind.UPGRADE, 50), (CommitKind.RESCALE, 50), (CommitKind.BATCH, None)]
)
def test_should_count_what_a_command_filled_a_new_changelog_with_as_written_from_its_beginning(lost, kind, begins):
    """The record of the command has the changelog's end after it was filled."""
    records = [a_record(0, 0, 50, 50, kind=kind), a_record(0, 0, 100, 1)]
    assert lost(records, 20)[0] == begins


@pytest.mark.parametrize("number", [1_250, 1_999, 2_000, 2_499, 2_500, 4_000])
def test_should_not_take_a_repair_of_a_few_keys_for_one_that_filled_a_new_changelog(lost, number):
    """What it wrote comes after the end that its record names, as with a batch."""
    records = [a_record(0, 0, each, 1) for each in range(5_000)]
    records[number] = replace(records[number], kind=CommitKind.REPAIR, appended=(CHANGELOG,))
    assert lost(records, 2_000)[0] == 1_999


@pytest.mark.parametrize(("appended", "is_written"), [((), False), ((CHANGELOG,), True)])
def test_should_write_to_which_changelogs_a_commit_appended_only_if_there_are_any(appended, is_written):
    """An earlier Tidemark does not know the field, and no batch has it."""
    record = replace(a_record(0, 0, 0, 1), kind=CommitKind.REPAIR, appended=appended)
    assert (b"appended" in record.to_bytes()) is is_written
    assert CommitRecord.from_bytes(record.to_bytes()) == record


def test_should_not_take_a_commit_of_another_task_for_the_one_that_filled_a_changelog(search):
    """The records of a command name the changelogs of all tasks, with their ends after it has filled them."""
    other = f"{CHANGELOG}-1"
    named = {topic: {0: 50} for topic in (CHANGELOG, other)}
    filled = [a_record(0, 0, 50, 50, subtopology, CommitKind.UPGRADE) for subtopology in (1, 0)]
    records = [replace(record, ends_before=named) for record in filled]
    found, *_ = search(records, {CHANGELOG: 20, other: 20}, {other: TaskId(1, 0)})
    assert found == {TopicPartition(CHANGELOG, 0): records[1], TopicPartition(other, 0): records[0]}


def several(number: int, stores: int) -> CommitRecord:
    """A commit that found `number` records in each changelog of several stores, and wrote one to each."""
    topics = [f"{CHANGELOG}-{store}" for store in range(stores)]
    changelogs, ends_before = dict.fromkeys(topics, 1), {topic: {0: number} for topic in topics}
    return replace(a_record(0, 0, number, 1), changelogs=changelogs, ends_before=ends_before)


def test_should_look_for_the_commits_of_all_stores_of_a_task_at_once(search):
    asked = {}
    for stores in (1, 5):
        records = [several(number, stores) for number in range(5_000)]
        lows = {f"{CHANGELOG}-{store}": 3_000 for store in range(stores)}
        found, *asked[stores] = search(records, lows)
        assert [record.ends_before[at.topic][0] for at, record in found.items()] == [2_999] * stores
    assert asked[1] == asked[5]
    assert asked[5][1]["clients"] == 1


@pytest.mark.parametrize("lows", [(1, 1_500, 9_000), (9_000, 2_999, 1), (1_024, 1_025, 1_023)])
def test_should_find_the_commit_of_each_store_although_they_have_lost_different_parts(search, lows):
    records = [several(number, len(lows)) for number in range(3_000)]
    found, read, _ = search(records, {f"{CHANGELOG}-{store}": low for store, low in enumerate(lows)})
    last = {at.topic: record.ends_before[at.topic][0] for at, record in found.items()}
    assert last == {f"{CHANGELOG}-{store}": min(low, 3_000) - 1 for store, low in enumerate(lows)}
    assert read < 3_000


def test_should_look_for_no_commit_when_no_changelog_has_lost_its_beginning(search):
    assert search([], {}) == ({}, 0, {})


def test_should_find_nothing_and_read_a_partition_once_when_another_task_fills_it(search):
    """Looks find nothing but commits of others, for all stores of all tasks alike."""
    others = [a_record(0, 0, number, 1, subtopology=9) for number in range(5_000)]
    lows = {f"{CHANGELOG}-{store}": 10 for store in range(5)}
    owners = {topic: TaskId(number // 2, 0) for number, topic in enumerate(lows)}
    found, read, _ = search(others, lows, owners)
    assert (found, read) == ({}, len(others))


@pytest.mark.parametrize(("wrote", "is_read"), [(1, False), (0, True)])
def test_should_read_nothing_when_the_last_commit_of_a_task_wrote_to_what_is_lost(search, wrote, is_read):
    """So it is with a task that has had no input for longer than its changelog keeps windows."""
    others = [a_record(0, 0, number, 1, subtopology=1) for number in range(5_000)]
    own = [a_record(0, 0, 10, 1), a_record(0, 0, 12, wrote)]
    found, read, _ = search([*own, *others], {CHANGELOG: 13}, last_records={TaskId(0, 0): own[-1]})
    assert [record.ends_before[CHANGELOG][0] for record in found.values()] == [12 if wrote else 10]
    assert (read > 0) is is_read


@pytest.mark.parametrize("seed", range(3))
def test_should_find_what_a_search_of_all_commits_finds_however_often_each_task_commits(search, seed):
    chance = random.Random(seed)
    topics = {0: CHANGELOG, **{number: f"{CHANGELOG}-{number}" for number in (1, 2, 3)}}
    ends, records = Counter(), []
    for number in range(4_000):
        # Task 3_0 commits only in the middle.
        weights = (1000, 30, 1, 300 if 2_000 < number < 3_000 else 0)
        (task,) = chance.choices(range(4), weights)
        wrote = chance.choice((0, 1, 5))
        records.append(a_record(0, 0, ends[task], wrote, subtopology=task))
        # A command's record names the changelogs of all tasks.
        if chance.random() < 0.01:
            records[-1] = replace(records[-1], ends_before={topic: {0: ends[n]} for n, topic in topics.items()})
        ends[task] += wrote + 1
    lows = {topics[task]: chance.randint(0, end + 1) for task, end in ends.items()}
    owners = {topics[task]: TaskId(task, 0) for task in ends}
    expected = {}
    for record in records:
        topic = topics[record.task.subtopology]
        if record.ends_before[topic][0] < lows[topic] and record.changelogs[topic]:
            expected[TopicPartition(topic, 0)] = record
    last_records = {record.task: record for record in records}
    for known in ({}, last_records):
        found, *_ = search(records, lows, owners, known)
        assert found == expected
