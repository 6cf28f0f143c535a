"""Verdicts on retention: one table of cases, each a change to a store with which all is well."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tidemark.checks.retention import (
    ChangelogSample,
    DiskCopy,
    RetentionRules,
    StoreRetention,
    TopicSettings,
    next_expiry_ms,
    retention_findings,
)
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.verdict import Verdict

MINUTE, DAY = 60_000, 86_400_000
NOW = 1_000 * DAY
RULES = RetentionRules(deletion_slack_ms=MINUTE)
# Ten minutes kept in segments of five: the first live one is that of ten minutes ago.
FIRST_LIVE = (NOW - 10 * MINUTE) // (5 * MINUTE)
TOPIC = TopicSettings("log", frozenset({"compact", "delete"}), DAY + 10 * MINUTE, 5 * MINUTE, DAY + 10 * MINUTE)
SAMPLE = ChangelogSample("0_0", NOW, 0, 100, 100, 3, NOW - 10 * MINUTE, NOW - 20 * MINUTE)
COPY = DiskCopy("0_0", "0", (FIRST_LIVE, FIRST_LIVE + 1), NOW)
FINE = StoreRetention("n", 65_000, 10 * MINUTE, 5 * MINUTE, TOPIC, "", (SAMPLE,), (COPY,))
TABLE = StoreRetention("t", None, None, None, replace(TOPIC, cleanup_policy=frozenset({"compact"})), "", (SAMPLE,), ())


def topic(**changes):
    return replace(FINE, topic=replace(TOPIC, **changes))


def sample(**changes):
    return replace(FINE, changelogs=(replace(SAMPLE, **changes),))


def copy(**changes):
    return replace(FINE, copies=(replace(COPY, **changes),))


def stopped_copy(committed_ms):
    """A copy whose oldest windows expire at NOW and are missing in the topic. The task has committed up to a later time."""
    left = replace(COPY, segments=(FIRST_LIVE - 1,), stream_time_ms=NOW - 1)
    return replace(FINE, changelogs=(replace(SAMPLE, low_offset=1, stream_time_ms=committed_ms),), copies=(left,))


CASES = [
    (FINE, Verdict.OK, "keeps 10m; its topic 1450m; 3 of the first 100 records in the topic are past"),
    # Size and grace.
    # A store of joined records keeps them exactly as long as a partner may come.
    (replace(FINE, span_ms=10 * MINUTE), Verdict.OK, "keeps 10m"),
    (replace(FINE, span_ms=10 * MINUTE + 1), Verdict.FAILED, "windows are dropped while records may still come"),
    # The topic against the store.
    (topic(retention_ms=10 * MINUTE - 1), Verdict.FAILED, "a restore lacks windows that are still live"),
    (topic(retention_ms=10 * MINUTE), Verdict.WARNING, "less than the 1450m that the topology asks for"),
    (topic(retention_ms=DAY + 10 * MINUTE - 1), Verdict.WARNING, "`tidemark topics run counts`"),
    (topic(retention_ms=-1), Verdict.OK, "its topic for ever"),
    (topic(retention_ms=1, cleanup_policy=frozenset({"compact"})), Verdict.OK, "keeps 10m"),
    (topic(cleanup_policy=frozenset({"delete"})), Verdict.WARNING, "is not compacted"),
    (topic(retention_bytes=0), Verdict.FAILED, "retention.bytes=0: the broker deletes windows that are still live"),
    (topic(retention_bytes=1 << 30), Verdict.FAILED, "`tidemark topics run counts`"),
    (topic(retention_bytes=1, cleanup_policy=frozenset({"compact"})), Verdict.OK, "keeps 10m"),
    # What is on disk.
    (copy(segments=(FIRST_LIVE - 1, FIRST_LIVE)), Verdict.WARNING, "still has 1 segments of windows past"),
    (copy(segments=(FIRST_LIVE - 1,), stream_time_ms=NOW - 1), Verdict.OK, "keeps 10m"),
    (copy(unreadable="cannot read"), Verdict.NOT_ENOUGH_EVIDENCE, "cannot read"),
    # What is in the topic. The newest time at which the oldest segment on disk may be missing there is its end.
    (sample(low_offset=1, oldest_event_ms=(FIRST_LIVE + 1) * 5 * MINUTE - 1), Verdict.OK, "keeps 10m"),
    (sample(low_offset=1, oldest_event_ms=(FIRST_LIVE + 1) * 5 * MINUTE), Verdict.FAILED, "lost with the disk"),
    (sample(low_offset=0, oldest_event_ms=(FIRST_LIVE + 1) * 5 * MINUTE), Verdict.OK, "keeps 10m"),
    (sample(low_offset=9, scanned_records=0, oldest_event_ms=None), Verdict.FAILED, "lost with the disk"),
    # A copy that nothing follows any more keeps the stream time that it had; what has expired since is not lost with it.
    (stopped_copy(committed_ms=NOW - 1), Verdict.FAILED, "lost with the disk"),
    (stopped_copy(committed_ms=NOW), Verdict.OK, "keeps 10m"),
    (stopped_copy(committed_ms=NOW + 1), Verdict.OK, "keeps 10m"),
    # A broker's day is the clock's, a store's ten minutes are the stream's.
    (sample(low_offset=1, stream_time_ms=NOW - DAY + 1), Verdict.OK, "keeps 10m"),
    (sample(low_offset=1, stream_time_ms=NOW - DAY), Verdict.WARNING, "has lost its beginning"),
    (sample(low_offset=0, stream_time_ms=NOW - DAY), Verdict.OK, "keeps 10m"),
    (sample(oldest_record_ms=NOW - DAY - 16 * MINUTE), Verdict.OK, "keeps 10m"),
    (sample(oldest_record_ms=NOW - DAY - 16 * MINUTE - 1), Verdict.WARNING, "should have deleted them"),
    (sample(stream_time_ms=NO_STREAM_TIME), Verdict.NOT_ENOUGH_EVIDENCE, "no task has committed a record yet"),
    (replace(FINE, topic=None, no_topic="log does not exist yet", copies=()), Verdict.NOT_ENOUGH_EVIDENCE, "not exist"),
    (replace(FINE, topic=None, no_topic="it is not logged"), Verdict.OK, "keeps 10m"),
    # Stores without windows.
    (TABLE, Verdict.OK, "nothing expires by time; log is compacted"),
    (
        replace(TABLE, topic=TOPIC),
        Verdict.FAILED,
        "a restore loses keys that were not written for long; `tidemark topics run counts`",
    ),
    (replace(TABLE, topic=replace(TOPIC, is_source=True)), Verdict.FAILED, "--entity-name log --add-config"),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_should_judge_a_store(case):
    store, verdict, said = CASES[case]
    (finding,) = retention_findings([store], "counts", NOW, RULES)
    assert (finding.verdict, finding.subject) == (verdict, store.store), finding.message
    assert said in finding.message
    assert json.dumps(dict(finding.evidence))


LOST_BEGINNING = replace(SAMPLE, task="0_1", low_offset=1, stream_time_ms=NOW - DAY)
ONLY_ON_DISK = replace(SAMPLE, low_offset=9, scanned_records=0, oldest_event_ms=None)


@pytest.mark.parametrize("samples", [(LOST_BEGINNING, ONLY_ON_DISK), (ONLY_ON_DISK, LOST_BEGINNING)])
def test_should_give_the_worst_verdict_whatever_the_order_of_the_tasks(samples):
    (finding,) = retention_findings([replace(FINE, changelogs=samples)], "counts", NOW, RULES)
    assert finding.verdict is Verdict.FAILED
    assert "lost with the disk" in finding.message


@pytest.mark.parametrize(
    "hiding",
    [
        pytest.param(
            {"copies": (replace(COPY, holder="1", segments=(), unreadable="stale"), COPY)}, id="unreadable copy"
        ),
        pytest.param({"copies": (replace(COPY, segments=(FIRST_LIVE - 1, FIRST_LIVE)),)}, id="expired segments"),
        pytest.param({"topic": replace(TOPIC, cleanup_policy=frozenset({"delete"}))}, id="not compacted"),
    ],
)
def test_should_not_let_a_lesser_fault_hide_that_windows_are_only_on_this_disk(hiding):
    (finding,) = retention_findings([replace(FINE, changelogs=(ONLY_ON_DISK,), **hiding)], "counts", NOW, RULES)
    assert finding.verdict is Verdict.FAILED
    assert "lost with the disk" in finding.message


@pytest.mark.parametrize(("age_ms", "wait_ms"), [(0, 15 * MINUTE), (14 * MINUTE, MINUTE), (15 * MINUTE, 0)])
def test_should_report_how_much_stream_time_the_oldest_windows_have_left(age_ms, wait_ms):
    start_ms = FIRST_LIVE * 5 * MINUTE
    assert next_expiry_ms(FINE, replace(COPY, stream_time_ms=start_ms + age_ms)) == wait_ms
    assert next_expiry_ms(FINE, replace(COPY, segments=())) is None
