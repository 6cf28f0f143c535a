"""The operator runs the command that a refusal names, and none that would give up state or records."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.system.chaos import operating
from tests.system.chaos.operating import remedy

from tidemark.registry.topic_identities import LostTopic, TopicUse, format_lost

PURGED = (
    "tidemark: task 1_0: chaos-queue[0] begins at offset 70, the application has processed up to 40: the records in between "
    "are deleted; raise retention.ms of chaos-queue; to go on without them: `tidemark reset run NAME --to offsets --state "
    "keep --offset chaos-queue:0=70`, with the committed offsets of the other partitions (`tidemark lag NAME`)"
)
KEEP = (
    "reset", "run", "chaos", "--to", "offsets", "--state", "keep",
    "--offset=chaos-queue:0=70", "--offset=chaos-queue:1=50", "--yes",
)  # fmt: skip


@pytest.fixture
def world(monkeypatch):
    """Of the queue's first partition what lies before 70 was deleted; the group stands at 40 and at 50."""
    between = "chaos-mix-by-kind-repartition"
    places = [("chaos-queue", 0), ("chaos-queue", 1), (between, 0)]
    committed = dict(zip(places, (40, 50, 60), strict=True))
    monkeypatch.setattr(operating, "committed_offsets", lambda _b, _a, asked: {p: committed[p] for p in asked})
    monkeypatch.setattr(operating, "beginnings", lambda _b, asked: {p: 70 if p == places[0] else 0 for p in asked})
    return SimpleNamespace(
        bootstrap="b", application_id="chaos-mix", places=places, plan=SimpleNamespace(repartition_topics=[between])
    )


def lost(use, topic):
    return "tidemark: " + format_lost("chaos-mix", [LostTopic(topic, use, "known", None)])


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (lost(TopicUse.CHANGELOG, "chaos-mix-stats-changelog"), ("repair", "run", "chaos", "--yes")),
        (lost(TopicUse.REPARTITION, "chaos-mix-by-kind-repartition"), KEEP),
        (PURGED, KEEP),
    ],
)
def test_should_run_the_command_that_the_refusal_names(world, words, command):
    assert remedy(world, words) == command


def test_should_not_start_from_nothing_when_the_commits_topic_is_lost(world):
    with pytest.raises(RuntimeError, match="names no command that keeps the state"):
        remedy(world, lost(TopicUse.COMMITS, "chaos-mix-commits"))
