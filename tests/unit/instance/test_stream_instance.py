"""Exit codes and last lines of the process of an instance."""

from __future__ import annotations

import logging
import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from spark_jobs import stream_instance

from tidemark.errors import ExitCode


@pytest.fixture(autouse=True)
def _own_signals(monkeypatch):
    """An instance handles signals itself; the process of the tests keeps its own handlers."""
    monkeypatch.setattr(stream_instance, "stop_on_signals", lambda _: None)


def test_should_name_a_file_that_cannot_be_used_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(stream_instance, "_run", lambda *_: (tmp_path / "none").read_text())
    assert stream_instance.main(["--topology", "made"]) == ExitCode.FAILED
    said = (
        f"tidemark: {tmp_path}/none cannot be used (No such file or directory): correct the path or its permissions\n"
    )
    assert capsys.readouterr().err == said


def test_should_end_with_the_traceback_of_an_error_that_names_no_file(monkeypatch):
    def fails(*_):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(stream_instance, "_run", fails)
    with pytest.raises(ConnectionResetError):
        stream_instance.main(["--topology", "made"])


def test_should_not_log_each_request_of_a_client(monkeypatch):
    clients = [logging.getLogger(name) for name in ("httpx", "httpx2")]
    for client in clients:
        monkeypatch.setattr(client, "level", logging.NOTSET)
    monkeypatch.setattr(stream_instance, "_run", lambda *_: ExitCode.OK)
    assert stream_instance.main(["--topology", "made"]) == ExitCode.OK
    assert [client.level for client in clients] == [logging.WARNING] * 2


@pytest.mark.parametrize("code", [None, 0, 3])
def test_should_not_end_as_stopped_on_request_when_code_in_it_calls_sys_exit(monkeypatch, code):
    monkeypatch.setattr(stream_instance, "_run", lambda *_: sys.exit(code))
    with pytest.raises(RuntimeError, match=f"called sys.exit\\({code}\\)"):
        stream_instance.main(["--topology", "made"])


def test_should_not_wait_for_spark_when_it_is_asked_to_stop(monkeypatch):
    monkeypatch.setattr(stream_instance, "_look_for_cycles_less_often", lambda: None)
    stop, ran = threading.Event(), []
    stop.set()
    instance = SimpleNamespace(
        is_awaited=lambda: False, run=lambda source, asked: ran.append(asked.is_set()), close=ran.append
    )
    stream_instance._run_instance(instance, Future(), stop)
    assert ran == [True, None]
