"""Changes that happen between the start of an instance on another machine and its tasks: it must not run on the old state."""

from __future__ import annotations

import threading

import pytest
from tests.integration.operations.change.test_reset import reset_of
from tests.integration.operations.change.test_upgrade import upgrade_of
from tests.support.changes import ChangingApp, version
from tests.support.counting import NO_PROBE

from tidemark.errors import OutcomeUnknown
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


def elsewhere(app):
    """Return an instance whose folders and holds no command on this machine sees."""
    folders = {name: app.settings.state_dir.with_name(f"elsewhere-{name}") for name in ("state_dir", "var_dir")}
    return make_instance(app.plan, app.settings.model_copy(update=folders), ELSEWHERE, "counting", NO_PROBE)


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
