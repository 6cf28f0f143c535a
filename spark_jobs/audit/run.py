"""The audit of an application: cut, read, compute, validate, and remember the audited ranges."""

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

from spark_jobs.audit.coverage import left
from spark_jobs.audit.pipeline import OneAudit
from tidemark.audit.cut import Cut, Cutter
from tidemark.audit.job import log_progress
from tidemark.audit.lineage import TopicRead
from tidemark.audit.progress import Tell
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
class Audit:
    """Audits applications one after the other with one Spark session.

    `most_batches` limits the batches of each task in one audit. `docs` is a folder for Great Expectations' Data Docs. `tell`
    is called with the progress of an audit.
    """

    spark: SparkSession
    settings: Settings
    facts: FactsDatabase
    most_batches: int | None = None
    docs: Path | None = None
    tell: Tell = log_progress

    def __post_init__(self) -> None:
        context = self.spark.sparkContext
        # Workers need the driver's import path and its Python.
        context.environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        context.pythonExec = sys.executable

    def run(self, plan: TopologyPlan, *, whole: bool = False, stalled_ms: int | None = None) -> AuditReport:
        """Audit the batches since the last audit, or with `whole` those that the commits topic has. Blocks.

        An audit of the whole does not change from where the next one continues, unless it comes further.

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
        before = {} if whole else audited_until(self.facts, plan.application_id)
        most_batches = self.most_batches or (sys.maxsize if whole else settings.audit_batches)
        cut = self._cut(plan, before, most_batches, stalled_ms)
        log.info("chose the batches to audit of %d tasks (%.1f s)", len(cut.ranges), time.monotonic() - started)
        folder = settings.var_dir / "audit" / plan.application_id
        one = OneAudit(
            self.spark, settings, self.facts, self.docs, plan, kept, cut, before, audit_id, folder, self.tell
        )
        with one.working():
            findings, quarantined, topics = one.findings()
            findings += left(cut, most_batches, whole=whole)
            seconds = time.monotonic() - started
            report = AuditReport(
                plan.application_id,
                audit_id,
                now_ms,
                {str(task): (run.records[0].batch, run.records[-1].batch) for task, run in sorted(cut.ranges.items())},
                topics,
                seconds,
                findings,
                quarantined,
            )
            if not any(finding.evidence.get("broken") for finding in findings):
                one.remember(now_ms, report.records, seconds, report.verdict)
            log.info("done in %.1f s", time.monotonic() - started)
        return report

    def _cut(
        self, plan: TopologyPlan, before: Mapping[TaskId, AuditedRange], most_batches: int, stalled_ms: int | None
    ) -> Cut:
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
        return cutter.cut({task: audited.end for task, audited in before.items()}, most_batches)
