"""Finds the results from which a run of batches continues: those of the last audit, or the changelog at that point."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.audit import recomputation
from spark_jobs.audit.reading import AuditRange, Reader, Span
from spark_jobs.audit.views import PipelineView
from tidemark.audit.derivable import Derived
from tidemark.audit.progress import Tell
from tidemark.audit.ranges import Base, TaskRange
from tidemark.names import TaskId, TopicPartition


def state_schema(d: Derived) -> str:
    """Return the schema of carried results: task, key, window, and the kept fields of each aggregate."""
    return ", ".join(["p INT", "k STRING", "ws BIGINT", *recomputation.kept_columns(d.aggregation)])


@dataclass(frozen=True)
class Carried:
    """The stored results of past audits, as Parquet in `<folder>/<audit id>/<aggregation>`."""

    spark: SparkSession
    folder: Path

    def read(self, audit_id: str, d: Derived) -> DataFrame | None:
        """Return the results of an audit, or None if they no longer exist."""
        path = self._path(audit_id, d)
        return self.spark.read.schema(state_schema(d)).parquet(path.as_uri()) if path.exists() else None

    def write(self, audit_id: str, d: Derived, frame: DataFrame) -> None:
        """Store the results of an audit. Blocks."""
        frame.coalesce(1).write.mode("overwrite").parquet(self._path(audit_id, d).as_uri())

    def keep_only(self, audit_ids: Collection[str]) -> None:
        """Remove the results of all other audits."""
        for state in self.folder.glob("*"):
            if state.name not in audit_ids:
                shutil.rmtree(state, ignore_errors=True)

    def _path(self, audit_id: str, d: Derived) -> Path:
        return self.folder / audit_id / d.name


def no_fold(run: TaskRange, changelog: str | None, compacted_before_ms: Mapping[str, int]) -> str | None:
    """Return why a changelog does not show the contents of its store at the beginning of a run, or None if it does.

    When a later value is written, compaction may remove the previous one once that is old enough.
    """
    if changelog is None:
        return "its store has no changelog (logging=False), and no audit carried results over"
    first = run.computed[0] if run.computed else run.records[-1]
    if first.commit_time_ms < compacted_before_ms.get(changelog, 0):
        return f"{changelog} may have been compacted since batch {first.batch}; audit within its min.compaction.lag.ms"
    return None


@dataclass
class Bases:
    """Finds the results from which each aggregation continues. `before` names, by task, the audit that stored results.

    `compacted_before_ms`: per changelog, records committed earlier may have been compacted away. `without` collects, by sink
    and changelog, why there are no results to continue from.
    """

    path: PipelineView
    reader: Reader
    carried: Carried
    before: Mapping[TaskId, str]
    work: Path
    compacted_before_ms: Mapping[str, int]
    tell: Tell
    without: dict[str, str] = field(default_factory=dict)

    def of(self, d: Derived) -> DataFrame | None:
        """Return rows of `state_schema`, or None if there is no new batch or it cannot be computed again. Blocks."""
        runs = self._runs(d)
        if not runs or not self.path.is_whole(d.subtopology.sources[d.pipeline.source].topic):
            return None
        base = self.carried.spark.createDataFrame([], state_schema(d))
        logged: dict[TopicPartition, Span] = {}
        for task, run in runs.items():
            if run.base is Base.EMPTY:
                continue
            known = self.carried.read(self.before[task], d) if run.base is Base.CARRIED else None
            if known is not None:
                base = base.unionByName(known.where(f"p = {task.partition}"))
                continue
            why = no_fold(run, d.changelog, self.compacted_before_ms)
            if d.changelog is None or why is not None:
                topics = [*d.update_sinks, *d.final_sinks, *([d.changelog] if d.changelog else [])]
                self.without |= dict.fromkeys(topics, f"task {task} has no results to continue from: {why}")
                return None
            logged |= self._span(d.changelog, task, run.base_until.get(d.changelog, {}).get(task.partition, 0))
        return base.unionByName(self._folded(d, d.changelog, logged, "base")) if logged and d.changelog else base

    def ahead(self, d: Derived, compacted_before_ms: Mapping[str, int]) -> DataFrame | None:
        """Return results for the next audit if this one had none: the folded changelog at the end of the cut. Blocks.

        Returns None if compaction may have removed records there, too, or if there is no changelog.
        """
        runs = self._runs(d)
        moment_ms = compacted_before_ms.get(d.changelog or "", 0)
        if not runs or d.changelog is None or any(r.records[-1].commit_time_ms < moment_ms for r in runs.values()):
            return None
        logged: dict[TopicPartition, Span] = {}
        for task, run in runs.items():
            logged |= self._span(d.changelog, task, run.until.get(d.changelog, {}).get(task.partition, 0))
        if not logged:
            return self.carried.spark.createDataFrame([], state_schema(d))
        return self._folded(d, d.changelog, logged, "ahead")

    def _runs(self, d: Derived) -> dict[TaskId, TaskRange]:
        return {task: run for task, run in self.path.cut.ranges.items() if task.subtopology == d.subtopology.index}

    def _span(self, changelog: str, task: TaskId, end: int) -> dict[TopicPartition, Span]:
        place = TopicPartition(changelog, task.partition)
        start = self.path.cut.lows.get(place, 0)
        return {place: (start, end)} if start < end else {}

    def _folded(self, d: Derived, changelog: str, spans: Mapping[TopicPartition, Span], name: str) -> DataFrame:
        """Return the last value per key of a changelog, without deleted keys."""
        roles = {changelog: self.path.reading.roles[changelog]}
        records = self.reader.read(AuditRange(roles, spans, {}, frozenset()), self.work / f"{name}_{d.name}", self.tell)
        view = self.path.views.add(f"whole_{name}_{d.name}", records)
        names = ", ".join(column.split()[0] for column in recomputation.kept_columns(d.aggregation))
        return self.path.views.spark.sql(
            f"SELECT p, k, ws, {names} FROM (SELECT *, row_number() OVER (PARTITION BY p, k, ws ORDER BY offset DESC) "
            f"AS __n FROM ({recomputation.changelog_results_sql(d, view)})) WHERE __n = 1 AND NOT is_deleted"
        )
