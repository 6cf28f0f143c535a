"""The audit of an application, in parts: cut, read, compute, validate, and remember the audited ranges."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from spark_jobs.audit.coverage import without_input
from spark_jobs.audit.pipeline import OneAudit
from tidemark.audit.cut import Cut, Cutter
from tidemark.audit.job import log_progress
from tidemark.audit.lineage import TopicRead
from tidemark.audit.parts import joined
from tidemark.audit.progress import Tell
from tidemark.audit.ranges import ends_before
from tidemark.audit.suites import overall
from tidemark.audit.table import AuditedRange, audited_until
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import partition_counts
from tidemark.names import TaskId
from tidemark.registry.reader import named, recorded
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.verdict import Finding, Verdict

log = logging.getLogger(__name__)

# A transaction ends within its time-out, or the broker ends it; the broker checks only every few seconds.
_HANGING_GRACE_MS = 15_000


@dataclass(frozen=True)
class AuditReport:
    """The report of an audit. `ranges` are the audited batches by task; it is empty if there was nothing to audit."""

    application_id: str
    audit_id: str
    time_ms: int
    ranges: Mapping[str, tuple[int, int]]
    topics: Mapping[str, TopicRead]
    seconds: float
    findings: Sequence[Finding]
    quarantined: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """The number of records that were read from all topics."""
        return sum(read.records for read in self.topics.values())

    @property
    def verdict(self) -> Verdict:
        """The verdict over all findings."""
        return overall(self.findings)


@dataclass
class _Parts:
    """The parts of an audit that have been judged so far. `started` is a value of the monotonic clock, in seconds."""

    application_id: str
    audit_id: str
    time_ms: int
    started: float
    _cuts: list[Cut] = field(default_factory=list)
    _findings: list[Sequence[Finding]] = field(default_factory=list)
    _idle: list[Sequence[Finding]] = field(default_factory=list)
    _ranges: dict[TaskId, tuple[int, int]] = field(default_factory=dict)
    _topics: dict[str, TopicRead] = field(default_factory=dict)
    _quarantined: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def next_id(self) -> str:
        """The id of the next part: the results that a part leaves behind have its name."""
        return f"{self.audit_id}-{len(self._findings) + 1}" if self._findings else self.audit_id

    @property
    def is_broken(self) -> bool:
        """Whether a check broke, so that the last part must be audited again."""
        return any(finding.evidence.get("broken") for finding in self._findings[-1])

    @property
    def has_more(self) -> bool:
        """Whether batches are left of those that were there at the start, and can be audited now."""
        return not self._cuts or (not self.is_broken and self._cuts[-1].is_short_of(self._cuts[0].following))

    def add(
        self,
        cut: Cut,
        findings: Sequence[Finding],
        quarantined: Mapping[str, Sequence[Mapping[str, Any]]],
        topics: Mapping[str, TopicRead],
    ) -> None:
        """Add what a part has found."""
        self._cuts = [*self._cuts[:1], cut]
        self._findings.append(findings)
        self._idle.append(without_input(cut))
        for task, run in cut.ranges.items():
            first, _ = self._ranges.get(task, (run.records[0].batch, 0))
            self._ranges[task] = first, run.records[-1].batch
        for topic, read in topics.items():
            known = self._topics.get(topic, TopicRead(read.role, 0))
            self._topics[topic] = TopicRead(read.role, known.records + read.records)
        for name, rows in quarantined.items():
            self._quarantined.setdefault(name, []).extend(rows)

    def report(self) -> AuditReport:
        """Return the report over all parts so far."""
        return AuditReport(
            self.application_id,
            self.audit_id,
            self.time_ms,
            {str(task): batches for task, batches in sorted(self._ranges.items())},
            self._topics,
            time.monotonic() - self.started,
            # One part with input is enough for a verdict.
            [*joined(self._findings), *(self._idle[0] if all(self._idle) else ())],
            self._quarantined,
        )


@dataclass
class Audit:
    """Audits applications one after the other with one Spark session.

    `most_batches` limits the batches of each task in one part of an audit. `docs` is a folder for Great Expectations' Data
    Docs. `tell` is called with the progress of an audit.
    """

    spark: SparkSession
    settings: Settings
    facts: FactsDatabase
    most_batches: int
    docs: Path | None = None
    tell: Tell = log_progress

    def __post_init__(self) -> None:
        context = self.spark.sparkContext
        # Workers need the driver's import path and its Python.
        context.environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        context.pythonExec = sys.executable

    def run(self, plan: TopologyPlan, *, whole: bool = False, stalled_ms: int | None = None) -> AuditReport:
        """Audit the batches since the last audit, or with `whole` all batches in the commits topic. Blocks.

        It examines one part after the other, up to the batches that were the newest at its start, and remembers each part
        when it is judged. With `whole`, it remembers nothing of a task before the batch up to which the task was audited. It
        ends after a part in which a check breaks.

        Raises `OutcomeUnknown` if the brokers do not answer, and `FactsUnavailable`.
        """
        started = time.monotonic()
        now_ms = wall_clock_ms()
        settings = self.settings
        # Use the present names of changelogs and routes, which an upgrade or a rescale may have changed.
        admin = AdminClient(librdkafka_config(settings))
        description = recorded(settings, admin, plan, partition_counts(admin, settings))
        plan = named(plan, description)
        kept = {} if description is None else description.kept_history
        audit_id = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}-{now_ms % 1000:03d}"
        audited = audited_until(self.facts, plan.application_id)
        before, audited_before = ({}, audited) if whole else (audited, {})
        folder = settings.var_dir / "audit" / plan.application_id
        parts = _Parts(plan.application_id, audit_id, now_ms, started)
        while parts.has_more:
            cut = self._cut(plan, before, stalled_ms)
            log.info("chose the batches to audit of %d tasks (%.1f s)", len(cut.ranges), time.monotonic() - started)
            audited_before = {
                task: known
                for task, known in audited_before.items()
                if task not in cut.ranges or ends_before(cut.ranges[task], known.end)
            }
            part_id = parts.next_id
            one = OneAudit(
                self.spark, settings, self.facts, self.docs, plan, kept, cut, before, part_id, folder, self.tell
            )
            with one.working():
                parts.add(cut, *one.findings())
                report = parts.report()
                if not parts.is_broken:
                    said = now_ms, report.records, report.seconds, report.verdict
                    before = {**before, **one.remember(*said, audited_before.keys())}
            log.info("judged part %s (%.1f s)", part_id, time.monotonic() - started)
        return parts.report()

    def _cut(self, plan: TopologyPlan, before: Mapping[TaskId, AuditedRange], stalled_ms: int | None) -> Cut:
        settings = self.settings
        client = librdkafka_config(settings)
        admin = AdminClient(client)
        cutter = Cutter(
            plan,
            client,
            EndOffsets(admin, settings.broker_timeout_ms / 1000),
            partition_counts(admin, settings),
            stalled_ms if stalled_ms is not None else settings.transaction_timeout_ms + _HANGING_GRACE_MS,
            settings.commit_record_retention_ms,
            wall_clock_ms,
        )
        return cutter.cut({task: audited.end for task, audited in before.items()}, self.most_batches)
