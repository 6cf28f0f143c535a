"""The audit's tables of commit records, ends, placement, record counts and dead letters (docs/audit.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark_jobs.audit import recomputation
from spark_jobs.audit.keyless import countable
from spark_jobs.audit.reading import CHANGELOG, DLQ, SINK, SOURCE
from spark_jobs.audit.views import PipelineView
from spark_jobs.sql_text import literal, quoted
from tidemark.audit.contracts import Contract
from tidemark.audit.derivable import Derivable, Derived
from tidemark.audit.ranges import commit_rows
from tidemark.operations.dead_letters.reader import REPLAYED
from tidemark.tasks.update import OF_PROCESSED_RECORDS
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.plan import SubTopology, TopologyPlan

_COMMITS = (
    "task STRING, kind STRING, batch BIGINT, previous_batch BIGINT, topic STRING, start_offset BIGINT, "
    "end_offset BIGINT, previous_end BIGINT, stream_time_ms BIGINT, previous_stream_time_ms BIGINT, "
    "commit_time_ms BIGINT, previous_commit_ms BIGINT"
)
_CLAIMS = "task STRING, p INT, batch BIGINT, topic STRING, role STRING, claimed BIGINT, is_compacted BOOLEAN"
_ENDS = "topic STRING, partition INT, committed_end BIGINT, end BIGINT, waited_ms BIGINT"
_SPANS = "topic STRING, partition BIGINT, start_offset BIGINT, end_offset BIGINT"
_COUNTED = ("records", "rows", "filtered_rows", "bad_rows")


@dataclass(frozen=True)
class Accounts:
    """Creates the tables. `compacted_before_ms`: per changelog, records committed earlier may have been compacted away."""

    path: PipelineView
    plan: TopologyPlan
    found: Derivable
    compacted_before_ms: dict[str, int]

    def commits(self) -> DataFrame:
        """Return one row per commit record and source."""
        rows = [row for run in self.path.cut.ranges.values() for row in commit_rows(run)]
        names = [column.split()[0] for column in _COMMITS.split(", ")]
        return self._table("commit_rows", ((*(row[name] for name in names),) for row in rows), _COMMITS)

    def ends(self) -> DataFrame:
        """Return one row per partition of sinks, changelogs, dead letters and commit records."""
        ends = self.path.cut.ends
        rows = ((e.partition.topic, e.partition.partition, e.committed_end, e.end, e.waited_ms) for e in ends)
        return self._table("end_rows", rows, _ENDS)

    def placement(self) -> DataFrame:
        """Return one row per record whose partition depends on its key."""
        serdes = {topic: role.key_serde for topic, role in self.path.reading.roles.items()}
        cases = " ".join(
            f"WHEN {literal(topic)} THEN coalesce({recomputation.key_text_sql(serde)}, hex(key))"
            for topic, serde in serdes.items()
            if serde is not KeySerde.STRING
        )
        key = f"CASE topic {cases} ELSE CAST(key AS STRING) END" if cases else "CAST(key AS STRING)"
        return self._sql(
            f"SELECT role, topic, partition, offset, {key} AS k, home FROM {self.path.records} "
            "WHERE home IS NOT NULL AND key IS NOT NULL"
        )

    def counts(self) -> DataFrame:
        """Return one row per batch and topic to which it writes: the commit record's count, and the count in the topic.

        What lies between two audits is counted for the last batch of the first one, and no commit record counts it. Records
        without a key may belong to any batch of their topic (`keyless`). A topic that has some also gets a row without a
        batch, which counts all of its records, if that is possible.
        """
        claims = []
        for run in self.path.cut.ranges.values():
            for topic, batch in sorted({(topic, batch) for topic, _, _, _, batch in run.unclaimed()}):
                role = self.path.reading.roles.get(topic)
                if role is not None and role.sub == run.task.subtopology and role.role in (SINK, CHANGELOG):
                    claims.append((str(run.task), run.task.partition, batch, topic, role.role, 0, False))
            for record in run.computed:
                stated = {**record.sinks, **record.changelogs}
                for topic, role in self.path.reading.roles.items():
                    if role.sub != record.task.subtopology or role.role not in (SINK, CHANGELOG):
                        continue
                    old = record.commit_time_ms < self.compacted_before_ms.get(topic, 0)
                    row = (str(record.task), record.task.partition, record.batch, topic, role.role)
                    claims.append((*row, stated.get(topic, 0), old))
        claimed = self.path.views.rows("claims", claims, _CLAIMS)
        whole = ", ".join(literal(topic) for topic in sorted(countable(self.path.reading, self.path.cut))) or "''"
        by_topic = self.path.views.add(
            "sink_records",
            f"SELECT topic, count(1) AS found, count_if(key IS NULL) AS keyless FROM {self.path.records} "
            f"WHERE role = '{SINK}' GROUP BY topic",
            keep=True,
        )
        return self._sql(
            f"SELECT c.task, c.batch, c.topic, c.role, c.claimed, coalesce(f.found, 0) AS found, "
            "coalesce(n.keyless, 0) AS keyless, c.is_compacted, "
            f"f.first_partition, f.first_offset FROM {claimed} c LEFT JOIN (SELECT topic, p, batch, count(1) AS found, "
            f"min_by(partition, offset) AS first_partition, min(offset) AS first_offset FROM {self.path.records} "
            f"WHERE role IN ('{SINK}', '{CHANGELOG}') GROUP BY topic, p, batch) f "
            "ON f.topic = c.topic AND f.p = c.p AND f.batch = c.batch "
            f"LEFT JOIN {by_topic} n ON n.topic = c.topic "
            "UNION ALL SELECT NULL, NULL, c.topic, c.role, c.claimed, n.found, 0L, c.is_compacted, NULL, NULL "
            f"FROM (SELECT topic, role, sum(claimed) AS claimed, bool_or(is_compacted) AS is_compacted FROM {claimed} "
            f"WHERE topic IN ({whole}) GROUP BY topic, role) c JOIN {by_topic} n ON n.topic = c.topic AND n.keyless > 0"
        )

    def accounts(self) -> DataFrame:
        """Return one row per batch: the figures of its commit record, and the same computed from its records."""
        parts = []
        for subtopology in self.plan.subtopologies:
            columns, joins = self._truth(subtopology)
            late, late_joins = self._late(subtopology)
            nodes, node_joins = self._node_times(subtopology)
            parts.append(
                "SELECT concat(b.sub, '_', b.p) AS task, b.batch, b.rows, b.filtered_rows, b.bad_rows, b.late_rows, "
                f"b.stream_time_ms, {columns}, {late}, {nodes} "
                f"FROM {self.path.batches_of(subtopology)} b {joins} {late_joins} {node_joins}"
            )
        return self._sql(" UNION ALL ".join(parts))

    def _truth(self, subtopology: SubTopology) -> tuple[str, str]:
        """Return the columns and the join of the computed figures. They are null if a source is not complete."""
        if not all(self.path.is_whole(source.topic) for source in subtopology.sources):
            return ", ".join(f"CAST(NULL AS BIGINT) AS truth_{name}" for name in (*_COUNTED, "stream_time_ms")), ""
        paths = []
        seen: set[int] = set()
        for number, pipeline in enumerate(subtopology.pipelines):
            account = recomputation.account_sql(pipeline, self.path.reaching(subtopology, number))
            # Every pipeline of a source gets all of its bad records, which must count once.
            once = "0 * " if pipeline.source in seen else ""
            seen.add(pipeline.source)
            paths.append(
                f"SELECT p, batch, {once}records AS records, rows, filtered_rows, {once}bad_rows AS bad_rows, newest_ms "
                f"FROM ({account})"
            )
        paths += [
            f"SELECT __p AS p, __batch AS batch, 0 AS records, 0 AS rows, 0 AS filtered_rows, count(1) AS bad_rows, "
            f"CAST(NULL AS BIGINT) AS newest_ms FROM ({self._keyless(subtopology, number)}) GROUP BY __p, __batch"
            for number in range(len(subtopology.sources))
        ]
        sums = ", ".join(f"sum({name}) AS {name}" for name in _COUNTED)
        sql = f"SELECT p, batch, {sums}, max(newest_ms) AS newest_ms FROM ({_union(paths)}) GROUP BY p, batch"
        view = self.path.views.add(f"accounts_{subtopology.index}", sql)
        columns = [f"coalesce(t.{name}, 0) AS truth_{name}" for name in _COUNTED]
        columns.append("greatest(b.before_ms, coalesce(t.newest_ms, -1)) AS truth_stream_time_ms")
        return ", ".join(columns), f"LEFT JOIN {view} t ON t.p = b.p AND t.batch = b.batch"

    def _keyless(self, subtopology: SubTopology, source: int) -> str:
        """Return the SQL of the records of a source that are dead letters because they have no key, each once."""
        return " UNION ".join(
            f"SELECT __p, __offset, __batch FROM {self.path.reaching(subtopology, number)} WHERE __keyless"
            for number, pipeline in enumerate(subtopology.pipelines)
            if pipeline.source == source
        )

    def _node_times(self, subtopology: SubTopology) -> tuple[str, str]:
        """Return the column `wrong_node_times` and its joins. It names each node whose stream time is not that of its records.

        A node with suppress gets results of the aggregation before it, so it does not go ahead of that one.
        """
        wrong, joins = [], []
        for i, d in enumerate(self._derived(subtopology)):
            newest = f"SELECT p, batch, max(ts) AS newest_ms FROM {self.path.in_time(d)} GROUP BY p, batch"
            joins.append(f"LEFT JOIN ({newest}) r{i} ON r{i}.p = b.p AND r{i}.batch = b.batch")
            names = {"n": d.aggregation.store.name} | ({} if d.final_store is None else {"f": d.final_store})
            for side, store in names.items():
                view = self.path.batches_at(subtopology, store)
                joins.append(f"LEFT JOIN {view} {side}{i} ON {side}{i}.p = b.p AND {side}{i}.batch = b.batch")
            for side, store in names.items():
                # After an upgrade, the aggregation may begin again while suppress goes on.
                known = {"n": f"n{i}.before_ms", "f": f"n{i}.before_ms, f{i}.before_ms"}[side]
                truth = f"greatest({known}, coalesce(r{i}.newest_ms, -1))"
                found = f"{side}{i}.stream_time_ms"
                differs = f"{found} {'<>' if side == 'n' else '>'} {truth}"
                wrong.append(f"CASE WHEN {differs} THEN concat({literal(store)}, ': ', {found}, ', not ', {truth}) END")
        return f"concat_ws('; ', {', '.join(wrong) or 'NULL'}) AS wrong_node_times", " ".join(joins)

    def _derived(self, subtopology: SubTopology) -> list[Derived]:
        """Return the aggregations whose records are still all there."""
        if not all(self.path.is_whole(source.topic) for source in subtopology.sources):
            return []
        return [d for d in self.found.derived if d.subtopology.index == subtopology.index]

    def _late(self, subtopology: SubTopology) -> tuple[str, str]:
        mine = self._derived(subtopology)
        if not mine or subtopology.index not in self.found.late_rows:
            return "CAST(NULL AS BIGINT) AS truth_late_rows", ""
        rows = _union(f"SELECT p, batch, IF(is_late, rows, 0) AS late_rows FROM {self.path.in_time(d)}" for d in mine)
        joins = (
            f"LEFT JOIN (SELECT p, batch, sum(late_rows) AS late_rows FROM ({rows}) GROUP BY p, batch) l "
            "ON l.p = b.p AND l.batch = b.batch"
        )
        return "coalesce(l.late_rows, 0) AS truth_late_rows", joins

    def letters(self) -> DataFrame:
        """Return one row per bad record or dead letter of the cut. `letter_offset` is null if a bad record has none."""
        sources = [
            (subtopology, number, source.topic)
            for subtopology in self.plan.subtopologies
            for number, source in enumerate(subtopology.sources)
            if self.path.is_whole(source.topic)
        ]
        bad = _union(
            f"SELECT {literal(topic)} AS topic, __p AS partition, __offset AS offset, __batch AS batch FROM ({found})"
            for subtopology, number, topic in sources
            for found in (
                f"SELECT __p, __offset, __batch FROM {self.path.judged(subtopology, topic)} WHERE __bad",
                self._keyless(subtopology, number),
            )
        )
        bad = bad or "SELECT '' AS topic, 0 AS partition, 0L AS offset, 0L AS batch WHERE false"
        known = ", ".join(literal(topic) for _, _, topic in sources) or "''"
        # A dead letter belongs to the cut if its record does, or if it names no record. Those of processed records, and the
        # records that a replay writes about itself, are left out.
        besides = ", ".join(map(literal, (*OF_PROCESSED_RECORDS, REPLAYED)))
        letters = (
            f"SELECT l.*, row_number() OVER (PARTITION BY l.topic, l.partition, l.offset ORDER BY letter_offset) AS copies "
            f"FROM (SELECT topic AS letter_topic, partition AS letter_partition, offset AS letter_offset, "
            f"of_topic AS topic, of_partition AS partition, of_offset AS offset FROM {self.path.records} "
            f"WHERE role = '{DLQ}' AND coalesce(of_reason, '') NOT IN ({besides})) l "
            f"LEFT JOIN {self._source_spans()} s ON s.topic = l.topic AND s.partition = l.partition "
            f"WHERE l.topic IS NULL OR (l.topic IN ({known}) AND l.offset >= s.start_offset AND l.offset < s.end_offset)"
        )
        return self._sql(
            "SELECT coalesce(b.topic, l.topic) AS topic, coalesce(b.partition, l.partition) AS partition, "
            "coalesce(b.offset, l.offset) AS offset, b.batch, l.letter_topic, l.letter_partition, l.letter_offset, "
            f"coalesce(l.copies, 1) AS copies, b.offset IS NOT NULL AS is_bad FROM ({bad}) b "
            f"FULL OUTER JOIN ({letters}) l ON l.topic = b.topic AND l.partition = b.partition AND l.offset = b.offset"
        )

    def contract(self, contract: Contract) -> DataFrame:
        """Return one row per record of a topic with a contract, without deletions and bad records.

        The topic must be one that the audit reads.
        """
        if contract.is_source:
            columns = ", ".join(quoted(column.name) for column in contract.columns)
            judged = self.path.judged(contract.subtopology, contract.topic)
            return self._sql(
                f"SELECT _topic AS __topic, _partition AS __partition, __offset, {columns} FROM {judged} "
                "WHERE NOT __bad AND NOT __deletes"
            )
        schema = literal(", ".join(f"{quoted(column.name)} {column.type}" for column in contract.columns))
        return self._sql(
            "SELECT topic AS __topic, partition AS __partition, offset AS __offset, __r.* FROM (SELECT *, "
            f"from_json(CAST(value AS STRING), {schema}) AS __r FROM {self.path.records} WHERE role = '{SINK}' AND "
            f"topic = {literal(contract.topic)} AND value IS NOT NULL)"
        )

    def _source_spans(self) -> str:
        reading = self.path.reading
        rows = [(p.topic, p.partition, *span) for p, span in reading.spans.items()]
        return self.path.views.rows("spans", (r for r in rows if reading.roles[str(r[0])].role == SOURCE), _SPANS)

    def _table(self, name: str, rows: object, schema: str) -> DataFrame:
        return self.path.views.spark.table(self.path.views.rows(name, rows, schema))  # type: ignore[arg-type]

    def _sql(self, text: str) -> DataFrame:
        return self.path.views.spark.sql(text)


def _union(parts: Iterable[str]) -> str:
    return " UNION ALL ".join(parts)
