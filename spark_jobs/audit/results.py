"""The audit's tables that compare the results of each batch with the audit's own results (docs/audit.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from spark_jobs.audit import recomputation
from spark_jobs.audit.views import PipelineView
from spark_jobs.sql_text import literal, quoted
from tidemark.audit.derivable import Derivable, Derived
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.plan import Number, Window

UPDATE, FINAL = "update", "final"
_RESULTS = (
    "topic STRING, role STRING, task STRING, partition INT, offset BIGINT, k STRING, window_start BIGINT, "
    "batch BIGINT, is_copy BOOLEAN, is_expected BOOLEAN, is_newest_found BOOLEAN, is_newest_expected BOOLEAN, "
    "found STRING, expected STRING, is_equal BOOLEAN, is_back BOOLEAN, is_compacted BOOLEAN"
)
# A sum of doubles depends on the order of its parts.
_RELATIVE = "1e-9D"


@dataclass
class AuditResults:
    """Creates the tables. `bases` has, by the name of a `Derived`, the results from which its run continues: p, k, ws, s0, …

    `compacted_before_ms`: per changelog, records committed earlier may have been compacted away.
    """

    path: PipelineView
    found: Derivable
    bases: Mapping[str, DataFrame]
    compacted_before_ms: Mapping[str, int]
    _truths: dict[str, str] = field(default_factory=dict)

    @property
    def derived(self) -> list[Derived]:
        """The aggregations that can be computed again for this cut."""
        return [d for d in self.found.derived if d.name in self.bases]

    def results(self) -> DataFrame:
        """Return one row per result: the value expected from a batch, and the value in the topic."""
        parts = [part for d in self.derived for part in self._compared(d)]
        spark = self.path.views.spark
        return spark.sql(" UNION ALL ".join(parts)) if parts else spark.createDataFrame([], _RESULTS)

    def lasts(self) -> DataFrame:
        """Return one row per changed topic, key and window: its last value in the cut, and the expected last value.

        Uses the view `results`. Usually the last record is that of the last batch with the key; otherwise both are looked up.
        """
        return self.path.views.spark.sql(lasts_sql(self.path.views.name("results")))

    def updates(self) -> DataFrame:
        """Return one row per record of a topic of updates, with whether it reverts the previous record of its key.

        Topics are left out whose results may both rise and fall. Uses the view `results`.
        """
        monotone = [d for d in self.derived if d.rising or d.falling]
        topics = {topic for d in monotone for topic in (*d.update_sinks, d.changelog) if topic is not None}
        return self.path.views.spark.sql(updates_sql(self.path.views.name("results"), topics))

    def release_partials(self) -> None:
        """Free the partial results, once the results are computed."""
        self.path.views.release(self.path.in_time(d) for d in self.derived)

    def state(self, d: Derived) -> DataFrame:
        """Return the results from which the next audit continues. Call this after `results`."""
        last = [
            (run.task.partition, run.records[-1].stream_times.of(d.aggregation.store.name))
            for run in self.path.cut.ranges.values()
            if run.task.subtopology == d.subtopology.index
        ]
        ends = self.path.views.rows(f"state_ends_{d.name}", last, "p INT, stream_time_ms BIGINT")
        return self.path.views.spark.sql(recomputation.state_sql(d.aggregation, self._truths[d.name], ends))

    def _compared(self, d: Derived) -> list[str]:
        base = self.path.views.add(f"base_{d.name}", self.bases[d.name])
        sql = recomputation.results_sql(d.aggregation, self.path.in_time(d), base)
        own = self._truths[d.name] = self.path.views.add(f"truth_{d.name}", sql, keep=True)
        updates = f"(SELECT * FROM {own} WHERE batch >= 0)"
        parts = [self._against(d, topic, view, updates, UPDATE) for topic, view in self._there(d, UPDATE)]
        if d.final_sinks and d.final_store is not None and isinstance(d.aggregation.window, Window):
            batches = self.path.batches_at(d.subtopology, d.final_store)
            finals = f"({recomputation.finals_sql(d.aggregation, own, batches)})"
            parts += [self._against(d, topic, view, finals, FINAL) for topic, view in self._there(d, FINAL)]
        return parts

    def _there(self, d: Derived, role: str) -> list[tuple[str, str]]:
        """Return topic and view of the emitted and logged results."""
        add = self.path.views.add
        if role == FINAL:
            return [
                (t, add(f"sink_{t}", recomputation.sink_results_sql(d, t, self.path.records))) for t in d.final_sinks
            ]
        found = [(t, add(f"sink_{t}", recomputation.sink_results_sql(d, t, self.path.records))) for t in d.update_sinks]
        if d.changelog is not None:
            sql = recomputation.changelog_results_sql(d, self.path.records)
            found.append((d.changelog, add(f"log_{d.changelog}", sql)))
        return found

    def _against(self, d: Derived, topic: str, view: str, expected: str, role: str) -> str:
        serde = next((sink.key_serde for sink in d.subtopology.sinks if sink.topic == topic), KeySerde.STRING)
        if serde is not KeySerde.STRING:
            expected = f"(SELECT * FROM {expected} WHERE {recomputation.has_form_sql(serde, 'k')})"
        equal = ["NOT f.is_deleted"]
        for aggregate in d.aggregation.aggregates:
            there, own = f"f.{_result(aggregate.name)}", f"e.{_result(aggregate.name)}"
            if aggregate.number is Number.DOUBLE:
                equal.append(near_sql(there, own))
            else:
                equal.append(f"{there} <=> {own}")
        names = [aggregate.name for aggregate in d.aggregation.aggregates]
        structs = {side: ", ".join(f"'{name}', {side}.{_result(name)}" for name in names) for side in ("f", "e")}
        old_ms = self.compacted_before_ms.get(topic, 0)
        batches = self.path.batches_of(d.subtopology)
        # Equal values are not converted to text, because that takes longer than comparing them.
        return f"""
