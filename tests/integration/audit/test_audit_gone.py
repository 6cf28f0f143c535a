"""An audit reports no fault when records were deleted before it, or when another topology wrote them."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from tests.support.audit.application import PaymentsApp
from tests.support.audit.matrix import STALLED_MS, Matrix, complaints_of
from tests.support.counting import PARTITIONS

from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TopicPartition, dlq_topic
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(560)]


def compact(app: PaymentsApp, topic: str) -> None:
    apply_changes([TopicChange(topic, "cleanup.policy", "", "compact")], app.settings, app.admin)


def expire(app: PaymentsApp, topic: str) -> int:
    """Delete what the topic holds; how many offsets that was."""
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    ends = EndOffsets(app.admin, 60).of(places)
    for done in app.admin.delete_records([ClientPartition(topic, p.partition, ends[p]) for p in places]).values():
        done.result(60)
    return sum(ends.values())


def test_should_report_no_fault_when_records_are_deleted_or_another_version_wrote_them(matrix: Matrix) -> None:
    name = f"gone-{uuid.uuid4().hex[:8]}"
    app = PaymentsApp(matrix.settings, matrix.admin, name)
    app.feed(900)
    app.run()
    # The module has another version by now: nothing is audited, nothing remembered.
    report = matrix.audit.run(replace(app.plan, version="2"), stalled_ms=STALLED_MS)
    said = {found.subject: found.message for found in report.findings}
    assert (report.ranges, report.verdict, complaints_of(report)) == ({}, Verdict.NOT_ENOUGH_EVIDENCE, [])
    assert "version 1 of the topology wrote them, and this is version 2" in said["task 0_0"]
    # The dead letters have expired.
    assert expire(app, dlq_topic(name)) > 0
    report = matrix.audit.run(app.plan, stalled_ms=STALLED_MS)
    said = {found.subject: found.message for found in report.findings}
    assert complaints_of(report) == []
    assert len(report.ranges) == PARTITIONS
    assert "missing dead letters are not checked" in said[dlq_topic(name)]
    assert "dead_letters_are_not_lost" not in said
    assert said["the_last_value_is_the_truth"]
    # The source is compacted, and nothing says that a record stays a while.
    compact(app, f"{name}-in")
    app.feed(300)
    app.run()
    report = matrix.audit.run(app.plan, stalled_ms=STALLED_MS)
    said = {found.subject: found.message for found in report.findings}
    assert (report.verdict, complaints_of(report)) == (Verdict.NOT_ENOUGH_EVIDENCE, [])
    assert "the topic is compacted" in said[f"{name}-in"]
    assert "the_last_value_is_the_truth" not in said
    assert said["outputs_are_not_lost"]
    # There are rows of batches, and nothing to compare them with.
    accounts = [found for found in report.findings if found.subject == "every_record_is_accounted_for"]
    assert [(found.verdict, found.evidence["rows"]) for found in accounts] == [(Verdict.NOT_ENOUGH_EVIDENCE, 0)]
