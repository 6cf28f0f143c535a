"""A standby that runs while the application is rescaled, reset and upgraded by the commands, and then helps an instance."""

from __future__ import annotations

import logging
import shutil
from types import SimpleNamespace

import pytest
from tests.integration.operations.change.test_rescale import YES, RescaledApp, rescale_of
from tests.integration.operations.change.test_reset import reset_of
from tests.integration.operations.change.test_upgrade import RENAMED, renamed, upgrade_of
from tests.integration.standby.test_standby_description import said, standing_by
from tests.support.changes import ChangingApp
from tests.support.counting import PARTITIONS

from tidemark.errors import StandbyOutdated
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.processes import wait_until
from tidemark.registry.reader import resolved_plan
from tidemark.standby.copies import StandbyCopies
from tidemark.tasks.task import changelog_of

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480), pytest.mark.usefixtures("patient")]


def followed(app):
    """The application as `standing_by` wants it."""
    return SimpleNamespace(plan=app.plan, settings=app.settings, id=app.name)


def is_level(app, tasks, number=0):
    """Whether the standby follows these tasks and the present changelogs, and has read all that is committed."""
    (spec,) = resolved_plan(app.plan, app.settings, app.admin).stores
    shown = said(followed(app), number)
    if shown.get("changelog_generations") != {spec.name: spec.generation} or shown["useful"] is not True:
        return False
    if set(shown["partitions"]) != {str(task) for task in tasks}:
        return False
    places = {task: TopicPartition(changelog_of(app.name, spec), task.partition) for task in tasks}
    ends = EndOffsets(app.admin, 60).of(list(places.values()))
    found = StandbyCopies(app.settings.state_dir, app.name).find(tasks)
    return all(
        [copy.checkpoint.changelog_offset for copy in found[task].get(spec.name, ())] == [ends[places[task]]]
        for task in tasks
    )


def await_level(app, tasks, ended, number=0):
    assert wait_until(lambda: ended or is_level(app, tasks, number), 90), said(followed(app), number)
    assert ended == []


def run_from_the_copies(app, tasks, caplog):
    """Lose the instance's folder, and start it again beside the standby: it must take each copy over."""
    shutil.rmtree(app.settings.state_dir / "0")
    caplog.clear()
    app.run()
    given = {str(task) for task in tasks if f"handed over: store={task}/" in caplog.text}
    assert given == {str(task) for task in tasks}


def test_should_follow_a_rescale_to_more_and_to_fewer_tasks(settings, admin, unique, caplog):
    caplog.set_level(logging.INFO)
    app = RescaledApp(settings, admin, unique("rescaled"))
    app.feed(400)
    app.run()
    with standing_by(followed(app)) as ended:
        await_level(app, [TaskId(0, n) for n in range(4)], ended)
        for number in (6, 3):
            assert rescale_of(app, number).run(YES)
            app.feed(100)
            app.run()
            tasks = [TaskId(0, n) for n in range(number)]
            await_level(app, tasks, ended)
            copies = app.settings.state_dir / "standby-0" / app.name
            assert sorted(path.name for path in copies.glob("0_*")) == [str(task) for task in tasks]
            run_from_the_copies(app, tasks, caplog)
            assert app.counts() == app.expected
    assert ended == []


@pytest.mark.parametrize("state", list(StateAfter))
def test_should_follow_a_reset(settings, admin, unique, caplog, state):
    caplog.set_level(logging.INFO)
    app = ChangingApp(settings, admin, unique("reset"))
    app.feed(400)
    app.run()
    tasks = [TaskId(0, n) for n in range(PARTITIONS)]
    with standing_by(followed(app)) as ended:
        await_level(app, tasks, ended)
        before = app.counts()
        assert reset_of(app, ResetTo.EARLIEST, state).run(YES)
        app.feed(100)
        app.run()
        await_level(app, tasks, ended)
        run_from_the_copies(app, tasks, caplog)
        again = before if state is StateAfter.KEEP else {}
        assert app.counts() == {key: n + again.get(key, 0) for key, n in app.expected.items()}
    assert ended == []


def test_should_be_followed_by_a_standby_of_the_next_version_when_the_application_is_upgraded(
    settings, admin, unique, caplog
):
    caplog.set_level(logging.INFO)
    app = ChangingApp(settings, admin, unique("upgraded"))
    app.feed(400)
    app.run()
    tasks = [TaskId(0, n) for n in range(PARTITIONS)]
    with standing_by(followed(app)) as ended:
        await_level(app, tasks, ended)
        app.become(renamed(app))
        with standing_by(followed(app), number=1) as next_ended:
            assert upgrade_of(app, **RENAMED).run(YES)
            assert wait_until(lambda: ended, 60)
            app.feed(100)
            app.run()
            await_level(app, tasks, next_ended, number=1)
            run_from_the_copies(app, tasks, caplog)
            assert {key: row["n"] for key, row in app.last_outputs().items()} == app.expected
        assert next_ended == []
    (error,) = ended
    assert isinstance(error, StandbyOutdated)
