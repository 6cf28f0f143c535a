"""Exclusive access to an application on a real broker: a member that has stopped is waited for until its session ends."""

from __future__ import annotations

import pytest
from tests.support.counting import CountingApp
from tests.support.group_requests import join_group, remove_from_group

from tidemark.kafka.group import members
from tidemark.names import group_instance_id
from tidemark.restore.fencing import fenced

pytestmark = pytest.mark.broker


def test_should_wait_for_a_stopped_instance_until_its_session_has_ended(settings, admin, unique):
    app = CountingApp(settings, admin, unique("stopped"))
    instance = group_instance_id(app.name, 0)
    join_group(app.settings.bootstrap_servers, app.name, instance, [f"{app.name}-in"], session_ms=60_000)
    said = []

    def wait(line):
        if not said:
            remove_from_group(app.settings.bootstrap_servers, app.name, instance)
        said.append(line)

    with fenced(app.settings, admin, app.name, wait) as held:
        assert held == [app.state]
        assert members(app.settings, admin, app.name) == []
    assert said
    assert all(line.startswith(f"waiting for {instance} at ") for line in said)
