"""The place of the other copy of an instance, as the broker reports it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tidemark.names import group_instance_id
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey
from tidemark_airflow.whereabouts import where_is_it

pytestmark = pytest.mark.broker


def test_should_name_client_and_host_of_the_member(
    settings: Settings, unique: Callable[[str], str], create_topic: Callable[..., str], tmp_path: Path
) -> None:
    app = unique("app")
    files = InstanceFiles(tmp_path, InstanceKey(app, 1))
    member = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": app,
            "group.instance.id": group_instance_id(app, 1),
            "client.id": "the-other-copy",
        }
    )
    try:
        member.subscribe([create_topic(unique("topic"))])
        assert wait_until(lambda: member.poll(0.2) is not None or bool(member.assignment()), 60)
        found = where_is_it(settings, files)
        assert found.is_member
        assert "the-other-copy on /127.0.0.1" in found.said
        other = where_is_it(settings, InstanceFiles(tmp_path, InstanceKey(app, 7)))
        assert other.is_member is False
        assert f"no member {app}-7" in other.said
    finally:
        member.close()


def test_should_report_that_the_place_is_unknown_when_the_broker_is_away(tmp_path: Path) -> None:
    settings = Settings.load(bootstrap_servers="127.0.0.1:1", broker_timeout_ms=500)
    unknown = where_is_it(settings, InstanceFiles(tmp_path, InstanceKey("app", 0)))
    assert unknown.is_member is None
    assert "did not describe the group" in unknown.said
