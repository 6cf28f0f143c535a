"""Samples of dead letters: the newest of each reason, shortened, printable, and never in a log."""

from __future__ import annotations

import pytest

from tidemark.commit.dead_letter import OFFSET, PARTITION, REASON, TOPIC
from tidemark.names import TopicPartition
from tidemark.operations.dead_letters.reader import StoredDeadLetter
from tidemark.overview.dead_letter_samples import OF_EACH_REASON, sample_of, samples_of
from tidemark.overview.live import LiveView
from tidemark.store_rows import printable
from tidemark.topology_loader import load


def letter(reason, offset, partition=0, value=b"v", key=b"patient-17", **summary):
    place = TopicPartition("app-dlq", partition)
    return StoredDeadLetter(place, offset, 1000 + offset, key, value, (), {REASON: reason, **summary})


def test_should_take_the_newest_of_each_reason_over_all_partitions_the_most_frequent_first():
    rare = letter("rare", 0)
    frequent = [letter("frequent", offset, partition=offset % 2) for offset in range(OF_EACH_REASON + 2)]
    found = [(one.reason, one.offset) for one in samples_of(map(sample_of, [rare, *frequent]))]
    newest = range(OF_EACH_REASON + 1, 1, -1)
    assert found == [*(("frequent", offset) for offset in newest), ("rare", 0)]


def test_should_say_which_record_it_was():
    known = sample_of(letter("r", 7, **{TOPIC: "in", PARTITION: "3", OFFSET: "12"}))
    assert (known.source, known.source_offset, known.partition, known.offset) == (TopicPartition("in", 3), 12, 0, 7)
    unknown = sample_of(letter("r", 7, key=None, value=None))
    assert (unknown.source, unknown.source_offset, unknown.key, unknown.value) == (None, None, None, None)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", ""),
        (b"abcde", "abcde"),
        (b"abcdef", "abcde…"),
        ("ééééé".encode(), "ééééé"),
        ("😀😀😀😀😀😀".encode(), "😀😀😀😀😀…"),
        (b"a\nb", "a\\nb"),
        (b"\xff", "\\xff"),
        (b"\x00\x1b[31m", "\\x00\\…"),
        ("a\u202eb".encode(), "a\\u20…"),
        (b"x" * 1_000_000, "xxxxx…"),
    ],
)
def test_a_value_should_be_printable_and_short(content, shown):
    assert printable(content, 5) == shown


def test_no_log_of_a_view_should_contain_the_data_of_a_person():
    view = LiveView(load("clicks").plan(), samples=(sample_of(letter("r", 7, value=b"secret diagnosis")),))
    assert view.samples[0].value == "secret diagnosis"
    for text in (repr(view), str(view.samples), f"{view.samples[0]}"):
        assert "secret" not in text
        assert "patient-17" not in text
