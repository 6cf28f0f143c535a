"""Batches that Spark cannot compute, also when its JVM ends with them."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from spark_jobs.batch_source import _explained

from tidemark.errors import BatchTooLarge, SparkEnded
from tidemark.instance.instance import Instance
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.names import TopicPartition


def spark_that(answer):
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=answer)))


def is_gone():
    raise ConnectionRefusedError(111, "Connection refused")


ALIVE, GONE = spark_that(lambda: 1), spark_that(is_gone)


class UnreadableError(Exception):
    """An error whose text is in a JVM that has ended."""

    def __str__(self):
        raise Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.parametrize(
    ("error", "spark", "kind"),
    [
        (ValueError("no such column"), ALIVE, ValueError),
        (ValueError("java.lang.OutOfMemoryError: Java heap space"), ALIVE, BatchTooLarge),
        (ValueError("org.apache.arrow.memory.OutOfMemoryException: Failure"), ALIVE, BatchTooLarge),
        (ValueError("Failure allocating buffer."), ALIVE, BatchTooLarge),
        (ValueError("Job 0 cancelled because SparkContext was shut down"), ALIVE, SparkEnded),
        (ConnectionRefusedError(111, "Connection refused"), GONE, SparkEnded),
        (UnreadableError(), GONE, SparkEnded),
    ],
)
def test_should_explain_what_a_smaller_batch_may_help_against(error, spark, kind):
    explained = _explained(error, spark)
    assert type(explained) is kind
    assert explained is error or explained.__cause__ is error


def an_instance(*, is_stopped=False, most_records=1_000_000, failure=SparkEnded):
    def fail(_timeout_s):
        raise failure("the JVM has ended, or was too small")

    written = []
    stop = threading.Event()
    if is_stopped:
        stop.set()
    instance = Instance.__new__(Instance)
    instance.attached = SimpleNamespace(source=SimpleNamespace(next=fail))
    instance.size = BatchSize(most_records)
    instance._tasks = {"0_0": SimpleNamespace(sources={TopicPartition("in", 0): 17})}
    instance.run_file = SimpleNamespace(update=lambda entries, *, now: written.append((entries, now)))
    instance._stop = stop
    return instance, written


def test_should_end_with_a_smaller_size_for_the_next_launch_when_the_jvm_has_ended():
    instance, written = an_instance()
    with pytest.raises(SparkEnded):
        instance._next_batch()
    assert written == [({"batch_records": 250_000}, True)]


def test_should_keep_the_size_when_the_jvm_ends_with_a_stop():
    instance, written = an_instance(is_stopped=True)
    with pytest.raises(SparkEnded):
        instance._next_batch()
    assert written == []


@pytest.mark.parametrize("failure", [SparkEnded, BatchTooLarge])
def test_should_say_where_it_reads_when_spark_fails_with_the_smallest_batch(caplog, failure):
    """A task that is out of memory ends the JVM of an executor, but not that of `local[*]`."""
    instance, _ = an_instance(most_records=1000, failure=failure)
    with pytest.raises(failure):
        instance._next_batch()
    assert "look among those from in[0] offset 17 on" in caplog.text
