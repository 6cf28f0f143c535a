"""A changelog that lost its beginning, judged by a machine whose clock differs from that of the brokers."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import pytest

from tidemark.commit import history
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.kafka.topic_config import changelog_policies
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery import facts
from tidemark.recovery.candidates import MEASURED, changelog_fault, rank_candidates
from tidemark.recovery.evidence import CommittedProgress, TaskEvidence
from tidemark.recovery.facts import Witnesses
from tidemark.settings import Settings
from tidemark.stream_times import StreamTimes
from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling

MINUTE, HOUR = 60_000, 3_600_000
BROKERS_NOW = 1_700_000_000_000
TASK = TaskId(0, 0)


class Ends:
    """A changelog that begins at `low`; other topics are read from their beginning."""

    def __init__(self, changelog: TopicPartition, low: int, end: int) -> None:
        self.changelog, self.low, self.end = changelog, low, end

    def of(self, partitions):
        return dict.fromkeys(partitions, self.end)

    def beginnings(self, partitions):
        return {partition: self.low if partition == self.changelog else 0 for partition in partitions}

    def at_time(self, partitions, at_ms):
        return dict.fromkeys(partitions, 0)


@pytest.fixture
def asked(monkeypatch):
    """A plan with a window store, its changelog and retention, and a function that returns a machine's evidence about it.

    The function takes the commit records, the first offset that the changelog still has, and the time of the machine's clock.
    """
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    stream.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="w", retention="6h").to("out")
    plan = topology.plan()
    changelog = TopicPartition("app-w-changelog", 0)
    policies = changelog_policies(plan)

    def evidence(records: list[CommitRecord], low: int, now_ms: int) -> TaskEvidence:
        def read_committed_until(config, partition, start, end, **options):
            for record in records[start:end]:
                yield ChangelogBatch([str(TASK).encode()], [record.to_bytes()], end)

        @contextmanager
        def range_reader(config, name, **options):
            yield partial(read_committed_until, config)

        monkeypatch.setattr(history, "read_committed_until", read_committed_until)
        monkeypatch.setattr(history, "range_reader", range_reader)
        monkeypatch.setattr(facts, "committed_offsets", lambda *_: {})
        monkeypatch.setattr(facts, "last_commit_records", lambda *_, **__: {TASK: records[-1]})
        ends = Ends(changelog, low, len(records))
        witnesses = Witnesses(plan, Settings.load(), {}, ends, policies, lambda: now_ms)
        return witnesses.evidence(witnesses.facts([TASK])[TASK], {})

    return changelog, policies["w"].retention_ms, evidence


def a_commit(changelog: TopicPartition, number: int, at_ms: int, stream_times: StreamTimes) -> CommitRecord:
    """A commit that found `number` records in the changelog and wrote one."""
    return CommitRecord(
        kind=CommitKind.BATCH, application_id="app", topology_version="1", task=TASK, instance=0, batch=number,
        commit_time_ms=at_ms, sources={"in": {0: (number, number + 1)}}, stream_times=stream_times, rows=1, late_rows=0,
        bad_rows=0, filtered_rows=0, sinks={}, changelogs={changelog.topic: 1}, ends_before={changelog.topic: {0: number}},
    )  # fmt: skip


@pytest.fixture
def fault(asked):
    """The changelog's retention, and a function that judges it when its records before `first_ms` are gone.

    It is written once a minute. All times of commits and of the judgement are those of the machine, whose clock is `behind_ms`
    behind the brokers'.
    """
    changelog, retention_ms, evidence_of = asked
    minutes = retention_ms // MINUTE + 3 * 60

    def judge(behind_ms: int, first_ms: int) -> str | None:
        now_ms = BROKERS_NOW - behind_ms
        records = [
            a_commit(changelog, number, now_ms - (minutes - number) * MINUTE, StreamTimes.none())
            for number in range(minutes)
        ]
        low = next(record.batch for record in records if record.commit_time_ms >= first_ms)
        evidence = evidence_of(records, low, now_ms)
        (store,) = evidence.stores
        return changelog_fault(evidence, store)

    return retention_ms, judge


@pytest.fixture
def outage(asked):
    """A function that judges a restore from the whole changelog, after an outage.

    The instance wrote once a minute, with stream time at the wall clock. The function returns the live minutes that the brokers
    have deleted, and why the restore is refused. `behind_ms` is by how much the instance's clock is behind the brokers'.
    """
    changelog, retention_ms, evidence_of = asked
    stopped_ms, minutes = BROKERS_NOW, retention_ms // MINUTE + 10 * 60
    newest = {number: stopped_ms - (minutes - 1 - number) * MINUTE for number in range(minutes)}

    def judge(behind_ms: int, down_ms: int) -> tuple[int, str | None]:
        records = [
            a_commit(changelog, number, at_ms - behind_ms, StreamTimes(at_ms, {"w": at_ms}))
            for number, at_ms in newest.items()
        ]
        now_ms = stopped_ms + down_ms
        kept = (record.batch for record in records if record.commit_time_ms >= now_ms - retention_ms)
        low = next(kept, minutes)
        live_lost = sum(newest[number] >= stopped_ms - 6 * HOUR for number in range(low))
        evidence = evidence_of(records, low, now_ms - behind_ms)
        committed = CommittedProgress({"in": minutes}, minutes - 1, records[-1].stream_times)
        (whole,) = rank_candidates(evidence, evidence.stores[0], committed, MEASURED)
        return live_lost, whole.fault

    return judge


@pytest.mark.parametrize("behind_minutes", [0, 10, 120])
def test_should_open_a_task_whose_changelog_lost_its_beginning_by_retention_on_a_machine_that_is_behind(
    fault, behind_minutes
):
    retention_ms, judge = fault
    assert judge(behind_minutes * MINUTE, BROKERS_NOW - retention_ms) is None


def test_should_name_the_clocks_when_a_changelog_lost_records_that_no_retention_has_deleted(fault):
    _, judge = fault
    reason = judge(0, BROKERS_NOW - 2 * HOUR)
    assert reason is not None
    assert "are too young" in reason
    assert "or the clock of this machine is hours behind the brokers'" in reason


@pytest.mark.parametrize(("behind_h", "down_h"), [(4, 21), (4, 22), (4, 27), (2, 23), (0, 25), (-4, 29)])
def test_should_refuse_a_changelog_whose_live_windows_the_brokers_have_deleted(outage, behind_h, down_h):
    live_lost, reason = outage(behind_h * HOUR, down_h * HOUR)
    assert live_lost > 0
    assert reason is not None
    assert "windows that are still live may have been deleted" in reason


@pytest.mark.parametrize(("behind_h", "down_h"), [(4, 0), (4, 19), (2, 21), (0, 0), (0, 23), (-4, 0), (-4, 27)])
def test_should_restore_from_a_changelog_that_lost_only_windows_that_have_expired(outage, behind_h, down_h):
    """Also if the clock is ahead of the brokers', which makes every record live longer than it seems."""
    assert outage(behind_h * HOUR, down_h * HOUR) == (0, None)
