from __future__ import annotations

import asyncio

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


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def request(writer: OneWriter, path: str, method: str = "POST", kind: str = "http") -> asyncio.Task[None]:
    return asyncio.ensure_future(writer({"type": kind, "method": method, "path": path}, None, None))


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


def test_should_not_wait_for_ever_for_a_request_whose_sender_is_slow():
    async def scenario() -> None:
        server = Server()
        writer = OneWriter(server, longest_wait_s=0.01)
        slow, other = request(writer, "slow"), request(writer, "other")
        while "other" not in server.open:
            await asyncio.sleep(0.001)
        server.open["other"].set()
        await other
        last = request(writer, "last")
        await settled()
        # The one that did not get its turn has not given it back either.
        assert list(server.open) == ["slow"]
        server.open["slow"].set()
        await slow
        await settled()
        server.open["last"].set()
        await last

    asyncio.run(scenario())


def test_should_be_there_on_sqlite_alone():
    assert [each["middleware"] for each in middlewares("sqlite:////any/airflow.db?timeout=30")] == [OneWriter]
    assert middlewares("postgresql://any") == middlewares("") == []
