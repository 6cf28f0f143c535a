"""Verdicts on lag: one table of cases, each with its reason."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace

import pytest

from tidemark.checks.lag import LagRules, LagSample, lag_findings, offline_findings, transaction_findings
from tidemark.kafka.transactions import OpenTransaction
from tidemark.names import TopicPartition
from tidemark.settings import project_root
from tidemark.verdict import Verdict

PLACE = TopicPartition("in", 0)
RULES = LagRules(open_transaction_ms=10_000, window_ms=600_000, least_samples=3, least_span_ms=60_000)
NOW = 1_000_000
LEADS = {"in": "in", "joined": "in", "apart": "apart"}


def seen(*rows, low=0, every_ms=30_000):
    """Samples of (committed, stable) that end now; the end is the stable offset."""
    first = NOW - every_ms * (len(rows) - 1)
    return [LagSample(first + i * every_ms, PLACE, low, stable, stable, at) for i, (at, stable) in enumerate(rows)]


def stopped(*rows):
    """The same, and nobody reads the partition any more."""
    return [replace(sample, is_owned=False) for sample in seen(*rows)]


CASES = [
    # (samples, verdict, in the message)
    (seen((None, 0)), Verdict.OK, "nothing to read yet"),
    (seen((None, 1)), Verdict.NOT_ENOUGH_EVIDENCE, "has never committed"),
    # A deleted beginning without a commit is only a younger start.
    (seen((None, 7), low=7), Verdict.OK, "nothing to read yet"),
    (seen((5, 10), low=6), Verdict.FAILED, "1 offsets are deleted unread"),
    (seen((6, 6), low=6), Verdict.OK, "nothing left to read at 6"),
    (seen((7, 10), low=6), Verdict.NOT_ENOUGH_EVIDENCE, "3 offsets behind; 1 samples"),
    (seen((11, 10)), Verdict.FAILED, "beyond the end 10"),
    # Level is level, however little was seen.
    (seen((10, 10)), Verdict.OK, "nothing left to read at 10"),
    # Two samples, or too short a time: nothing can be said of movement.
    (seen((1, 10), (1, 10)), Verdict.NOT_ENOUGH_EVIDENCE, "2 samples over 30 s"),
    (seen((1, 10), (1, 10), (1, 10), every_ms=29_999), Verdict.NOT_ENOUGH_EVIDENCE, "3 samples over 60 s"),
    (seen((1, 10), (1, 10), (1, 10)), Verdict.FAILED, "stalled: nothing committed for 60 s or more while 9"),
    (stopped((1, 10), (1, 10), (1, 10)), Verdict.FAILED, "stopped: nothing committed for 60 s or more while 9"),
    (
        stopped((1, 10), (1, 10), (1, 10)),
        Verdict.FAILED,
        "no member of the group owns its task; unpause stream__app",
    ),
    # Nobody reads it just now: a restart takes no longer than evidence does.
    (stopped((1, 10), (5, 10), (5, 10)), Verdict.OK, "5 offsets behind and moving"),
    # It was level once since: what waits has come since then.
    (seen((10, 10), (10, 10), (10, 12)), Verdict.OK, "2 offsets behind"),
    # It moved, then stood for longer than evidence takes.
    (seen((1, 10), (5, 10), (5, 10), (5, 11)), Verdict.FAILED, "stalled"),
    # It stood still for two looks of three.
    (seen((1, 10), (5, 10), (5, 10)), Verdict.OK, "5 offsets behind and moving, caught up in about 75 s"),
    (seen((1, 10), (5, 20), (6, 30)), Verdict.WARNING, "falls behind by 0.2 offsets/s, now 24"),
    # The lag shrank in between: it is not falling behind all the time.
    (seen((1, 10), (9, 12), (10, 30)), Verdict.OK, "20 offsets behind and moving"),
    (seen((1, 10), (11, 20), (21, 30)), Verdict.OK, "9 offsets behind and moving"),
    (seen((8, 10), (3, 10), (5, 10)), Verdict.WARNING, "rewind: the committed offset went back from 8 to 3"),
]


def lost(recorded, stable, low=0):
    """The group has no offset and no member, the last commit record says where it was."""
    return [LagSample(NOW, PLACE, low, stable, stable, None, recorded, is_owned=False)]


def expired(recorded, stable):
    """Five samples of a task that a member owns, whose committed offset brokers have deleted."""
    return [replace(sample, recorded_offset=recorded) for sample in seen(*[(None, stable)] * 5)]


CASES += [
    # A known application's offset is never read as 0, and never as a start that is still to come.
    (
        lost(4, 10),
        Verdict.FAILED,
        "the committed offset is lost: the group was deleted, or was empty for offsets.retention.",
    ),
    (
        lost(4, 10),
        Verdict.FAILED,
        "6 offsets wait after 4, the offset in the last commit record",
    ),
    (lost(4, 10), Verdict.FAILED, "unpause stream__app, or start an instance, which continues from there"),
    (lost(10, 10), Verdict.FAILED, "0 offsets wait after 10"),
    (lost(0, 0), Verdict.FAILED, "0 offsets wait after 0"),
    (
        lost(5, 10, low=6),
        Verdict.FAILED,
        "the recorded one 5 is below the low watermark 6: 1 offsets are deleted unread",
    ),
    (lost(5, 10, low=6), Verdict.FAILED, "`tidemark reset run app --to offsets --state keep --offset in:0=6`"),
    (lost(6, 10, low=6), Verdict.FAILED, "4 offsets wait after 6"),
    (lost(11, 10), Verdict.FAILED, "the recorded one 11 is beyond the end 10"),
    # Its owner continues from the record, so nothing is lost and nothing waits.
    (expired(10, 10), Verdict.OK, "nothing left to read at 10, the offset in the last commit record"),
    (expired(10, 11), Verdict.FAILED, "the committed offset is lost"),
    # An earlier look saw one, and the commits topic is gone too.
    (seen((3, 10), (None, 10)), Verdict.FAILED, "is lost, 3 when it was last seen, and no commit record has one"),
    (seen((None, 10), (None, 10)), Verdict.NOT_ENOUGH_EVIDENCE, "has never committed"),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_should_judge_a_partition(case):
    samples, verdict, said = CASES[case]
    (finding,) = lag_findings("app", samples, LEADS, NOW, RULES)
    assert (finding.verdict, finding.subject) == (verdict, "in[0]")
    assert said in finding.message
    assert json.dumps(dict(finding.evidence))


@pytest.mark.parametrize(("age_ms", "counts"), [(600_000, True), (600_001, False)])
def test_should_look_no_further_back_than_its_window(age_ms, counts):
    old = LagSample(NOW - age_ms, PLACE, 0, 10, 10, 1)
    (finding,) = lag_findings("app", [old, *seen((1, 10), (1, 10), every_ms=60_000)], LEADS, NOW, RULES)
    assert (finding.verdict is Verdict.FAILED) is counts
    assert lag_findings("app", [old], LEADS, NOW + 600_000, RULES) == []


def test_should_judge_each_partition_by_its_own_samples_in_any_order():
    other = TopicPartition("in", 1)
    samples = [*reversed(seen((1, 10), (2, 10), (10, 10))), LagSample(NOW, other, 0, 3, 3, None)]
    found = lag_findings("app", samples, LEADS, NOW, RULES)
    assert [(f.subject, f.verdict) for f in found] == [
        ("in[0]", Verdict.OK),
        ("in[1]", Verdict.NOT_ENOUGH_EVIDENCE),
    ]


ADVANCES = [
    # (topic, partition, its committed offsets, verdict on in[0], in the message)
    ("joined", 0, (10, 20, 30, 40), Verdict.OK, "9 offsets behind, and waits for older records of joined[0]"),
    # It stopped two looks ago: 60 s without a commit of the task are evidence, 30 s are not.
    ("joined", 0, (10, 20, 20, 20), Verdict.FAILED, "stalled: nothing committed for 60 s or more"),
    ("joined", 0, (10, 20, 30, 30), Verdict.OK, "waits for older records of joined[0]"),
    ("joined", 0, (10, 10, 10, 10), Verdict.FAILED, "stalled: nothing committed for 90 s"),
    ("joined", 0, (40, 40, 40, 30), Verdict.FAILED, "stalled"),
    ("joined", 0, (None, None, None, 30), Verdict.FAILED, "stalled"),
    # Another task, by its partition or its sub-topology.
    ("joined", 1, (10, 20, 30, 40), Verdict.FAILED, "stalled"),
    ("apart", 0, (10, 20, 30, 40), Verdict.FAILED, "stalled"),
]


@pytest.mark.parametrize(("topic", "partition", "offsets", "verdict", "said"), ADVANCES)
def test_should_not_call_a_source_stalled_while_another_of_its_task_advances(topic, partition, offsets, verdict, said):
    other = [replace(each, partition=TopicPartition(topic, partition)) for each in seen(*((at, 99) for at in offsets))]
    found = lag_findings("app", [*other, *seen(*[(1, 10)] * 4)], LEADS, NOW, RULES)
    (finding,) = [each for each in found if each.subject == "in[0]"]
    assert finding.verdict is verdict
    assert said in finding.message


def test_should_name_the_command_that_continues_without_deleted_records():
    (finding,) = lag_findings("app", seen((5, 10), low=6), LEADS, NOW, RULES)
    assert "`tidemark reset run app --to offsets --state keep --offset in:0=6`" in finding.message
    assert finding.evidence["low_offset"] == 6


def test_should_count_records_hidden_by_an_open_transaction_separately_from_the_lag():
    sample = LagSample(NOW, PLACE, 0, 10, 15, 10)
    (finding,) = lag_findings("app", [sample], LEADS, NOW, RULES)
    assert (finding.verdict, finding.evidence["lag_offsets"], finding.evidence["held_offsets"]) == (Verdict.OK, 0, 5)


@pytest.mark.parametrize(
    ("open_ms", "verdict"),
    [(9_999, Verdict.OK), (10_000, Verdict.FAILED), (None, Verdict.NOT_ENOUGH_EVIDENCE)],
)
def test_should_judge_an_open_transaction_by_its_age(open_ms, verdict):
    found = OpenTransaction(PLACE, 10, 15, 4, "loader", open_ms, 60_000, "" if open_ms else "no java")
    (finding,) = transaction_findings(3, [found], RULES)
    assert finding.verdict is verdict
    assert "stop at 10, 5 offsets before the end" in finding.message
    assert ("no java" if open_ms is None else "loader") in finding.message


def test_should_say_that_no_broker_ends_a_transaction_without_its_marker():
    found = OpenTransaction(PLACE, 10, 15, 4, "loader", 5, 60_000, is_hanging=True)
    (finding,) = transaction_findings(3, [found], RULES)
    assert finding.verdict is Verdict.FAILED
    assert "transaction loader has ended, but this partition has lost the marker" in finding.message
    assert "docs/commit-protocol.md" in finding.message
    assert "start-offset" not in finding.message


def test_should_report_how_many_partitions_have_no_open_transaction():
    assert [(f.verdict, f.evidence) for f in transaction_findings(3, [], RULES)] == [(Verdict.OK, {"partitions": 3})]
    assert transaction_findings(0, [], RULES) == []


def test_should_fail_for_each_partition_that_no_broker_leads():
    places = [TopicPartition("out", 1), TopicPartition("in", 0)]
    found = [(finding.subject, finding.verdict) for finding in offline_findings(places)]
    assert found == [("in[0]", Verdict.FAILED), ("out[1]", Verdict.FAILED)]
    assert "start its broker again" in offline_findings(places)[0].message
    assert offline_findings([]) == []


def constant_of(path, name):
    """The value of a text in a module, which is not imported: it would import Airflow."""
    (value,) = (
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and [target.id for target in node.targets] == [name]
    )
    return ast.literal_eval(value)


@pytest.mark.parametrize(
    ("samples", "starts_with", "names_a_command"),
    [
        (seen((5, 9), (None, 9)), "Do **not** start an instance", False),
        (lost(5, 9), "Start an instance", False),
        (seen((5, 10), low=6), "Raise `retention.ms`", True),
        (lost(5, 10, low=6), "Raise `retention.ms`", True),
        (seen((11, 10)), "The source topic was created again", True),
        (lost(11, 10), "The source topic was created again", True),
    ],
)
def test_the_runbook_should_advise_what_the_message_advises(samples, starts_with, names_a_command):
    text = constant_of(project_root() / "dags" / "lag_check.py", "RUNBOOK")
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")]
    (finding,) = lag_findings("app", samples, LEADS, NOW, RULES)
    message = finding.message
    remedy = next(remedy for words, remedy in rows if words in message)
    assert remedy.startswith(starts_with), message
    command = re.search("`tidemark (reset run .*?)`", message)
    assert (command is not None) is names_a_command, message
    assert command is None or "--state keep" in command[1]
