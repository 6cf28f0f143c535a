"""Announcements of processes that answer queries, on a real broker: two of one name, and one that stops late."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.queries import ALL_TASKS, queried_plan
from tests.support.truth.topics import read_all

from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import create_topics, endpoints_spec
from tidemark.names import endpoints_topic
from tidemark.processes import wait_until
from tidemark.queries.endpoints import Endpoint, Endpoints
from tidemark.queries.hosts import CopyState

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


@pytest.fixture
def announced(settings, unique):
    """`announced(holder, url)` starts a process; it gives its announcements, and what it holds."""
    plan, client = queried_plan(unique("endpoints")), librdkafka_config(settings)
    with ExitStack() as opened:

        def start(holder, url):
            held = dict.fromkeys(ALL_TASKS, CopyState.ACTIVE)

            def own() -> Endpoint:
                return Endpoint(holder, url, dict(held), launch=url)

            def create():
                create_topics(AdminClient(client), [endpoints_spec(plan)], settings)

            made = Endpoints(plan.application_id, client, own, create)
            made.start()
            opened.callback(made.close)
            return made, held

        start.topic = endpoints_topic(plan.application_id)
        yield start


def written(settings, topic) -> list[str | None]:
    """The addresses in the records of the name 0, without repetitions; None for a tombstone."""
    rows = read_all(settings.bootstrap_servers, [topic])
    values = [row.value for found in rows.values() for row in found if row.key == b"0"]
    urls = [None if value is None else Endpoint.from_bytes("0", value).url for value in values]
    return [url for url, _ in itertools.groupby(urls)]


def known_to(endpoints) -> list[str]:
    return [each.url for each in endpoints.others()]


def test_should_stay_known_when_an_earlier_process_of_its_name_stops_late(announced, settings):
    other, _ = announced("1", "http://c")
    old, held_by_old = announced("0", "http://a")
    assert wait_until(lambda: known_to(other) == ["http://a"], 60)
    new, _ = announced("0", "http://b")
    assert wait_until(lambda: known_to(other) == ["http://b"], 60)
    # The first one notices that it has lost its tasks, and ends.
    held_by_old.clear()
    old.close()

    assert wait_until(lambda: written(settings, announced.topic)[-1] == "http://b", 60)
    assert wait_until(lambda: known_to(other) == ["http://b"], 60)
    new.close()
    assert wait_until(lambda: known_to(other) == [], 60)


def test_should_announce_itself_again_when_its_name_was_withdrawn(announced, settings):
    other, _ = announced("1", "http://c")
    new, _ = announced("0", "http://b")
    assert wait_until(lambda: known_to(other) == ["http://b"], 60)
    new._send("0", None)
    assert wait_until(lambda: written(settings, announced.topic) == ["http://b", None, "http://b"], 60)
    assert wait_until(lambda: known_to(other) == ["http://b"], 60)


def test_should_announce_itself_again_when_a_newer_process_of_its_name_does_not_stay(announced, settings, monkeypatch):
    """The newer process may be killed before it gets the tasks, which the older one still holds."""
    monkeypatch.setattr("tidemark.queries.endpoints._REPLACED_S", 1.0)
    announced("0", "http://a")
    other, _ = announced("1", "http://c")
    assert wait_until(lambda: known_to(other) == ["http://a"], 60)
    assert wait_until(lambda: written(settings, announced.topic) == ["http://a"], 60)
    newer, _ = announced("0", "http://b")
    assert wait_until(lambda: "http://b" in written(settings, announced.topic), 60)
    newer._stop.set()
    assert wait_until(lambda: written(settings, announced.topic)[-1] == "http://a", 60)
