"""A changelog that lost its beginning, judged by a machine whose clock differs from that of the brokers."""

from __future__ import annotations

import pytest

from tidemark.commit import history
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.kafka.topic_config import changelog_policies
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery import facts
from tidemark.recovery.candidates import changelog_fault
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
def fault(monkeypatch):
    """The changelog's retention, and a function that judges it when its records before `first_ms` are gone.

    It is written once a minute. All times of commits and of the judgement are those of the machine, whose clock is `behind_ms`
    behind the brokers'.
    """
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    stream.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="w", retention="6h").to("out")
    plan = topology.plan()
    retention_ms = changelog_policies(plan)["w"].retention_ms
    minutes = retention_ms // MINUTE + 3 * 60
    changelog = TopicPartition("app-w-changelog", 0)

    def commits(now_ms: int) -> list[CommitRecord]:
        return [
            CommitRecord(
                kind=CommitKind.BATCH, application_id="app", topology_version="1", task=TASK, instance=0, batch=number,
                commit_time_ms=now_ms - (minutes - number) * MINUTE, sources={"in": {0: (number, number + 1)}},
                stream_times=StreamTimes.none(), rows=1, late_rows=0, bad_rows=0, filtered_rows=0, sinks={},
                changelogs={changelog.topic: 1}, ends_before={changelog.topic: {0: number}},
            )
            for number in range(minutes)
        ]  # fmt: skip

    def judge(behind_ms: int, first_ms: int) -> str | None:
        now_ms = BROKERS_NOW - behind_ms
        records = commits(now_ms)
        low = next(record.batch for record in records if record.commit_time_ms >= first_ms)

        def read_committed_until(config, partition, start, end, **options):
            for record in records:
                yield ChangelogBatch([str(TASK).encode()], [record.to_bytes()], end)

        monkeypatch.setattr(history, "read_committed_until", read_committed_until)
        monkeypatch.setattr(facts, "committed_offsets", lambda *_: {})
        monkeypatch.setattr(facts, "last_commit_records", lambda *_, **__: {TASK: records[-1]})
        ends = Ends(changelog, low, len(records))
        witnesses = Witnesses(plan, Settings.load(), {}, ends, changelog_policies(plan), lambda: now_ms)
        evidence = witnesses.evidence(witnesses.facts([TASK])[TASK], {})
        (store,) = evidence.stores
        return changelog_fault(evidence, store)

    return retention_ms, judge


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
