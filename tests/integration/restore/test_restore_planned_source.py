"""A restore uses the sources of its plan, even if another one has become faster meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath
from typing import ClassVar

import pytest
from tests.integration.restore.test_restore_run import counts_of
from tests.support.counting import NO_PROBE, PARTITIONS, CountingApp

from tidemark.clock import wall_clock_ms
from tidemark.names import TaskId
from tidemark.operations.context import OperationContext
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.savepoint import SavepointCommand
from tidemark.operations.workspace import RestoreState, Workspace, new_id
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.savepoints.copies import SavepointCopies
from tidemark.savepoints.repository import SavepointRepository

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]

TASKS = [TaskId(0, number) for number in range(PARTITIONS)]


class Fetching(SavepointCopies):
    """Remembers what is fetched."""

    fetched: ClassVar[set[str]] = set()

    def fetch(self, copy, task, store, folder):
        self.fetched.add(copy.location)
        super().fetch(copy, task, store, folder)


@pytest.fixture
def app(settings, admin, unique, tmp_path):
    made = CountingApp(settings, admin, unique("counting"))
    made.settings = made.settings.model_copy(update={"savepoint_location": str(tmp_path / "savepoints")})
    made.feed(1000)
    made.run()
    return made


def take(app) -> str:
    """Take a savepoint of the stopped application, and return its id."""
    command = SavepointCommand(app.plan, app.settings, app.admin, TASKS, lambda _copied: None, wall_clock_ms)
    return command.take().manifest.savepoint_id


@pytest.mark.parametrize("is_gone", [False, True])
def test_should_restore_from_the_savepoint_in_the_plan_unless_it_is_gone(app, is_gone, monkeypatch):
    monkeypatch.setattr(Fetching, "fetched", set())
    repository = SavepointRepository(app.settings.savepoint_location, app.name)
    old = take(app)
    app.feed(1000)
    app.run()
    context = OperationContext.of(app.plan, app.settings, [Fetching(repository)], wall_clock_ms)
    plan = make_plan(context.evidence, new_id(), SourceOfState.SAVEPOINT)
    assert {PurePosixPath(store.location).parent.name for store in plan.stores} == {old}
    new = take(app)
    if is_gone:
        shutil.rmtree(Path(app.settings.savepoint_location) / app.name / "savepoints" / old)
    workspace = Workspace(app.settings.state_dir, app.name, plan.restore_id)
    workspace.create(plan)
    said = []
    app.leave_group()
    done = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, said.append).run()
    assert done.state is RestoreState.DONE
    assert {PurePosixPath(location).parent.name for location in Fetching.fetched} == {new if is_gone else old}
    assert len([line for line in said if "can no longer be used" in line]) == (PARTITIONS if is_gone else 0)
    assert counts_of(app) == app.expected
