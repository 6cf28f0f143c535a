"""Records of a sink: windowed keys have the bytes of Kafka Streams' own serializers."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tidemark.kafka.partitioner import partitions_of
from tidemark.tasks.operators.sink import plain_keys, records_of
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Column, RowSink, Sink, WindowedKey

COLUMNS = (
    Column("id", "STRING"),
    Column("window_start", "BIGINT"),
    Column("window_end", "BIGINT"),
    Column("n", "BIGINT"),
)
START, END, SESSION_END = 1_700_000_040_000, 1_700_000_100_000, 1_700_000_040_123
# What TimeWindowedSerializer and SessionWindowedSerializer of kafka-streams 4.3.1 write for these keys and windows.
WRITTEN = [
    (WindowedKey.TIME, "p1", END, "70310000018bcfe60440"),
    (WindowedKey.TIME, "é", END, "c3a90000018bcfe60440"),
    (WindowedKey.SESSION, "p1", SESSION_END, "70310000018bcfe604bb0000018bcfe60440"),
    (WindowedKey.SESSION, "é", SESSION_END, "c3a90000018bcfe604bb0000018bcfe60440"),
]


def a_sink(windowed_key):
    return RowSink("SINK", ("in",), COLUMNS, (), Sink("SINK", "out", windowed_key=windowed_key))


def rows(key, end, *, deleted=False):
    values = [[key], [START], [end], [None if deleted else 3]]
    return pa.table([[key], [end], [0], [deleted], *values], rows_schema(COLUMNS))


@pytest.mark.parametrize(("kind", "key", "end", "written"), WRITTEN)
def test_should_write_the_window_into_the_key_as_kafka_streams_does(kind, key, end, written):
    (found,) = records_of(a_sink(kind), rows(key, end))
    assert (found["key"].hex(), found["timestamp"]) == (written, end)
    assert json.loads(found["value"]) == {"id": key, "window_start": START, "window_end": end, "n": 3}


@pytest.mark.parametrize(("kind", "key", "end", "written"), WRITTEN)
def test_should_name_the_deleted_window_in_the_key_of_a_tombstone(kind, key, end, written):
    gone = {"key": bytes.fromhex(written), "value": None, "timestamp": end}
    assert records_of(a_sink(kind), rows(key, end, deleted=True)) == [gone]


def test_should_keep_a_plain_key_unless_windowed_keys_are_requested():
    assert records_of(a_sink(None), rows("p1", END))[0]["key"] == b"p1"


def test_should_write_a_row_without_a_key():
    assert [record["key"] for record in records_of(a_sink(None), rows(None, END))] == [None]


def test_should_place_a_windowed_key_where_kafka_streams_windowed_partitioner_does():
    keys = [bytes.fromhex("70310000018bcfe60440"), bytes.fromhex("c3a90000018bcfe60440")]
    keys.append(bytes.fromhex("61206c6f6e676572206b65790000018bcfe60440"))
    plain = plain_keys(Sink("SINK", "out", windowed_key=WindowedKey.TIME), keys)
    # WindowedStreamPartitioner's answers for seven partitions.
    assert partitions_of(plain, 7).tolist() == [2, 4, 5]
    session = bytes.fromhex("70310000018bcfe604bb0000018bcfe60440")
    assert plain_keys(Sink("SINK", "out", windowed_key=WindowedKey.SESSION), [session]) == [b"p1"]
    assert plain_keys(Sink("SINK", "out"), [session]) == [session]
