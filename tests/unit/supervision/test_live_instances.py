"""Requests of commands to running instances, written by one thread or process and taken by another."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from tidemark.processes import wait_until
from tidemark.supervision.live_instances import Request, request_path, take_request, write_request

REQUESTS = 300


def test_should_take_each_request_once_while_others_are_written(tmp_path):
    """A taker looks again and again, and a request may come between its look and the deletion."""
    path = request_path(tmp_path, "app", 0)
    taken: list[Request] = []
    stop = threading.Event()

    def take() -> None:
        while not stop.is_set():
            asked = take_request(path)
            if asked is not None:
                taken.append(asked)

    taker = threading.Thread(target=take)
    taker.start()
    try:
        path.parent.mkdir()
        asked = [Request(f"savepoint-{number}", "/savepoints") for number in range(REQUESTS)]
        for number, request in enumerate(asked):
            write_request(path, request)
            assert wait_until(lambda number=number: len(taken) > number, 60, every_s=0.0005), f"{request} was lost"
    finally:
        stop.set()
        taker.join(60)
    assert taken == asked
    assert list(path.parent.iterdir()) == []


def test_should_keep_a_request_that_cannot_be_read_now(tmp_path, monkeypatch):
    path = request_path(tmp_path, "app", 0)
    path.parent.mkdir()
    request = Request("savepoint-1", "/savepoints")
    write_request(path, request)

    def too_many_files(path: Path) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", too_many_files)
        with pytest.raises(OSError, match="Too many open files"):
            take_request(path)
    assert take_request(path) == request
    assert list(path.parent.iterdir()) == []


def test_should_take_nothing_from_a_request_that_cannot_be_read(tmp_path):
    path = request_path(tmp_path, "app", 0)
    path.parent.mkdir()
    path.write_text("{}")
    assert take_request(path) is None
    assert list(path.parent.iterdir()) == []
