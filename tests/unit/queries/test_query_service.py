"""The thread of the query server waits for the first request before it starts the server."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.support.queries import queried_plan

from tidemark.queries import api, service
from tidemark.queries.service import QueryService, _Running, announced_url, listening_socket, wait_for_request
from tidemark.settings import Settings
from tidemark.supervision.run_file import QUERY_ERROR, QUERY_URL

HIGH = 1500
MOST_MS = 2**31 - 1


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


@pytest.mark.parametrize(
    ("host", "advertised", "announced"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("::1", "", "[::1]"),
        ("0.0.0.0", "", socket.gethostname()),
        ("::", "", socket.gethostname()),
        ("", "", socket.gethostname()),
        ("0.0.0.0", "host-b", "host-b"),
    ],
)
def test_should_announce_an_address_at_which_others_can_reach_it(host, advertised, announced):
    settings = Settings(query_host=host, query_advertised_host=advertised)
    assert announced_url(settings, 8080) == f"http://{announced}:8080"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "0.0.0.0",
        pytest.param(
            "::", marks=pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
        ),
        "",
    ],
)
def test_should_listen_at_the_address_that_it_announces(host):
    with listening_socket(host, 0, 1000) as listening:
        announced = urlsplit(announced_url(Settings(query_host=host), listening.getsockname()[1]))
        with (
            socket.create_connection((announced.hostname, announced.port), timeout=30) as client,
            listening.accept()[0],
        ):
            assert client.getpeername()[1] == announced.port


@pytest.mark.parametrize(
    ("stall_ms", "kept_ms"),
    [(10_000, 30_000), (MOST_MS // 3, MOST_MS - 1), (MOST_MS // 3 + 1, MOST_MS), (2**62, MOST_MS)],
)
def test_should_listen_however_long_a_client_may_take_nothing(stall_ms, kept_ms):
    with listening_socket("127.0.0.1", 0, stall_ms) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == kept_ms


def test_should_stop_to_wait_when_the_service_is_closed():
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        waited: list[bool] = []
        waiting = threading.Thread(target=lambda: waited.append(wait_for_request(listening, stop)))
        waiting.start()
        stop.set()
        waiting.join(30)
    assert waited == [False]


def serve(monkeypatch, made, *, is_stopping=False):
    """Serve with a server that `made` gives; the socket, how often the announcement was withdrawn, and the run file."""
    withdrawn, written = [], {}
    running = _Running.__new__(_Running)
    running._socket = socket.create_server(("127.0.0.1", 0))
    running._stopping = threading.Event()
    running._server, running._is_withdrawn = None, False
    running._endpoints = SimpleNamespace(close=lambda: withdrawn.append(True))
    running._run_file = SimpleNamespace(update=lambda entries, *, now: written.update(entries))
    running._peers = SimpleNamespace(close=lambda: None)
    running._thread = SimpleNamespace(join=lambda _timeout_s: None)
    if is_stopping:
        running._stopping.set()
    monkeypatch.setattr(api, "make_api", lambda *_: None)
    monkeypatch.setattr(service, "wait_for_request", lambda *_: not is_stopping)
    monkeypatch.setattr(service, "make_server", lambda *_: made())
    running._serve(None, None, None, None, "1", None)
    return running, withdrawn, written


def no_certificate():
    raise FileNotFoundError("no certificate")


def ends(code):
    raise SystemExit(code)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (no_certificate, "FileNotFoundError: no certificate"),
        (lambda: SimpleNamespace(run=lambda sockets: ends(3)), "SystemExit: 3"),
        (lambda: SimpleNamespace(run=lambda sockets: None), "it has ended"),
    ],
)
def test_should_let_nobody_ask_a_server_that_has_failed(monkeypatch, made, reason):
    running, withdrawn, written = serve(monkeypatch, made)
    assert running._socket.fileno() == -1
    assert written[QUERY_URL] is None
    assert f"has failed ({reason}): queries are not answered until" in written[QUERY_ERROR]
    running.close()
    assert withdrawn == [True]


def test_should_record_no_failure_of_a_server_that_is_closed(monkeypatch):
    running, withdrawn, written = serve(monkeypatch, no_certificate, is_stopping=True)
    assert (withdrawn, written) == ([], {})
    running.close()
    assert withdrawn == [True]


@pytest.mark.parametrize(
    "failure", [RuntimeError("can't start new thread"), KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))]
)
def test_should_go_on_without_queries_where_no_thread_can_be_started(monkeypatch, tmp_path, failure):
    def refuse(*_):
        raise failure

    opened = []

    def listening(*arguments):
        opened.append(listening_socket(*arguments))
        return opened[0]

    monkeypatch.setattr(service, "listening_socket", listening)
    monkeypatch.setattr(service, "Endpoints", refuse)
    written = {}
    run_file = SimpleNamespace(update=lambda entries, *, now: written.update(entries))
    queries = QueryService(queried_plan(), Settings(var_dir=tmp_path, query_port=0), (), None, None, {}, run_file)
    queries.start()
    assert written[QUERY_URL] is None
    assert written[QUERY_ERROR].startswith("queries are not answered at 127.0.0.1:0: ")
    assert opened[0].fileno() == -1
    queries.close()
