"""Two tasks' stores, and a repository on each kind of file system."""

from __future__ import annotations

import threading
import uuid

import pytest
from tests.support.savepoints import APP, TASKS, open_store, put

from tidemark.savepoints.repository import SavepointRepository


@pytest.fixture
def stores(tmp_path):
    """Two tasks' stores with two segments of contents each."""
    opened = {task: open_store(tmp_path / "state" / str(task) / "counts") for task in TASKS}
    for number, store in enumerate(opened.values(), 1):
        put(store, number, {1: 500 * number, 2: 300})
    yield opened
    for store in opened.values():
        store.close()


@pytest.fixture(params=["folder", "file", "memory"])
def location(request, tmp_path):
    """A repository's location: a folder, the same as a URL, and a file system that is none of this machine's."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4()}/savepoints"
    folder = tmp_path / "savepoints"
    return f"file://{folder}" if request.param == "file" else str(folder)


@pytest.fixture
def repository(location):
    return SavepointRepository(location, APP)


@pytest.fixture
def local(tmp_path):
    """A repository in a folder, to be damaged."""
    return SavepointRepository(str(tmp_path / "savepoints"), APP)


@pytest.fixture
def stuck(monkeypatch):
    """Copying waits until the event is set."""
    should_continue, real = threading.Event(), SavepointRepository.put_file

    def wait(self, source, tick):
        assert should_continue.wait(120)
        return real(self, source, tick)

    monkeypatch.setattr(SavepointRepository, "put_file", wait)
    yield should_continue
    should_continue.set()
