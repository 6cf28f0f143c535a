from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidemark_airflow.one_writer import OneWriter, middlewares


class Server:
    """An application whose requests end when they are told to."""

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Event] = {}

    async def __call__(self, scope, receive, send):
        ends = self.open[scope["path"]] = asyncio.Event()
        await ends.wait()
        del self.open[scope["path"]]


async def whole_request():
    return {"type": "http.request", "body": b"", "more_body": False}


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def request(writer: OneWriter, path: str, method: str = "POST", kind: str = "http") -> asyncio.Task[None]:
    return asyncio.ensure_future(writer({"type": kind, "method": method, "path": path}, whole_request, None))


def test_should_pass_requests_that_write_on_one_after_the_other():
    async def scenario() -> None:
        server = Server()
        writer = OneWriter(server)
        requests = [request(writer, path, method) for path, method in [("a", "POST"), ("b", "PATCH"), ("c", "DELETE")]]
        for path in ("a", "b", "c"):
            await settled()
            assert list(server.open) == [path]
            server.open[path].set()
        await asyncio.gather(*requests)

    asyncio.run(scenario())


@pytest.mark.parametrize(("method", "kind"), [("GET", "http"), ("HEAD", "http"), ("OPTIONS", "http"), ("", "lifespan")])
def test_should_pass_everything_else_on_at_once(method, kind):
    async def scenario() -> None:
        server = Server()
        writer = OneWriter(server)
        requests = [request(writer, "write"), request(writer, "read", method, kind)]
        await settled()
        assert set(server.open) == {"write", "read"}
        for ends in list(server.open.values()):
            ends.set()
        await asyncio.gather(*requests)

    asyncio.run(scenario())


def test_should_pass_the_next_request_on_after_one_that_failed():
    async def fails(scope, receive, send):
        raise ValueError("no")

    async def scenario() -> None:
        writer = OneWriter(fails)
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await request(writer, "a")

    asyncio.run(scenario())


def test_should_let_others_pass_while_a_request_arrives_slowly():
    async def scenario() -> None:
        bodies = []

        async def app(scope, receive, send):
            bodies.append([await receive(), await receive(), await receive()])

        arriving: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        writer = OneWriter(app)
        slow = asyncio.ensure_future(writer({"type": "http", "method": "POST", "path": "slow"}, arriving.get, None))
        first, last = {"body": b"a", "more_body": True}, {"body": b"b", "more_body": False}
        arriving.put_nowait(first)
        await settled()
        await request(writer, "other")
        assert len(bodies) == 1
        gone = {"type": "http.disconnect"}
        for message in (last, gone):
            arriving.put_nowait(message)
        await slow
        assert bodies[1] == [first, last, gone]

    asyncio.run(scenario())


def test_should_not_wait_for_ever_for_a_request_that_does_not_end():
    async def scenario() -> None:
        server = Server()
        impatient = OneWriter(server, longest_wait_s=0.01)
        stuck, other = request(impatient, "stuck"), request(impatient, "other")
        while "other" not in server.open:
            await asyncio.sleep(0.001)
        for path in ("other", "stuck"):
            server.open[path].set()
        await asyncio.gather(stuck, other)
        # The one that did not get its turn has not given it back either.
        await asyncio.wait_for(request_that_ends(impatient, server), 60)

    async def request_that_ends(writer: OneWriter, server: Server) -> None:
        last = request(writer, "last")
        await settled()
        server.open["last"].set()
        await last

    asyncio.run(scenario())


def test_should_be_there_on_sqlite_alone():
    assert [each["middleware"] for each in middlewares("sqlite:////any/airflow.db?timeout=30")] == [OneWriter]
    assert middlewares("postgresql://any") == middlewares("") == []
