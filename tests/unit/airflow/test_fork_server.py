"""When the process that runs DAGs in forks of itself must not fork."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from airflow import settings
from tests.support.airflow.fork_server import require_nothing_is_open


@contextmanager
def one_more_thread() -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    yield
    ended.set()
    thread.join()


def test_should_not_fork_beside_a_thread_or_with_a_connection() -> None:
    threads = psutil.Process().num_threads()
    with one_more_thread(), pytest.raises(RuntimeError, match=f"{threads + 1} threads, 0 connections"):
        require_nothing_is_open()
    settings.engine.connect().close()
    with pytest.raises(RuntimeError, match=f"{threads} threads, 1 connections"):
        require_nothing_is_open()
    settings.engine.dispose()
