"""Runs one audit: reads its cut, creates and validates each table, and stores the results from which the next continues."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.audit.accounts import Accounts
from spark_jobs.audit.coverage import (
    has_all_letters,
    is_read,
    never_judged,
    passed,
    thinned,
    unread,
    untold,
    without_input,
)
from spark_jobs.audit.keyless import countable, not_countable
from spark_jobs.audit.reading import DLQ, SOURCE, AuditRange, Reader, reading_of
from spark_jobs.audit.results import AuditResults
from spark_jobs.audit.savepoints import Saved
from spark_jobs.audit.session import sized
from spark_jobs.audit.state import Bases, Carried
from spark_jobs.audit.throttle import Throttle
from spark_jobs.audit.validate import Validator
from spark_jobs.audit.views import PipelineView, Rows, Views
from spark_jobs.avro_values import AvroValues
from tidemark.audit.contracts import Contract, contracts
from tidemark.audit.cut import Cut
from tidemark.audit.derivable import derivable
from tidemark.audit.expectations import Check, checks_of
from tidemark.audit.lineage import TopicRead
from tidemark.audit.progress import AuditProgress, Tell
from tidemark.audit.ranges import ends_before
from tidemark.audit.table import AuditedRange, audited_until, write_audit
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TaskId, TopicPartition
from tidemark.registry.kept_history import KeptHistory, compacted_until_ms
from tidemark.savepoints.copies import SavepointCopies
from tidemark.savepoints.repository import SavepointRepository
from tidemark.settings import Settings
from tidemark.temporary_folder import lock_new_folder
from tidemark.topology.plan import Guarantee, TopologyPlan
from tidemark.verdict import Finding, Verdict

log = logging.getLogger(__name__)

_COMPACTION_MARGIN_MS = 60_000


@dataclass(frozen=True)
class _Asset:
    """A table of the audit, and its expectations."""

    name: str
    frame: DataFrame
    checks: Sequence[Check]
    may_be_empty: bool
    rows: Rows


@dataclass
class OneAudit:
    """One audit of one application. `folder` is the application's folder, `docs` a folder for Data Docs.

    `kept_history` is as in `Description`.
    """

    spark: SparkSession
    settings: Settings
    facts: FactsDatabase
    docs: Path | None
    plan: TopologyPlan
    kept_history: Mapping[str, KeptHistory]
    cut: Cut
    before: Mapping[TaskId, AuditedRange]
    audit_id: str
    folder: Path
    tell: Tell
    reading: AuditRange = field(init=False)
    _results: AuditResults | None = None
    _bases: Bases | None = None
    _views: Views | None = None

    def __post_init__(self) -> None:
        self.reading = reading_of(self.plan, self.cut)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Configure the session for the size of the cut, and always remove the read records at the end of the block.

        What a killed audit has read is removed at the beginning.
        """
        with lock_new_folder(self._work.parent, self.audit_id):
            try:
                with sized(self.spark, self.reading.offsets):
                    yield
            finally:
                if self._views is not None:
                    self._views.close()
                shutil.rmtree(self._work, ignore_errors=True)

    @property
    def _savepoints(self) -> SavepointCopies:
        return SavepointCopies(SavepointRepository(self.settings.savepoint_location, self.plan.application_id))

    @property
    def _carried(self) -> Carried:
        return Carried(self.spark, self.folder / "state")

    @property
    def _work(self) -> Path:
        return self.folder / "work" / self.audit_id

    def findings(self) -> tuple[list[Finding], dict[str, Sequence[Mapping[str, Any]]], dict[str, TopicRead]]:
        """Return the verdict of every expectation, the unexpected rows, and what was read from each topic."""
        spark, settings, reading = self.spark, self.settings, self.reading
        values = AvroValues.of(
            (source for s in self.plan.subtopologies for source in s.sources), settings, spark,
            sinks=(sink for s in self.plan.subtopologies for sink in s.sinks),
        )  # fmt: skip
        reader = Reader(spark, settings, settings.audit_records_at_once, Throttle(settings.audit_time_share), values)
        records = reader.read(reading, self._work / "records", self.tell)
        views = self._views = Views(spark)
        found = derivable(self.plan)
        compacted = self._compacted_before(reading)
        thin = thinned(self.plan, self.cut, compacted, self._kept_from(reading, compacted))
        path = PipelineView(views, self.cut, reading, records, settings.max_timestamp_ahead_ms, thin, values.topics)
        accounts = Accounts(path, self.plan, found, compacted)
        indexes = {task.subtopology for task in self.cut.ranges}
        unjudged = never_judged(self.plan, found, indexes, self._checks("accounts")) if indexes else []
        started = time.monotonic()
        before = {task: audited.audit_id for task, audited in self.before.items()}
        bases = self._bases = Bases(path, reader, self._carried, before, self._work, compacted, self.tell)
        known = {d.name: base for d in found.derived if (base := bases.of(d)) is not None}
        results = self._results = AuditResults(path, found, known, compacted)
        log.info("read the results from which the audit continues (%.1f s)", time.monotonic() - started)
        saved = Saved(path, self.plan, self._savepoints, self._work / "savepoints")
        validator = Validator(self.audit_id, self.docs)
        validating = time.monotonic()
        findings: list[Finding] = []
        quarantined: dict[str, Sequence[Mapping[str, Any]]] = {}
        for number, asset in enumerate(self._assets(accounts, results, saved)):
            elapsed_s = time.monotonic() - validating
            self.tell(AuditProgress(f"validating {asset.name}", number, None, "tables", elapsed_s))
            frame = views.table(asset.name, asset.frame, asset.rows)
            checks = [check for check in asset.checks if check.name not in {one.subject for one in unjudged}]
            validated = validator.validate(asset.name, frame, checks, asset.may_be_empty)
            findings += validated.findings
            quarantined |= validated.quarantined
        findings += unjudged
        findings += untold(reading, thin, found.not_derived, bases.without, contracts(self.plan))
        findings += passed(self.cut.passed_over)
        if self.cut.ranges:
            keyless = spark.sql(f"SELECT DISTINCT topic FROM {views.name('counts')} WHERE keyless > 0").collect()
            findings += not_countable({row.topic for row in keyless} - countable(reading, self.cut))
        findings += unread(saved.unreadable, self._checks("savepoints"))
        findings += without_input(self.cut)
        validator.build_docs()
        read = {row["topic"]: row["count"] for row in records.groupBy("topic").count().collect()}
        return findings, quarantined, {t: TopicRead(role.role, read.get(t, 0)) for t, role in reading.roles.items()}

    def _assets(self, accounts: Accounts, results: AuditResults, saved: Saved) -> Iterator[_Asset]:
        """Yield every asset in order. Its table is created only then, because some tables use previous ones."""
        if self.cut.ranges:
            whole = any(accounts.path.is_whole(topic) for topic in accounts.path.reading.roles)
            yield self._asset("commits", accounts.commits())
            yield self._asset("accounts", accounts.accounts())
            yield self._asset("counts", accounts.counts(), may_be_empty=True)
            if whole and has_all_letters(self.reading):
                yield self._asset("letters", accounts.letters(), may_be_empty=True)
            ruled = [contract for contract in contracts(self.plan) if is_read(contract, self.reading)]
            yield from self._contracts(accounts, [contract for contract in ruled if contract.is_source], Rows.SCANNED)
            if results.derived:
                yield self._asset("results", results.results(), Rows.MANY, may_be_empty=True)
                results.release_partials()
                yield self._asset("lasts", results.lasts(), Rows.SCANNED, may_be_empty=True)
                yield self._asset("updates", results.updates(), Rows.SCANNED, may_be_empty=True)
            accounts.path.release_judged()
            if (frame := saved.table()) is not None:
                yield self._asset("savepoints", frame, may_be_empty=True)
            yield self._asset("placement", accounts.placement(), Rows.SCANNED, may_be_empty=True)
            yield from self._contracts(accounts, [contract for contract in ruled if not contract.is_source], Rows.MANY)
        yield self._asset("ends", accounts.ends())

    def _asset(self, name: str, frame: DataFrame, rows: Rows = Rows.FEW, *, may_be_empty: bool = False) -> _Asset:
        return _Asset(name, frame, self._checks(name), may_be_empty, rows)

    def _checks(self, asset: str) -> tuple[Check, ...]:
        # What was committed at least once may have been processed again after the guarantee was changed.
        records = (record for run in self.cut.ranges.values() for record in run.records)
        is_once = all(each is Guarantee.EXACTLY_ONCE for each in (self.plan.guarantee, *(r.guarantee for r in records)))
        return checks_of(asset, exactly_once=is_once)

    def _contracts(self, accounts: Accounts, chosen: Sequence[Contract], rows: Rows) -> Iterator[_Asset]:
        for contract in chosen:
            yield _Asset(contract.asset, accounts.contract(contract), contract.checks, may_be_empty=True, rows=rows)

    def _compacted_before(self, reading: AuditRange) -> dict[str, int]:
        """Return, by topic, the time before which committed records may have been compacted or deleted."""
        settings = self.settings
        admin = AdminClient(librdkafka_config(settings))
        topics = [topic for topic, role in reading.roles.items() if role.role != DLQ]
        found = {}
        for topic, config in topic_configs(admin, topics, settings).items():
            if topic in reading.lost and reading.roles[topic].role != SOURCE:
                found[topic] = wall_clock_ms() + _COMPACTION_MARGIN_MS
            elif "compact" in config.get("cleanup.policy", ""):
                until_ms = compacted_until_ms(self.kept_history.get(topic), config, wall_clock_ms())
                found[topic] = until_ms + _COMPACTION_MARGIN_MS
        return found

    def _kept_from(self, reading: AuditRange, compacted_before_ms: Mapping[str, int]) -> dict[TopicPartition, int]:
        """Return, per partition of compacted sources, the first offset that is too young to have been compacted."""
        ends = EndOffsets(AdminClient(librdkafka_config(self.settings)), self.settings.broker_timeout_ms / 1000)
        found: dict[TopicPartition, int] = {}
        for topic, before_ms in compacted_before_ms.items():
            if reading.roles[topic].role == SOURCE:
                found |= ends.at_time([place for place in reading.spans if place.topic == topic], before_ms)
        return found

    def remember(self, time_ms: int, records: int, seconds: float, verdict: Verdict) -> None:
        """Write the results from which the next audit continues, then the ranges, and remove what is no longer needed.

        Ranges of tasks of which another audit has come further are not written.
        """
        known = audited_until(self.facts, self.plan.application_id)
        further = [
            run
            for task, run in self.cut.ranges.items()
            # Where no other audit has moved the position, the cut has judged it already.
            if task not in known or known[task] == self.before.get(task) or not ends_before(run, known[task].end)
        ]
        if not further or self._results is None or self._bases is None:
            return
        compacted = self._compacted_before(self.reading)
        for d in self._results.found.derived:
            state = self._results.state(d) if d in self._results.derived else self._bases.ahead(d, compacted)
            if state is not None:
                self._carried.write(self.audit_id, d, state)
        write_audit(
            self.facts,
            self.plan.application_id,
            [
                AuditedRange(self.audit_id, time_ms, run.records[0].batch, records, seconds, verdict, run.end)
                for run in further
            ],
        )
        needed = {one.audit_id for one in audited_until(self.facts, self.plan.application_id).values()}
        self._carried.keep_only(needed)
