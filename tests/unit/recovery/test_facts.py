"""The questions to Kafka about a task and their order, and the offsets at which a task without committed ones begins."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.kafka.topic_config import DAY_MS, ChangelogPolicy
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery import facts as module
from tidemark.recovery.evidence import CommittedProgress, KeptDeletions, Watermarks
from tidemark.recovery.facts import TaskFacts, Witnesses
from tidemark.registry.kept_history import KeptHistory
from tidemark.restore.task_opener import restore_job
from tidemark.settings import Settings
from tidemark.stream_times import StreamTimes
from tidemark.topology.builder import Topology

NOW = 1_700_000_000_000
LOW, END = 10, 100


def counted_again() -> Any:
    """Two sub-topologies: the second one reads the repartition topic that the first one writes."""
    topology = Topology("app", version="1")
    topology.stream("in", schema="other STRING").group_by("other", "by-other").count(name="n", store="n").to("out")
    return topology.plan()


class Ends:
    """Every partition begins at `LOW` and ends at `END`."""

    def __init__(self, journal: list[str]) -> None:
        self._journal = journal

    def beginnings(self, partitions: Any) -> dict[TopicPartition, int]:
        self._journal.append("lows")
        return dict.fromkeys(partitions, LOW)

    def of(self, partitions: Any) -> dict[TopicPartition, int]:
        self._journal.append("ends")
        return dict.fromkeys(partitions, END)


def witnesses(plan: Any, journal: list[str], **settings: Any) -> Witnesses:
    identities: Any = SimpleNamespace(lost=lambda _plan: {})
    policies = {"n": ChangelogPolicy("compact", None, DAY_MS, DAY_MS)}
    ends: Any = Ends(journal)
    return Witnesses(plan, Settings.load(**settings), {}, ends, policies, lambda: NOW, identities)


@pytest.mark.parametrize(("reset", "source_begins"), [("earliest", LOW), ("latest", END)])
def test_should_begin_where_the_setting_says_and_skip_nothing_between_sub_topologies(
    reset: str, source_begins: int
) -> None:
    plan = counted_again()
    asks = witnesses(plan, [], auto_offset_reset=reset)
    begins = {}
    for number, subtopology in enumerate(plan.subtopologies):
        sources = {TopicPartition(topic, 0): Watermarks(LOW, END) for topic in subtopology.source_topics}
        changelogs = {spec.name: Watermarks(0, 0) for spec in subtopology.stores}
        evidence = asks.evidence(TaskFacts(TaskId(number, 0), {}, None, sources, changelogs), {})
        begins |= {source.partition.topic: source.fresh_offset for source in evidence.sources}
    assert begins == {"in": source_begins, "app-by-other-repartition": LOW}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, KeptDeletions(DAY_MS)),
        (KeptHistory(1, 2 * DAY_MS), KeptDeletions(DAY_MS)),
        (KeptHistory(1, 5), KeptDeletions(5)),
        (KeptHistory(1, DAY_MS, 3, 4, 2), KeptDeletions(DAY_MS, 4, 2)),
    ],
)
def test_should_judge_copies_by_the_smallest_time_for_which_deletions_were_kept(
    known: KeptHistory | None, expected: KeptDeletions
) -> None:
    plan = counted_again()
    spec = plan.subtopologies[1].stores[0]
    asks = replace(witnesses(plan, []), kept_history={} if known is None else {"app-n-changelog": known})
    evidence = asks.evidence(TaskFacts(TaskId(1, 0), {}, None, {}, {spec.name: Watermarks(0, 0)}), {})
    assert evidence.stores[0].kept_deletions == expected


def test_should_ask_for_offsets_first_then_records_then_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """See invariant: end of a restore. A commit between two questions then shows a record that is newer, never one older."""
    journal: list[str] = []
    monkeypatch.setattr(module, "committed_offsets", lambda *_: journal.append("offsets") or {})
    monkeypatch.setattr(module, "last_commit_records", lambda *_, **__: journal.append("records") or {})
    witnesses(counted_again(), journal).current_offsets([TaskId(1, 0)])
    assert journal == ["offsets", "records", "lows", "ends"]


def test_should_restore_a_table_from_its_source_topic_to_the_committed_offset() -> None:
    """See invariant: source topic as changelog. The records behind the offset are input that the task has not read."""
    topology = Topology("app", version="1", optimised=True)
    topology.table("people", schema="name STRING, city STRING", key="name", store="people").to("out")
    plan = topology.plan()
    (spec,) = plan.subtopologies[0].stores
    found = TaskFacts(TaskId(0, 0), {}, None, {}, {"people": Watermarks(0, 500)})
    committed = CommittedProgress({"people": 120}, 7, StreamTimes(NOW, {}))
    assert restore_job(plan, found, spec, committed, NOW).target.changelog_offset == 120
