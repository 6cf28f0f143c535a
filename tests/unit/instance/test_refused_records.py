"""The search for the records that Spark refuses, with a statement in plain Python."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from spark_jobs.refused_records import RefusedRecords

from tidemark.names import TopicPartition
from tidemark.tasks.partials import Partial, Status

PLACE = TopicPartition("in", 0)
RECORDS = 400


class _Thrown:
    """The error of an expression, as it is in the JVM."""

    def getCause(self):
        return None

    def getClass(self):
        return self

    def getName(self):
        return "java.lang.ArithmeticException"

    def getSuperclass(self):
        return None

    def getStackTrace(self):
        return []

    def getMessage(self):
        return "overflow"


class _Refused(PySparkException):
    java_exception = _Thrown()


def statement(status_of):
    """A statement that raises where `status_of` gives None for an offset, and gives a row for each other status."""

    def run(spans, _is_careful):
        found = [status_of(offset) for _, start, end in spans for offset in range(start, end)]
        if None in found:
            raise _Refused("refused", "", {})
        rows = [{Partial.STATUS: status, Partial.DELETED: deleted} for status, deleted in filter(None, found)]
        schema = pa.schema([(Partial.STATUS, pa.int32()), (Partial.DELETED, pa.bool_())])
        return {0: pa.Table.from_pylist(rows, schema=schema)}

    return run


MARKER, DELETION, LEFT_OUT = (), (Status.GOOD, True), (Status.FILTERED, None)


@pytest.mark.parametrize("other", [MARKER, DELETION, LEFT_OUT])
@pytest.mark.parametrize("every", [3, 50, 99, 101])
def test_should_take_the_statement_for_wrong_when_it_computed_no_record(other, every):
    refused = RefusedRecords()
    run = statement(lambda offset: other if offset % every == 0 else None)
    with pytest.raises(_Refused):
        refused.read({PLACE: 0}, {PLACE: RECORDS}, run)
    assert refused.between({PLACE: 0}, {PLACE: RECORDS}) == {}


def test_should_not_blame_a_statement_that_has_computed_records_before():
    refused = RefusedRecords()
    run = statement(lambda offset: (Status.GOOD, False) if offset < RECORDS else LEFT_OUT if offset % 2 else None)
    refused.read({PLACE: 0}, {PLACE: RECORDS}, run)
    refused.read({PLACE: RECORDS}, {PLACE: 2 * RECORDS}, run)
    assert len(refused.between({PLACE: 0}, {PLACE: 2 * RECORDS})[PLACE]) == RECORDS // 2


def test_should_never_blame_a_statement_that_only_decodes_and_speak_of_no_dead_letter(caplog):
    """It was analysed when its schema was learnt, and an audit writes no dead letters."""
    refused = RefusedRecords(only_decodes=True)
    refused.read({PLACE: 0}, {PLACE: RECORDS}, statement(lambda _: None))
    assert list(refused.between({PLACE: 0}, {PLACE: RECORDS})[PLACE]) == list(range(RECORDS))
    assert f"{PLACE} offset 7 cannot be decoded: refused by SQL" in caplog.text
    assert "dead letter" not in caplog.text


def test_should_count_records_without_a_key_as_computed():
    refused = RefusedRecords()
    refused.read({PLACE: 0}, {PLACE: RECORDS}, statement(lambda at: (Status.NO_KEY, None) if at % 2 else None))
    assert len(refused.between({PLACE: 0}, {PLACE: RECORDS})[PLACE]) == RECORDS // 2


def test_should_find_many_refused_records_when_the_statement_computes_others():
    refused = RefusedRecords()
    run = statement(lambda offset: (Status.GOOD, False) if offset < RECORDS // 2 else None)
    (table,) = refused.read({PLACE: 0}, {PLACE: RECORDS}, run).values()
    assert table.num_rows == RECORDS // 2
    found = refused.between({PLACE: 0}, {PLACE: RECORDS})
    assert list(found[PLACE]) == list(range(RECORDS // 2, RECORDS))
