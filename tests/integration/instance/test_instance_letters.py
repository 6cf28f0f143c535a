"""An instance on a real broker, without Spark, continues after records that cannot be processed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import pytest
from confluent_kafka.admin import NewTopic
from tests.integration.instance.test_instance_ticks import prepared, run
from tests.support.truth.topics import read_all

from tidemark.errors import StateTooLarge
from tidemark.instance.source import SourceBatch
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import committed_offsets
from tidemark.names import TopicPartition
from tidemark.processors import Processor
from tidemark.tasks.update import DeadLetter
from tidemark.topology.builder import Topology
from tidemark.topology.stores import store

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

HERE = "tests.integration.instance.test_instance_letters"
SINK_BYTES = 5_000


class Repeats(Processor):
    """Keeps and forwards its text so many times."""

    def init(self, context):
        self.context, self.kept = context, context.store("beats")

    def process(self, record):
        self.kept.put(record.key, {"text": record.row["text"]})
        self.context.forward(record.key, {"text": record.row["text"] * record.row["times"]})
        if not record.row["times"]:
            raise ValueError("nothing to say")


class Keeps(Processor):
    def init(self, context):
        self.kept = context.store("beats")

    def process(self, record):
        self.kept.put(record.key, {"text": record.row["text"]})


class Notes(Processor):
    """Has an effect outside of the transaction only."""

    noted: ClassVar[list[str]] = []

    def process(self, record):
        self.noted.append(record.row["text"])


@pytest.fixture
def application(settings, admin, unique):
    topology = Topology(unique("letters"))
    stream = topology.stream(unique("in"), schema="id STRING, text STRING, times INT", key="id")
    stream.process(f"{HERE}:Repeats", emits="text STRING", stores=[store("beats", "text STRING")]).to(unique("out"))
    # Smaller than what a producer sends at once, and than some outputs.
    admin.create_topics([NewTopic(unique("out"), 1, 1, config={"max.message.bytes": str(SINK_BYTES)})])[
        unique("out")
    ].result(60)
    return prepared(topology, settings, admin)


def a_batch(place, start, rows, letters=()):
    """A record for each (text, times) from `start` on."""
    count = len(rows)
    columns = {
        "__p": pa.array([0] * count, pa.int32()), "__status": pa.array([0] * count, pa.int32()),
        "__rows": pa.array([1] * count, pa.int64()), "__max_ts": pa.array([1] * count, pa.int64()),
        "__key": pa.array([f"k{n}" for n in range(count)], pa.string()),
        "__record_offset": pa.array(range(start, start + count), pa.int64()), "__deleted": pa.array([False] * count),
        "v.id": pa.array([None] * count, pa.string()), "v.text": pa.array([text for text, _ in rows], pa.string()),
        "v.times": pa.array([times for _, times in rows], pa.int32()),
    }  # fmt: skip
    return SourceBatch(0, {place: start}, {place: start + count + len(letters)}, [pa.table(columns)], letters)


def records(settings, topic):
    """Key, value and headers of what is committed."""
    rows = read_all(settings.bootstrap_servers, [topic])[topic, 0]
    return [(row.key, row.value, dict(row.headers)) for row in rows]


def test_should_continue_after_every_record_that_cannot_be_processed(application, settings):
    place = TopicPartition(application.subtopologies[0].lead.topic, 0)
    (out,) = application.subtopologies[0].sink_topics
    bad = DeadLetter("unparsable", place.topic, 0, 43, b"k", b"{" * 1_200_000, ())
    rows = [("fine", 1), ("refused", 0), ("large", 2_000), *[("many", 100)] * 40]

    def script(number, clock, tasks):
        return a_batch(place, 0, rows, (bad,)) if number == 1 else number > 3 or None

    run(application, settings, script)
    kept = records(settings, out)
    assert [json.loads(value)["text"] for _, value, _ in kept] == ["fine", *["many" * 100] * 40]
    found = records(settings, f"{application.application_id}-dlq")
    letters = {headers["tidemark.offset"]: (value, headers) for _, value, headers in found}
    assert {offset: headers["tidemark.reason"] for offset, (_, headers) in letters.items()} == {
        b"1": b"refused by user code", b"2": b"too large for the sink", b"43": b"unparsable",
    }  # fmt: skip
    assert letters[b"43"][1]["tidemark.value.bytes"] == b"1200000"
    assert letters[b"1"][1]["tidemark.error"] == b"ValueError: nothing to say"
    assert json.loads(letters[b"2"][0])["text"] == "large" * 2_000
    # What the refused record has put is undone; that of the large output is kept.
    changelog = {key for key, _, _ in records(settings, f"{application.application_id}-beats-changelog")}
    assert {b"k0", b"k2"} <= changelog
    assert b"k1" not in changelog
    assert committed_offsets(librdkafka_config(settings), application.application_id, [place], 60)[place].offset == 44


def test_should_end_before_sending_anything_when_the_changelog_would_refuse_a_value(application, settings):
    place = TopicPartition(application.subtopologies[0].lead.topic, 0)
    rows = [("fine", 1), ("s" * 1_200_000, 1)]
    for _ in range(2):
        with pytest.raises(StateTooLarge, match=r"store beats: .*takes 12\d+ bytes.* max.message.bytes=") as raised:
            run(application, settings, lambda number, clock, tasks: a_batch(place, 0, rows))
        assert raised.value.exit_code == 30
    assert records(settings, application.subtopologies[0].sink_topics[0]) == []
    assert committed_offsets(librdkafka_config(settings), application.application_id, [place], 60)[place].offset == 0


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_should_commit_applications_whose_processors_forward_nothing(settings, admin, unique, monkeypatch, guarantee):
    monkeypatch.setattr(Notes, "noted", [])
    topology = Topology(unique("ends"), guarantee=guarantee)
    schema = "id STRING, text STRING, times INT"
    topology.stream(unique("kept"), schema=schema).process(f"{HERE}:Keeps", stores=[store("beats", "text STRING")])
    topology.stream(unique("noted"), schema=schema).process(f"{HERE}:Notes")
    plan = prepared(topology, settings, admin)
    places = [TopicPartition(subtopology.lead.topic, 0) for subtopology in plan.subtopologies]

    def script(number, clock, tasks):
        if number > 2:
            return number > 4 or None
        index = number - 1
        return replace(a_batch(places[index], 0, [("one", 1), ("two", 1)]), subtopology=index)

    run(plan, settings, script)
    found = committed_offsets(librdkafka_config(settings), plan.application_id, places, 60)
    assert [found[place].offset for place in places] == [2, 2]
    kept = records(settings, f"{plan.application_id}-beats-changelog")
    assert [(key, json.loads(value)["text"]) for key, value, _ in kept] == [(b"k0", "one"), (b"k1", "two")]
    assert Notes.noted == ["one", "two"]
