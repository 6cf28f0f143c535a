"""The thread of the query server waits for the first request before it starts the server."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading

import pytest

from tidemark.queries.service import wait_for_request

HIGH = 1500


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < HIGH + 100:
        pytest.skip("this machine does not allow so many open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 100), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_should_see_the_first_request_however_many_files_are_open(many_files):
    with (
        socket.create_server(("127.0.0.1", 0)) as low,
        socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD, HIGH)) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        assert listening.fileno() >= HIGH
        assert wait_for_request(listening, threading.Event())


def test_should_stop_to_wait_when_the_service_is_closed():
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        waited: list[bool] = []
        waiting = threading.Thread(target=lambda: waited.append(wait_for_request(listening, stop)))
        waiting.start()
        stop.set()
        waiting.join(30)
    assert waited == [False]
