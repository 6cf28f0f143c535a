"""Finds the records for which Spark raises, and reads all others (see invariant: no record stops a stream).

Spark names no record when an expression raises, and when a Kafka timestamp is out of its range. So what it cannot read is read
again in halves, down to one offset. Such a record is remembered, and later reads pass over it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from tidemark.names import TopicPartition
from tidemark.tasks.partials import Partial, Status
from tidemark.tasks.update import IMPOSSIBLE_TIMESTAMP, REFUSED_BY_SQL, Headers

log = logging.getLogger(__name__)

SPARK_ERRORS = (Py4JJavaError, PySparkException)

_OF_EXPRESSIONS = (
    "org.apache.spark.SparkRuntimeException",
    "java.lang.ArithmeticException",
    "java.lang.IllegalArgumentException",
    "java.lang.IndexOutOfBoundsException",
    "java.lang.NegativeArraySizeException",
    "java.time.DateTimeException",
    "java.lang.StackOverflowError",
)
"""Spark's own classes of such errors extend these, but some expressions raise the classes of Java.

The stack overflows where a regular expression goes back and forth over a long text.
"""
_FRAMES = 200
"""How many frames of a trace are looked at. That of an overflow has 1024, and each is a question to the JVM."""
_OF_KAFKA = ("org.apache.kafka.", "org.apache.spark.sql.kafka010.")
_KAFKA_ERROR = "org.apache.spark.sql.kafka010.KafkaIllegalStateException"
_TIMESTAMP_OVERFLOW = "overflows when converting to Spark's microsecond-precision TimestampType"
_ERROR_BYTES = 1024
_ALL_REFUSED = 100
"""If a statement refuses so many records and has computed none, the fault is taken to be the statement's."""

_T = TypeVar("_T", pa.Table, dict[int, pa.Table])

Span = tuple[TopicPartition, int, int]
"""A partition, an offset, and the next offset after the last one."""

Offsets = Mapping[TopicPartition, int]

_Run = Callable[[Sequence[Span], bool], pa.Table | dict[int, pa.Table]]


@dataclass(frozen=True)
class Refusal:
    """The reason for which a record becomes a dead letter, and additional headers for it."""

    reason: str
    details: Headers = ()


Refused = Mapping[TopicPartition, Mapping[int, Refusal]]


def refusal_of(error: Exception) -> Refusal | None:
    """Return why Spark refused a record, or None if the error does not come from what a record contains.

    Errors of brokers, processes, memory and cancelled jobs are such others.
    """
    thrown: Any = error._origin if isinstance(error, CapturedException) else getattr(error, "java_exception", None)
    if thrown is None:
        return None
    while (cause := thrown.getCause()) is not None:
        if thrown.getClass().getName() == _KAFKA_ERROR and _TIMESTAMP_OVERFLOW in thrown.getMessage():
            return Refusal(IMPOSSIBLE_TIMESTAMP)
        thrown = cause
    kinds = list(_class_names(thrown))
    if not set(kinds) & set(_OF_EXPRESSIONS) or any(
        str(frame.getClassName()).startswith(_OF_KAFKA) for frame in islice(thrown.getStackTrace(), _FRAMES)
    ):
        return None
    name, message = kinds[0].rpartition(".")[2], thrown.getMessage()
    text = (name if message is None else f"{name}: {message}").encode(errors="replace")[:_ERROR_BYTES]
    return Refusal(REFUSED_BY_SQL, (("tidemark.error", text.decode(errors="ignore").encode()),))


def _class_names(thrown: Any) -> Iterator[str]:
    kind = thrown.getClass()
    while kind is not None:
        yield str(kind.getName())
        kind = kind.getSuperclass()