SELECT topic, role, task, partition, offset, k, window_start, batch, is_copy, is_expected, is_newest_found,
    is_newest_expected, IF(is_told AND offset IS NOT NULL, IF(is_deleted, 'deleted', to_json(f)), NULL) AS found,
    IF(is_told AND is_expected, to_json(e), NULL) AS expected, is_equal, is_back, is_compacted
FROM (SELECT *, NOT is_equal OR is_newest_found <> is_newest_expected AS is_told FROM (
SELECT '{topic}' AS topic, '{role}' AS role, concat({d.subtopology.index}, '_', coalesce(e.p, f.p)) AS task,
    f.partition, f.offset, coalesce(e.k, f.k) AS k, coalesce(e.ws, f.ws) AS window_start,
    coalesce(e.batch, f.batch) AS batch, coalesce(f.is_copy, false) AS is_copy, e.p IS NOT NULL AS is_expected,
    coalesce(f.is_newest, false) AS is_newest_found,
    coalesce(e.is_newest AND coalesce(f.is_last_copy, true), false) AS is_newest_expected, f.is_deleted,
    named_struct({structs["f"]}) AS f, named_struct({structs["e"]}) AS e,
    coalesce({" AND ".join(equal)}, false) AS is_equal, coalesce(f.is_back, false) AS is_back,
    coalesce(b.commit_time_ms < {old_ms}, false) AS is_compacted
FROM {expected} e FULL OUTER JOIN ({in_order_sql(d, view)}) f
    ON f.p = e.p AND f.k = e.k AND f.ws = e.ws AND f.batch = e.batch
LEFT JOIN {batches} b ON b.p = coalesce(e.p, f.p) AND b.batch = coalesce(e.batch, f.batch)))"""


def near_sql(found: str, expected: str) -> str:
    """Return the SQL condition that two DOUBLEs are equal but for the rounding of a sum.

    NaN and each infinity equal only themselves.
    """
    greater = f"greatest(abs({found}), abs({expected}))"
    # To Spark, NaN is the largest number, and equal to itself.
    is_near = f"{greater} < double('Infinity') AND abs({found} - {expected}) <= {_RELATIVE} * {greater}"
    return f"coalesce({found} <=> {expected} OR {is_near}, false)"


def in_order_sql(d: Derived, view: str) -> str:
    """Return the SQL of a topic's records, compared with the previous and next ones of the same key.

    All of it, and the join, use one sort order.
    """
    of_key = "OVER (PARTITION BY p, k, ws ORDER BY batch, offset)"
    back = [f"{_result(name)} < lag({_result(name)}) {of_key}" for name in d.rising]
    back += [f"{_result(name)} > lag({_result(name)}) {of_key}" for name in d.falling]
    is_back = f"({' OR '.join(back)}) AND lag(partition) {of_key} = partition" if back else "false"
    return (
        f"SELECT *, coalesce(lag(batch) {of_key} = batch, false) AS is_copy, "
        f"coalesce(lead(batch) {of_key} <> batch, true) AS is_last_copy, lead(batch) {of_key} IS NULL AS is_newest, "
        f"coalesce({is_back}, false) AS is_back FROM {view} WHERE batch IS NOT NULL"
    )


def lasts_sql(results: str) -> str:
    """Return the SQL of the last values of `results`.

    Values are left out that compaction removed because of a record after the cut.
    """
    columns = "topic, task, k, window_start, partition, offset, found, expected"
    rows = f"SELECT * FROM {results} WHERE role = '{UPDATE}'"
    same = "f.topic = t.topic AND f.task = t.task AND f.k = t.k AND f.window_start = t.window_start"
    return f"""
SELECT {columns}, is_equal FROM ({rows}) WHERE is_newest_expected AND is_newest_found
UNION ALL
SELECT t.topic, t.task, t.k, t.window_start, f.partition, f.offset, f.found, t.expected,
    coalesce(f.found = t.expected, false) AS is_equal
FROM (SELECT * FROM ({rows}) WHERE is_newest_expected AND NOT is_newest_found) t
LEFT JOIN (SELECT * FROM ({rows}) WHERE is_newest_found AND NOT is_newest_expected) f ON {same}
WHERE f.offset IS NOT NULL OR NOT t.is_compacted"""


def updates_sql(results: str, topics: Collection[str]) -> str:
    """Return the SQL of the records of `results` in these topics of updates."""
    listed = ", ".join(map(literal, sorted(topics))) or "''"
    return (
        f"SELECT topic, partition, offset, k, window_start, batch, is_back FROM {results} "
        f"WHERE role = '{UPDATE}' AND offset IS NOT NULL AND topic IN ({listed})"
    )


def _result(name: str) -> str:
    return quoted("r_" + name)
