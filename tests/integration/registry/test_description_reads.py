"""How often an operation reads the description of the state from `<app>-topology`, on a real broker."""

from __future__ import annotations

import pytest
from tests.support.counting import CountingApp

from tidemark.clock import wall_clock_ms
from tidemark.kafka.operator_acls import Command
from tidemark.names import topology_topic
from tidemark.operations.context import OperationContext
from tidemark.operations.topic_changes import plan_changes
from tidemark.registry import reader

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


@pytest.fixture
def app(settings, admin, unique):
    """An application that has committed and is stopped."""
    made = CountingApp(settings, admin, unique("described"))
    made.feed(20)
    made.run()
    return made


@pytest.fixture
def reads(app, monkeypatch):
    """The topics whose last value was read, one entry for each read."""
    topics = []
    last_value = reader._last_value

    def counted(settings, admin, place, partitions):
        topics.append(place.topic)
        return last_value(settings, admin, place, partitions)

    monkeypatch.setattr(reader, "_last_value", counted)
    return topics


@pytest.mark.parametrize("command", [None, Command.RESTORE], ids=["rights not verified", "rights verified"])
def test_should_read_the_description_once_when_an_operation_begins(app, reads, command):
    context = OperationContext.of(app.plan, app.settings, (), wall_clock_ms, command)
    assert context.plan == app.plan
    assert reads == [topology_topic(app.name)]


def test_should_read_the_description_once_when_topic_settings_are_planned(app, admin, reads):
    assert plan_changes(app.plan, app.settings, admin) == []
    assert reads == [topology_topic(app.name)]
