"""The results that a run of batches goes on from: those of the audit before, or what the changelog held there."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_jobs import audit_truth as truth
from spark_jobs.audit_reading import Reader, Reading, Span
from spark_jobs.audit_views import Road
from tidemark.names import TaskId, TopicPartition
from tidemark.quality.derivable import Derived
from tidemark.quality.ranges import Base


def state_schema(d: Derived) -> str:
    """Of carried results: task, key, window and what is kept of each aggregate."""
    return ", ".join(["p INT", "k STRING", "ws BIGINT", *truth.kept_columns(d.aggregation)])


@dataclass(frozen=True)
class Carried:
    """Results of past audits, as Parquet in `<folder>/<audit id>/<aggregation>`."""

    spark: SparkSession
    folder: Path

    def read(self, audit_id: str, d: Derived) -> DataFrame | None:
        """What an audit left, None where it is gone."""
        path = self._path(audit_id, d)
        return self.spark.read.schema(state_schema(d)).parquet(path.as_uri()) if path.exists() else None

    def write(self, audit_id: str, d: Derived, frame: DataFrame) -> None:
        """Keep the results of an audit. Blocks."""
        frame.coalesce(1).write.mode("overwrite").parquet(self._path(audit_id, d).as_uri())

    def keep_only(self, audit_ids: Collection[str]) -> None:
        """Take away what other audits left."""
        for state in self.folder.glob("*"):
            if state.name not in audit_ids:
                shutil.rmtree(state, ignore_errors=True)

    def _path(self, audit_id: str, d: Derived) -> Path:
        return self.folder / audit_id / d.name


@dataclass(frozen=True)
class Bases:
    """Finds what each aggregation goes on from. `before` names, by task, the audit that carried results over."""

    road: Road
    reader: Reader
    carried: Carried
    before: Mapping[TaskId, str]
    work: Path

    def of(self, d: Derived) -> DataFrame | None:
        """Rows of `state_schema`; None where the aggregation has no new batch, or cannot be computed again. Blocks."""
        runs = {task: run for task, run in self.road.cut.ranges.items() if task.subtopology == d.subtopology.index}
        if not runs or not self.road.is_whole(d.subtopology.sources[d.branch.source].topic):
            return None
        base = self.carried.spark.createDataFrame([], state_schema(d))
        logged: dict[TopicPartition, Span] = {}
        for task, run in runs.items():
            if run.base is Base.EMPTY:
                continue
            known = self.carried.read(self.before[task], d) if run.base is Base.CARRIED else None
            if known is not None:
                base = base.unionByName(known.where(f"p = {task.partition}"))
            elif d.changelog is None:
                return None
            else:
                place = TopicPartition(d.changelog, task.partition)
                logged[place] = (
                    self.road.cut.lows.get(place, 0),
                    run.base_until.get(d.changelog, {}).get(task.partition, 0),
                )
        read = {place: span for place, span in logged.items() if span[0] < span[1]}
        return base.unionByName(self._folded(d, d.changelog, read)) if read and d.changelog else base

    def _folded(self, d: Derived, changelog: str, spans: Mapping[TopicPartition, Span]) -> DataFrame:
        """The last value per key of a changelog; deleted keys are gone."""
        roles = {changelog: self.road.reading.roles[changelog]}
        records = self.reader.read(Reading(roles, spans, {}, frozenset()), self.work / f"base_{d.name}")
        view = self.road.views.add(f"whole_{d.name}", records)
        names = ", ".join(column.split()[0] for column in truth.kept_columns(d.aggregation))
        return self.road.views.spark.sql(
            f"SELECT p, k, ws, {names} FROM (SELECT *, row_number() OVER (PARTITION BY p, k, ws ORDER BY offset DESC) "
            f"AS __n FROM ({truth.changelog_results_sql(d, view)})) WHERE __n = 1 AND NOT is_deleted"
        )
