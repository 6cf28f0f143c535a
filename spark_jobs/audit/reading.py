"""Reads the cut of an audit from Kafka once, into Parquet: each record with its task and its batch.

Spark reads Kafka, and its Python workers write the files column by column, not row by row. Parts are read one after the
other, at the audit's pace. The written columns are:

    role         STRING   source, sink, changelog or dlq
    topic        STRING   topic of the record
    partition    INT      partition of the record
    offset       BIGINT   offset of the record
    ts_ms        BIGINT   its Kafka timestamp, epoch milliseconds
    key, value   BINARY
    of_topic     STRING   topic, partition and offset
    of_partition INT        of the original record
    of_offset    BIGINT     of a dead letter
    of_reason    STRING   reason of a dead letter
    sub          INT      sub-topology of its task
    p            INT      partition of its task
    batch        BIGINT   its batch; null if it belongs to no batch of the cut
    home         INT      the partition that murmur2 of the key gives; null if that is not checked
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.audit.attribution import Attribution, AuditedTopicRole, Batches, Recorder
from spark_jobs.audit.throttle import Throttle
from spark_jobs.avro_values import AvroValues
from spark_jobs.kafka_reading import KafkaReader
from spark_jobs.refused_records import SPARK_ERRORS, Offsets, Refused, RefusedRecords, refusal_of
from spark_jobs.sql_text import literal
from tidemark.audit.cut import Cut
from tidemark.audit.derivable import keyed_sinks, read_again
from tidemark.audit.progress import AuditProgress, Tell
from tidemark.audit.ranges import COMPUTING
from tidemark.errors import TidemarkError
from tidemark.names import TopicPartition, dlq_topic
from tidemark.settings import Settings
from tidemark.stores.layout import WINDOW_START_BYTES
from tidemark.tasks.task import changelog_of
from tidemark.tasks.update import IMPOSSIBLE_TIMESTAMP, REFUSED_BY_SQL, UNPARSABLE
from tidemark.topology.plan import StoreKind, SubTopology, TopologyPlan

Span = tuple[int, int]
"""Offsets [from, to)."""

_READING = "reading"
SOURCE, SINK, CHANGELOG, DLQ = "source", "sink", "changelog", "dlq"
_SCHEMA = (
    "role STRING, topic STRING, partition INT, offset BIGINT, ts_ms BIGINT, key BINARY, value BINARY, "
    "of_topic STRING, of_partition INT, of_offset BIGINT, of_reason STRING, sub INT, p INT, batch BIGINT, home INT"
)
# The headers themselves must not be passed to Python: Spark measures the batch after each row, and for nested columns that
# takes time in proportion to the rows before.
_COLUMNS = ("topic", "partition", "offset", "unix_millis(timestamp) AS ts_ms", "key", "value")
_HEADERS = {"topic": "STRING", "partition": "INT", "offset": "BIGINT", "reason": "STRING"}
# After the last record there is a transaction marker, for which the reader sends one more request to the broker.
_CLIENT_OPTIONS = {"fetch.max.wait.ms": "20"}


@dataclass(frozen=True)
class AuditRange:
    """The range that an audit reads: the offset `spans` by partition, and the batches in them."""

    roles: Mapping[str, AuditedTopicRole]
    spans: Mapping[TopicPartition, Span]
    batches: Batches = field(repr=False)
    lost: frozenset[str]
    """The topics whose beginning has been deleted."""

    @property
    def offsets(self) -> int:
        """The number of offsets in all spans, including markers and gaps."""
        return sum(end - start for start, end in self.spans.values())


def reading_of(plan: TopologyPlan, cut: Cut) -> AuditRange:
    """Return what must be read for a cut. Repartition topics are left out, because they are purged."""
    roles = {
        topic: role
        for subtopology in plan.subtopologies
        for topic, role in _roles(plan, subtopology, cut.partitions).items()
    }
    writers = [t for s in plan.subtopologies for t in s.sink_topics]
    roles = {t: r for t, r in roles.items() if r.role != SINK or writers.count(t) == 1}
    roles[dlq_topic(plan.application_id)] = AuditedTopicRole(DLQ, -1, own=False, tasks=1, placed=None)
    spans: dict[TopicPartition, Span] = {}
    batches: dict[tuple[str, int, int], tuple[list[int], list[int], list[int]]] = {}
    for task, run in cut.ranges.items():
        found: list[tuple[str, int, int, int, int]] = []
        for record in run.computed:
            found += [(t, task.partition, *spans[task.partition], record.batch) for t, spans in record.sources.items()]
        for record, starts, ends in run.spans():
            if record.kind not in COMPUTING:
                continue
            for topic, offsets in starts.items():
                if topic in record.sources:
                    continue
                found += [(topic, p, at, ends.get(topic, {}).get(p, at), record.batch) for p, at in offsets.items()]
        for topic, partition, start, end, batch in run.unclaimed():
            # Records that have been deleted there are none that the batches of this cut lack.
            low = cut.lows.get(TopicPartition(topic, partition), 0)
            if low < end:
                found.append((topic, partition, max(start, low), end, batch))
        for topic, partition, start, end, batch in sorted(found):
            role = roles.get(topic)
            if role is None or (role.role != DLQ and role.sub != task.subtopology):
                continue
            place = TopicPartition(topic, partition)
            known = spans.get(place, (start, end))
            spans[place] = (min(known[0], start), max(known[1], end))
            columns = batches.setdefault((topic, partition, task.partition), ([], [], []))
            for column, value in zip(columns, (start, end, batch), strict=True):
                column.append(value)
    lost = {p.topic for p, (start, end) in spans.items() if start < min(cut.lows.get(p, 0), end)}
    spans = {p: (max(start, cut.lows.get(p, 0)), end) for p, (start, end) in spans.items()}
    return AuditRange(roles, {p: span for p, span in spans.items() if span[0] < span[1]}, batches, frozenset(lost))


def _roles(plan: TopologyPlan, subtopology: SubTopology, partitions: Mapping[str, int]) -> dict[str, AuditedTopicRole]:
    purged = plan.repartition_topics
    tasks = partitions[subtopology.lead.topic]
    found = {
        source.topic: AuditedTopicRole(
            SOURCE, subtopology.index, own=True, tasks=tasks, placed=tasks, key_serde=source.key_serde
        )
        for source in subtopology.sources
        if source.topic not in purged
    }
    by_hand = {sink.topic for sink in subtopology.sinks if sink.partitioner is not None}
    windows = {sink.topic: sink.windowed_key for sink in subtopology.sinks if sink.windowed_key is not None}
    serdes = {sink.topic: sink.key_serde for sink in subtopology.sinks}
    for topic in keyed_sinks(subtopology) - read_again(plan):
        found[topic] = AuditedTopicRole(
            SINK,
            subtopology.index,
            own=False,
            tasks=tasks,
            placed=None if topic in by_hand else partitions[topic],
            suffix_bytes=windows[topic].value if topic in windows else 0,
            key_serde=serdes[topic],
            # A source whose keys are not text is never joined with another, so all tasks are by its keys.
            task_serde=subtopology.lead.key_serde,
        )
    plain = {aggregation.store.name for aggregation in subtopology.aggregations}
    suffixes = {StoreKind.KEY_VALUE: 0, StoreKind.WINDOW: WINDOW_START_BYTES, StoreKind.SESSION: 2 * WINDOW_START_BYTES}
    for store in subtopology.stores:
        if store.has_changelog:
            topic = changelog_of(plan.application_id, store)
            placed = tasks if store.name in plain else None
            found[topic] = AuditedTopicRole(
                CHANGELOG, subtopology.index, own=True, tasks=tasks, placed=placed, suffix_bytes=suffixes[store.kind]
            )
    return found


def parts_of(spans: Mapping[TopicPartition, Span], most_offsets: int) -> Iterator[dict[TopicPartition, Span]]:
    """Split spans into parts of about `most_offsets` offsets. All partitions advance together."""
    total = sum(end - start for start, end in spans.values())
    count = max(1, -(-total // most_offsets))
    for number in range(count):
        part = {}
        for place, (start, end) in spans.items():
            length = end - start
            span = (start + length * number // count, start + length * (number + 1) // count)
            if span[0] < span[1]:
                part[place] = span
        if part:
            yield part


@dataclass(frozen=True)
class Reader:
    """Reads with one Spark session, `most_offsets` offsets per turn. `values` are those of sources and sinks of Avro."""

    spark: SparkSession
    settings: Settings
    most_offsets: int
    pace: Throttle
    values: AvroValues

    def read(self, reading: AuditRange, folder: Path, tell: Tell) -> DataFrame:
        """Read everything into `folder`, to which Spark's workers need access, and report the progress. Blocks.

        Raises `TidemarkError` if Spark cannot read a record's Kafka timestamp, and if it can decode no value of a record that
        the stream may have read.
        """
        attribution = Attribution(reading.roles, reading.batches)
        folder.mkdir(parents=True)
        begun, done = time.monotonic(), 0
        tell(AuditProgress(_READING, done, reading.offsets, "offsets", 0.0))
        for number, part in enumerate(parts_of(reading.spans, self.most_offsets)):
            with self.pace.turn():
                self._record(part, Recorder(attribution, folder, number))
            done += sum(end - start for start, end in part.values())
            tell(AuditProgress(_READING, done, reading.offsets, "offsets", time.monotonic() - begun))
        records = self.spark.read.schema(_SCHEMA).parquet(folder.as_uri())
        self._require_letters(records)
        return records

    def _record(self, part: Mapping[TopicPartition, Span], recorder: Recorder) -> None:
        try:
            self.kafka(part).mapInArrow(recorder, "records BIGINT").collect()
        except SPARK_ERRORS as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            if refusal.reason == IMPOSSIBLE_TIMESTAMP:
                raise TidemarkError(
                    "the batches cannot be audited, because a record that they read or wrote has a Kafka timestamp after the "
                    "year 294247, which Spark cannot read; audit again when the topic's retention has deleted that record"
                ) from error
            refused = self._refused_in(part)
            if not refused:
                raise
            self.values.refuse(refused)
            # Spark's tasks are the same ones, so they write the same files again.
            self._record(part, recorder)

    def _refused_in(self, spans: Mapping[TopicPartition, Span]) -> Refused:
        """Return the records of Avro for which Spark raises when it decodes them, as it does in the stream.

        Blocks for many Spark jobs. Raises Spark's error if it comes from no record.
        """
        reader, found = self._reader(), RefusedRecords(only_decodes=True)
        starts, ends = _ends_of(self._of_avro(spans))

        def run(some: Sequence[tuple[TopicPartition, int, int]], _is_careful: bool) -> pa.Table:
            decoded = self.values.frame(reader.rows_in(some).frame())
            return decoded.selectExpr("count(length(value)) AS values").where("values > 0").toArrow()

        found.read(starts, ends, run)
        return found.between(starts, ends)

    def _require_letters(self, records: DataFrame) -> None:
        """Raise `TidemarkError` if the stream has written no dead letter for a record whose value Spark refuses to decode.

        The stream may have read it: how deep a record may be depends on how much of a JVM's code is compiled.
        """
        refused = [
            (place.topic, place.partition, at) for place, offsets in self.values.refused.items() for at in offsets
        ]
        if not refused:
            return
        place = ["of_topic", "of_partition", "of_offset"]
        read = records.where(f"role = '{SOURCE}' AND batch IS NOT NULL").selectExpr(
            "topic AS of_topic", "partition AS of_partition", "offset AS of_offset"
        )
        letters = records.where(f"role = '{DLQ}' AND of_reason IN ({literal(REFUSED_BY_SQL)}, {literal(UNPARSABLE)})")
        found = self.spark.createDataFrame(refused, "of_topic STRING, of_partition INT, of_offset BIGINT")
        untold = found.join(read, place, "left_semi").join(letters, place, "left_anti").orderBy(place).first()
        if untold is not None:
            raise TidemarkError(
                f"the batches cannot be audited, because {TopicPartition(untold.of_topic, untold.of_partition)} offset "
                f"{untold.of_offset} cannot be decoded here and has no dead letter: the stream may have read it; audit again "
                "with a larger -Xss in spark.driver.extraJavaOptions, or when retention has deleted that record"
            )

    def kafka(self, spans: Mapping[TopicPartition, Span]) -> DataFrame:
        """Return the records of some spans from Spark's Kafka source, read_committed."""
        reader = self._reader()
        frame = reader.between(*_ends_of(spans))
        if avro := self._of_avro(spans):
            self.values.learn(reader.between(*_ends_of(avro)))
            frame = self.values.frame(frame)
        return frame.selectExpr(*_COLUMNS, *(header_sql(name, kind) for name, kind in _HEADERS.items()))

    def _reader(self) -> KafkaReader:
        return KafkaReader(self.spark, self.settings, has_headers=True, options=_CLIENT_OPTIONS)

    def _of_avro(self, spans: Mapping[TopicPartition, Span]) -> Mapping[TopicPartition, Span]:
        return {place: span for place, span in spans.items() if place.topic in self.values.topics}


def _ends_of(spans: Mapping[TopicPartition, Span]) -> tuple[Offsets, Offsets]:
    """Return the first offsets of spans, and those after the last ones."""
    return {place: start for place, (start, _) in spans.items()}, {place: end for place, (_, end) in spans.items()}


def header_sql(name: str, kind: str) -> str:
    """Return the SQL of a dead letter's header as the column `of_<name>`, which is null if there is no such header."""
    # The original record may have headers of these names; those of the dead letter come after them. An empty array has no
    # element -1, hence try_element_at.
    value = f"CAST(try_element_at(filter(headers, h -> h.key = 'tidemark.{name}'), -1).value AS STRING)"
    return f"CAST({value} AS {kind}) AS of_{name}"
