"""Connections to the query server: who sends no request, sends it slowly, or takes nothing does not keep one."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

import psutil
import pytest
from tests.support.queries import ScriptedChanges, counts_host
from tests.support.query_server import served
from tests.support.secured import Authority
from tests.unit.queries.test_query_api import api_of

from tidemark.processes import wait_until
from tidemark.queries import bounded_protocol
from tidemark.queries.part_source import LiveSources
from tidemark.settings import Settings

SETTINGS = Settings(query_requests_per_second=0, query_stall_ms=200)
HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
UNFINISHED = b"POST /v1/stores/n/keys HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"


def connected(opened: ExitStack, url: str) -> socket.socket:
    made = opened.enter_context(socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=60))
    # The kernel of the server must not be able to give it everything at once.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return made


def is_closed(connection: socket.socket) -> bool:
    """Wait for the end of the connection. Raises `TimeoutError` if it does not come."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def open_at(url: str) -> list[object]:
    """The connections that the server has open."""
    port = int(url.rsplit(":", 1)[1])
    found = psutil.Process().net_connections("tcp")
    return [each for each in found if each.laddr.port == port and each.status != psutil.CONN_LISTEN]


def until_answered(connection: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(1 << 16)
        assert part, "the connection was closed before the whole answer"
        answer += part
    return answer


@pytest.mark.parametrize("sent", [[], [b"GET /v1/hea"], [HEALTH, b"\r\n"], [HEALTH, b"GET /v1"], [HEALTH + UNFINISHED]])
def test_should_close_a_connection_on_which_no_whole_request_arrives_in_time(monkeypatch, sent):
    monkeypatch.setattr(bounded_protocol, "_REQUEST_S", 2.0)
    with ExitStack() as opened:
        url = opened.enter_context(served(api_of(counts_host({}), SETTINGS), SETTINGS))
        connection = connected(opened, url)
        for part in sent:
            connection.sendall(part)
            if part == HEALTH:
                assert until_answered(connection).startswith(b"HTTP/1.1 200")
        assert is_closed(connection)


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /",
        b"GET /v1/health HTTP/1.1\r\na: ",
        b"POST /v1/stores/n/keys HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\na: ",
    ],
)
def test_should_close_a_connection_whose_request_has_no_end(begin):
    with ExitStack() as opened:
        url = opened.enter_context(served(api_of(counts_host({}), SETTINGS), SETTINGS))
        connection = connected(opened, url)
        connection.sendall(begin)
        with pytest.raises(ConnectionError):
            for _ in range(64):
                connection.sendall(b"x" * (256 << 10))


def test_should_close_a_connection_whose_headers_have_no_end():
    with ExitStack() as opened:
        url = opened.enter_context(served(api_of(counts_host({}), SETTINGS), SETTINGS))
        connection = connected(opened, url)
        connection.sendall(b"GET /v1/health HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(64):
                connection.sendall(b"a: b\r\n" * (32 << 10))


def test_should_read_a_large_body_in_small_parts():
    keys = json.dumps({"keys": ["k" * 1000] * 5000}).encode()
    with ExitStack() as opened:
        url = opened.enter_context(served(api_of(counts_host({}), SETTINGS), SETTINGS))
        connection = connected(opened, url)
        connection.sendall(
            b"POST /v1/stores/n/keys HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(keys)
        )
        for at in range(0, len(keys), 1000):
            connection.sendall(keys[at : at + 1000])
        assert until_answered(connection).startswith(b"HTTP/1.1 200")


def test_should_close_a_connection_whose_tls_handshake_does_not_end_in_time(monkeypatch, tmp_path):
    monkeypatch.setattr(bounded_protocol, "_REQUEST_S", 2.0)
    pem = str(Authority(tmp_path).signed("server"))
    settings = SETTINGS.model_copy(update={"query_tls_certificate": pem, "query_tls_key": pem})
    with ExitStack() as opened:
        url = opened.enter_context(served(api_of(counts_host({}), settings), settings))
        connection = connected(opened, url)
        # Without a bound of its own, a handshake has a minute.
        connection.settimeout(30)
        assert is_closed(connection)


def test_should_not_have_more_connections_than_its_bound(monkeypatch):
    monkeypatch.setattr(bounded_protocol, "_MOST_CONNECTIONS", 3)
    with ExitStack() as opened:
        url = opened.enter_context(served(api_of(counts_host({}), SETTINGS), SETTINGS))
        held = [connected(opened, url) for _ in range(3)]
        for each in held:
            each.sendall(HEALTH)
            until_answered(each)
        assert is_closed(connected(opened, url))
        held[0].sendall(HEALTH)
        assert until_answered(held[0]).startswith(b"HTTP/1.1 200")


def test_should_disconnect_a_client_that_takes_nothing():
    class Endless(ScriptedChanges):
        def watch(self, *_):
            return self

        keep_alive = b": still here\n\n"

        def read(self) -> bytes:
            return b"data: " + b"x" * (4 << 20) + b"\n\n"

        def last_part(self, kind, why) -> bytes:
            return b"event: slow\n\n"

        def close(self) -> None:
            return

    api = api_of(counts_host({}), SETTINGS, (), LiveSources(Endless(), None))
    with ExitStack() as opened:
        url = opened.enter_context(served(api, SETTINGS))
        connection = connected(opened, url)
        connection.sendall(b"GET /v1/stores/n/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all\r\n\r\n")
        assert connection.recv(1) == b"H"
        # A server that closes a connection keeps it until everything was taken.
        assert wait_until(lambda: open_at(url) == [], 60)
