"""The last events of a process: what a reader gets that begins, that continues, and that is slower than the events."""

from __future__ import annotations

import threading

import pytest

from tidemark.events.event import Event, EventKind, state_body
from tidemark.events.feed_sink import FeedSink
from tidemark.queries.event_feed import EventFeed, FeedReader
from tidemark.queries.server_events import LOST, ServerEvent, parse_events
from tidemark.supervision.state import InstanceState


def events(reader: FeedReader) -> list[ServerEvent]:
    part = reader.read()
    return list(parse_events((part or b"").decode().splitlines()))


def feed_of(number: int, kept: int = 10) -> EventFeed:
    feed = EventFeed("5", kept)
    for at in range(1, number + 1):
        feed.add("state", str(at))
    return feed


def test_should_begin_with_the_oldest_event_that_is_kept():
    assert [event.data for event in events(FeedReader(feed_of(3), ""))] == ["1", "2", "3"]
    assert [event.data for event in events(FeedReader(feed_of(25), ""))] == [str(n) for n in range(16, 26)]


@pytest.mark.parametrize(
    ("last", "first"), [("5-2", "3"), ("5-0", "1"), ("4-2", "1"), ("5-9", "1"), ("5-x", "1"), ("-", "1")]
)
def test_should_continue_only_after_an_id_that_it_has_given(last, first):
    assert events(FeedReader(feed_of(3), last))[0].data == first


def test_should_say_how_many_events_a_slow_reader_has_missed():
    feed = feed_of(3)
    reader = FeedReader(feed, "5-1")
    assert [event.id for event in events(reader)] == ["5-2", "5-3"]
    for at in range(4, 20):
        feed.add("state", str(at))
    lost, *rest = events(reader)
    assert (lost.kind, lost.data) == (LOST, '{"events": 6}')
    assert [event.id for event in rest] == [f"5-{n}" for n in range(10, 20)]


def test_should_wake_a_reader_that_waits():
    feed = feed_of(0)
    reader = FeedReader(feed, "")
    assert reader.read() == b""
    found: list[list[ServerEvent]] = []

    def read() -> None:
        while not found or not found[-1]:
            found.append(events(reader))

    thread = threading.Thread(target=read)
    thread.start()
    feed.add("state", "1")
    thread.join(30)
    assert found[-1] == [ServerEvent("state", "1", "5-1")]


def test_should_read_what_it_has_written():
    written = [ServerEvent("change", '{"key": "a:b"}', "0_0:1,0_1:2.1"), ServerEvent("end", "{}")]
    lines = b": nothing new\n\n".join(event.to_bytes() for event in written).decode().splitlines()
    assert list(parse_events(lines)) == written
    assert list(parse_events(lines[:-1])) == written[:1]


def test_should_keep_the_events_of_an_instance_as_they_are_kept_elsewhere():
    feed = EventFeed("5")
    event = Event(EventKind.STATE, "app", "7", 0, 5, state_body(InstanceState.RUNNING, InstanceState.RESTORING))
    FeedSink(feed).publish(event)
    (found,) = events(FeedReader(feed, ""))
    assert (found.kind, Event.from_json(found.data)) == ("state", event)
