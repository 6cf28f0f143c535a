"""Changes that happen between the start of an instance on another machine and its tasks: it must not run on the old state.

And the reverse: an instance runs on another machine, or a topic is deleted, between the plan of a change and its commit.
"""

from __future__ import annotations

import threading

import pytest
from tests.integration.operations.change.test_rescale import rescale_of
from tests.integration.operations.change.test_reset import reset_of
from tests.integration.operations.change.test_upgrade import description, own_topics, upgrade_of
from tests.integration.operations.rewind.test_rewind import rewind_of
from tests.support.changes import ChangingApp, version
from tests.support.counting import NO_PROBE, PARTITIONS, committed

from tidemark.clock import wall_clock_ms
from tidemark.errors import OutcomeUnknown, PreflightFailed
from tidemark.instance.assembly import make_instance
from tidemark.kafka.topic_config import changelog_policy
from tidemark.kafka.topics import TopicSpec, create_topics
from tidemark.names import commits_topic
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]

YES = lambda _plan: True  # noqa: E731
ELSEWHERE = 3


@pytest.fixture
def app(settings, admin, unique):
    """Create an application that has counted 1000 records of 200 keys and is stopped."""
    made = ChangingApp(settings, admin, unique("meanwhile"))
    made.feed(1000)
    made.run()
    return made


def other_machine(app):
    """Return the settings of a machine whose folders and holds no command on this one sees."""
    folders = {name: app.settings.state_dir.with_name(f"elsewhere-{name}") for name in ("state_dir", "var_dir")}
    return app.settings.model_copy(update=folders)


def elsewhere(app):
    """Return an instance on the other machine."""
    return make_instance(app.plan, other_machine(app), ELSEWHERE, "counting", NO_PROBE)


def upgraded(app):
    app.become(version(app.name, "2", "total", n="count(*)"))
    assert upgrade_of(app, renames=["n=total"]).run(YES)


def emptied(app):
    assert reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY).run(YES)


@pytest.mark.parametrize("change", [upgraded, emptied])
def test_should_start_again_when_the_state_was_changed_before_it_joined_the_group(app, change):
    instance, stop = elsewhere(app), threading.Event()
    change(app)
    app.feed(100)

    with pytest.raises(
        OutcomeUnknown, match=r"the application was changed meanwhile \(.*\): the instance starts again"
    ):
        instance.run(app.make_source(instance, stop), stop)
    instance.close(None)
    app.run(number=ELSEWHERE)

    assert {key: row["n"] for key, row in app.last_outputs().items()} == dict(app.expected)


@pytest.mark.parametrize("command", ["reset", "rewind"])
def test_should_change_nothing_when_an_instance_ran_elsewhere_after_the_plan_was_made(app, command):
    at_ms = wall_clock_ms()
    app.feed(500)
    app.run()
    seen = []

    def approve(_plan):
        app.feed(100)
        app.run(settings=other_machine(app), number=ELSEWHERE)
        app.leave_group()
        seen.append((description(app), committed(app), app.last_records()))
        return True

    with pytest.raises(PreflightFailed, match=rf"ran in the meantime; nothing was changed: .* then {command} again"):
        if command == "reset":
            reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY).run(approve)
        else:
            rewind_of(app).run(at_ms, approve)

    assert seen == [(description(app), committed(app), app.last_records())]
    app.feed(100)
    app.run(number=ELSEWHERE)
    assert {key: row["n"] for key, row in app.last_outputs().items()} == dict(app.expected)


def kept_by_upgrade(app):
    app.become(version(app.name, "2", "n", n="count(*)"))
    return upgrade_of(app), f"{app.name}-n-changelog"


def kept_by_rescale(app):
    return rescale_of(app, 3), commits_topic(app.name)


def kept_by_reset(app):
    app.feed(100)
    return reset_of(app, ResetTo.LATEST, StateAfter.KEEP), f"{app.name}-n-changelog"


def source_of_reset(app):
    app.feed(100)
    return reset_of(app, ResetTo.LATEST, StateAfter.EMPTY), f"{app.name}-in"


@pytest.mark.parametrize("change", [kept_by_upgrade, kept_by_rescale, kept_by_reset])
def test_should_not_create_a_topic_again_that_was_deleted_after_the_plan_was_made(app, change):
    made, topic = change(app)
    before = own_topics(app)

    def approve(_plan):
        app.admin.delete_topics([topic])[topic].result(60)
        assert wait_until(lambda: topic not in own_topics(app), 60)
        return True

    with pytest.raises(PreflightFailed, match=rf"topic {topic} was deleted in the meantime: .*; nothing was changed"):
        made.run(approve)

    assert wait_until(lambda: own_topics(app) == before - {topic}, 60), own_topics(app) ^ before


@pytest.mark.parametrize("change", [kept_by_upgrade, kept_by_reset, source_of_reset])
def test_should_not_accept_a_topic_that_was_created_again_after_the_plan_was_made(app, change):
    made, topic = change(app)
    before = (description(app), app.last_records())

    def approve(_plan):
        app.admin.delete_topics([topic])[topic].result(60)
        assert wait_until(lambda: topic not in own_topics(app), 60)
        config = changelog_policy(app.plan.stores[0]).config() if topic.endswith("-changelog") else {}
        create_topics(app.admin, [TopicSpec(topic, PARTITIONS, config)], app.settings)
        return True

    with pytest.raises(PreflightFailed, match=rf"{topic} was deleted and created again .*; nothing was changed"):
        made.run(approve)

    assert (description(app), app.last_records()) == before