class RefusedRecords:
    """The records of one reader that Spark refused. Used by one thread at a time."""

    def __init__(self, *, only_decodes: bool = False) -> None:
        """`only_decodes`: the statements only decode values, so they are never at fault, and no dead letter is written."""
        self._only_decodes = only_decodes
        self._known: dict[TopicPartition, dict[int, Refusal]] = {}
        self._computed: set[frozenset[str]] = set()
        """The topics whose statements have computed a record."""

    def read(self, starts: Offsets, ends: Offsets, run: Callable[[Sequence[Span], bool], _T]) -> _T:
        """Return what `run` returns for the records from `starts` up to but excluding `ends`, without those that Spark refuses.

        `run` reads some spans. Its second argument says whether to take only statements that decide each record by its own
        values, because Spark has refused one. Blocks for at least one Spark job, and for many to find a refused record. Raises
        the errors that do not come from a record, and the error of a statement that refuses record after record.
        """
        is_careful = bool(self.between(starts, ends))
        topics = frozenset(place.topic for place in ends)
        while True:
            spans = self.readable(starts, ends)
            try:
                found = run(spans, is_careful)
                if topics not in self._computed and _has_value(found):
                    self._computed.add(topics)
                return found
            except SPARK_ERRORS as error:
                refusal = refusal_of(error)
                if refusal is None or not spans:
                    raise
                if is_careful:
                    log.warning(
                        "Spark refuses a record (%s): looking for it among %d offsets, which are read again in halves",
                        refusal.reason, offsets_of(spans),
                    )  # fmt: skip
                    run([], True)
                    is_good = self._only_decodes or topics in self._computed
                    outcome = "cannot be decoded" if self._only_decodes else "becomes a dead letter"
                    _Search(self, run, error, outcome, has_computed=is_good).go(spans, refusal)
                    if self.readable(starts, ends) == spans:
                        raise
                is_careful = True

    def add(self, place: TopicPartition, offset: int, refusal: Refusal) -> None:
        """Remember that a record is refused."""
        self._known.setdefault(place, {})[offset] = refusal

    def between(self, starts: Offsets, ends: Offsets) -> Refused:
        """Return the known refused records from `starts` up to but excluding `ends`, in the order of offsets."""
        found: dict[TopicPartition, dict[int, Refusal]] = {}
        for place, end in ends.items():
            known = self._known.get(place, {})
            if own := {offset: known[offset] for offset in sorted(known) if starts[place] <= offset < end}:
                found[place] = own
        return found

    def readable(self, starts: Offsets, ends: Offsets) -> list[Span]:
        """Return the spans from `starts` up to but excluding `ends` around the known refused records."""
        refused, spans = self.between(starts, ends), []
        for place in sorted(ends):
            start = starts[place]
            for offset in refused.get(place, ()):
                spans.append((place, start, offset))
                start = offset + 1
            spans.append((place, start, ends[place]))
        return [span for span in spans if span[1] < span[2]]

    def forget_before(self, starts: Offsets) -> None:
        """Forget the records before these offsets. They are found again if they are read again."""
        self._known = {
            place: {offset: refusal for offset, refusal in known.items() if offset >= starts.get(place, 0)}
            for place, known in self._known.items()
        }


class _Search:
    """The search for the records in some spans that Spark refuses; `error` is the one with which it refused all of them.

    `outcome` says in the log what comes of such a record. `has_computed`: the statement is known to compute records.
    """

    def __init__(self, known: RefusedRecords, run: _Run, error: Exception, outcome: str, *, has_computed: bool) -> None:
        self._known = known
        self._run = run
        self._error = error
        self._outcome = outcome
        self._found: list[tuple[TopicPartition, int, Refusal]] = []
        self._has_computed = has_computed
        self._refused_by_sql = 0

    def go(self, spans: Sequence[Span], refusal: Refusal) -> None:
        """Remember the refused records. Raises `error`, and remembers none, if it seems to be the statement's fault."""
        self._halve(spans, refusal)
        for place, offset, of_record in self._found:
            log.warning("%s offset %d %s: %s", place, offset, self._outcome, of_record.reason)
            self._known.add(place, offset, of_record)

    def _halve(self, spans: Sequence[Span], refusal: Refusal) -> None:
        """Find the refused records of spans that were refused as a whole."""
        if offsets_of(spans) == 1:
            (place, offset, _), *_ = spans
            self._found.append((place, offset, refusal))
            self._refused_by_sql += refusal.reason == REFUSED_BY_SQL
            if not self._has_computed and self._refused_by_sql >= _ALL_REFUSED:
                raise self._error
            return
        for half in _halves(spans):
            try:
                self._has_computed |= _has_value(self._run(half, True))
            except SPARK_ERRORS as error:
                of_half = refusal_of(error)
                if of_half is None:
                    raise
                self._halve(half, of_half)


def _has_value(found: pa.Table | Mapping[int, pa.Table]) -> bool:
    """Return whether results contain a record for which expressions were computed.

    Offsets of markers and of compacted records, deletions and records that a filter left out say nothing about them.
    """
    return any(_values_in(table) > 0 for table in (found.values() if isinstance(found, Mapping) else (found,)))


def _values_in(table: pa.Table) -> int:
    """Return the number of rows for which expressions were computed. Some tables do not tell which ones are deletions."""
    if Partial.STATUS not in table.column_names:
        return int(table.num_rows)
    counts = pc.is_in(table.column(Partial.STATUS), pa.array([Status.GOOD, Status.NO_KEY]))
    if Partial.DELETED in table.column_names:
        counts = pc.and_not(counts, pc.fill_null(table.column(Partial.DELETED), False))
    elif Partial.VALUE in table.column_names:
        counts = pc.and_(counts, pc.is_valid(table.column(Partial.VALUE)))
    return int(pc.sum(counts).as_py() or 0)


def offsets_of(spans: Sequence[Span]) -> int:
    """Return the number of offsets in spans."""
    return sum(end - start for _, start, end in spans)


def _halves(spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    first: list[Span] = []
    second: list[Span] = []
    left = offsets_of(spans) // 2
    for place, start, end in spans:
        cut = min(end, start + left)
        left -= cut - start
        if start < cut:
            first.append((place, start, cut))
        if cut < end:
            second.append((place, cut, end))
    return first, second


def with_refused(table: pa.Table, topic: str, refused: Refused) -> pa.Table:
    """Add a bad row to the results of a pipeline for each refused record of its source, whose topic is `topic`."""
    rows = [
        {Partial.PARTITION: place.partition, Partial.STATUS: Status.BAD, Partial.ROWS: 1}
        for place, of_place in refused.items()
        if place.topic == topic
        for _ in of_place
    ]
    return pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)]) if rows else table
