"""Events into the database of facts, which may be away."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from sqlalchemy import select
from tests.support.events import progress, state_event

from tidemark.database import FactsDatabase
from tidemark.events.database_sink import EventWriter
from tidemark.events.event import Event, EventKind, restore_body
from tidemark.events.table import EVENTS, EventReader
from tidemark.processes import wait_until
from tidemark.settings import Settings

TOLD = [state_event("RUNNING", time_ms=at) for at in range(30)]


@pytest.fixture
def blocked(tmp_path):
    """Settings of a database whose folder cannot be made before the file in its place is removed."""
    (tmp_path / "var").write_text("")
    return Settings.load(var_dir=tmp_path / "var")


def written(settings):
    return list(EventReader(FactsDatabase(settings), "app", 0).new())


def test_should_write_all_events_before_it_is_closed(tmp_path):
    settings = Settings.load(var_dir=tmp_path)
    writer = EventWriter(FactsDatabase(settings))
    for event in TOLD:
        writer.publish(event)
    writer.close(60)
    assert written(settings) == TOLD
    assert writer.unwritten == 0


def test_should_leave_out_batches_of_restores(tmp_path):
    settings = Settings.load(var_dir=tmp_path)
    writer = EventWriter(FactsDatabase(settings))
    for kind in (EventKind.RESTORE_START, EventKind.RESTORE_BATCH, EventKind.RESTORE_END):
        writer.publish(Event(kind, "app", "1", 0, 1, restore_body(progress())))
    writer.close(60)
    assert [event.kind for event in written(settings)] == [EventKind.RESTORE_START, EventKind.RESTORE_END]
    assert writer.unwritten == 0


def test_should_close_at_once_when_the_database_is_away_and_the_queue_is_full(blocked, caplog):
    writer = EventWriter(FactsDatabase(blocked), queued_events=2, retry_s=3600)
    with caplog.at_level(logging.INFO):
        writer.publish(TOLD[0])
        assert wait_until(lambda: "the stream continues" in caplog.text, 60)
        for event in TOLD[1:4]:
            writer.publish(event)
        began_s = time.monotonic()
        writer.close(600)
    assert time.monotonic() - began_s < 300
    assert writer.unwritten == 4


def test_should_write_queued_events_when_the_database_comes_back(blocked, caplog):
    writer = EventWriter(FactsDatabase(blocked), retry_s=0.05)
    with caplog.at_level(logging.INFO):
        for event in TOLD:
            writer.publish(event)
        assert wait_until(lambda: "the stream continues" in caplog.text, 60)
        blocked.var_dir.unlink()
        assert wait_until(lambda: writer.unwritten == 0, 60)
        writer.close(60)
    assert written(blocked) == TOLD
    assert caplog.text.count("does not answer") == 1
    assert "written to the database of facts again" in caplog.text


def test_should_log_one_warning_and_lose_no_time_when_the_database_is_away(blocked, caplog):
    writer = EventWriter(FactsDatabase(blocked), queued_events=10, retry_s=0.02)
    with caplog.at_level(logging.WARNING):
        started = time.monotonic()
        for event in TOLD:
            writer.publish(event)
        assert wait_until(lambda: "does not answer" in caplog.text, 60)
        writer.close(60)
        assert time.monotonic() - started < 30
    assert caplog.text.count("does not answer") == 1
    assert "30 events were not written" in caplog.text


def test_should_not_wait_for_a_hanging_database_when_closing(tmp_path, monkeypatch):
    facts = FactsDatabase(Settings.load(var_dir=tmp_path))
    let_go = threading.Event()
    insert = facts.insert
    monkeypatch.setattr(facts, "insert", lambda *arguments: let_go.wait(60) and insert(*arguments))
    writer = EventWriter(facts, queued_events=2)
    for event in TOLD[:4]:
        writer.publish(event)
    started = time.monotonic()
    writer.close(0.2)
    assert time.monotonic() - started < 30
    assert facts.read(select(EVENTS)) == []
    let_go.set()
