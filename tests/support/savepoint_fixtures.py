"""Two tasks' stores, a repository on each kind of file system, and a server that is connected to when it is first used."""

from __future__ import annotations

import threading
import uuid

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
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


class Server:
    """A file server whose file system connects when it is made, as that of SFTP does, and has errors of its own."""

    def __init__(self):
        self.location = f"connecting://{uuid.uuid4()}/savepoints"
        self.is_up = True
        self.connections = []
        self.connecting_threads = []

    def close_all(self):
        for connection in self.connections:
            connection.is_open = False

    def file_system(self):
        """The class to be registered. Its files are in memory."""
        server = self

        class SSHException(Exception):
            pass

        class Connecting(MemoryFileSystem):
            protocol = "connecting"

            def __init__(self, **options):
                super().__init__(**options)
                server.connecting_threads.append(threading.current_thread().name)
                if not server.is_up:
                    raise SSHException("Error reading SSH protocol banner")
                self.is_open = True
                server.connections.append(self)

            @classmethod
            def _strip_protocol(cls, path):
                return super()._strip_protocol(path.removeprefix("connecting://"))

            def _check(self):
                if not self.is_open:
                    raise SSHException("Socket is closed")

            def ls(self, path, detail=True, **options):
                self._check()
                return super().ls(path, detail=detail, **options)

            def open(self, path, mode="rb", **options):
                self._check()
                return super().open(path, mode, **options)

        return Connecting


@pytest.fixture
def server():
    made = Server()
    fsspec.register_implementation("connecting", made.file_system(), clobber=True)
    return made


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
