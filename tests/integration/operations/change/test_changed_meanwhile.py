"""Changes that happen between the start of an instance on another machine and its tasks: it must not run on the old state.

And the reverse: an instance that runs on another machine between the plan of a change and its commit.
"""

from __future__ import annotations

import threading

import pytest
from tests.integration.operations.change.test_reset import reset_of
from tests.integration.operations.change.test_upgrade import description, upgrade_of
from tests.integration.operations.rewind.test_rewind import rewind_of
from tests.support.changes import ChangingApp, version
from tests.support.counting import NO_PROBE, committed

from tidemark.clock import wall_clock_ms
from tidemark.errors import OutcomeUnknown, PreflightFailed
from tidemark.instance.assembly import make_instance
from tidemark.operations.change.reset_target import ResetTo, StateAfter

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
