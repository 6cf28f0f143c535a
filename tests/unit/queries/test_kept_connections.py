"""Connections to another process: when they are kept, and what is done with answers that come late, in parts, or not at all."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidemark.queries.kept_connections import KeptConnections, NoAnswer, PeerAnswer

HEAD = b"GET /x HTTP/1.1\r\nAccept: a/b\r\n"


def ok(body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"content-type: application/json", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Scripted:
    """A process whose connections give their answers one after the other: bytes, or None to close. Keeps what it was sent."""

    def __init__(self, *connections: list[Any]) -> None:
        self.connections = list(connections)
        self.opened = 0
        self.requests: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.connections[self.opened]
        self.opened += 1
        for answer in script:
            if isinstance(answer, asyncio.Event):
                await answer.wait()
                continue
            if answer is None:
                break
            try:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            for part in answer if isinstance(answer, list) else [answer]:
                writer.write(part)
                await writer.drain()
        else:
            await reader.read()
        writer.close()


@asynccontextmanager
async def kept(*connections: list[Any]):
    process = Scripted(*connections)
    async with await asyncio.start_server(process.serve, "127.0.0.1", 0) as server:
        process.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        made = KeptConnections()
        try:
            yield process, made
        finally:
            made.close()


async def ask(process: Scripted, made: KeptConnections, answer_s: float = 60.0) -> PeerAnswer:
    return await made.send(process.url, HEAD, b"", 60.0, answer_s)


def test_should_ask_again_on_the_same_connection():
    async def scenario():
        async with kept([ok(b"1"), [b"HTTP/1.1 503 No\r\nContent-Le", b"ngth: 2\r\n\r\n", b"a", b"b"]]) as (
            process,
            made,
        ):
            of_json = {"content-type": "application/json", "content-length": "1"}
            assert await ask(process, made) == PeerAnswer(200, of_json, b"1")
            assert await ask(process, made) == PeerAnswer(503, {"content-length": "2"}, b"ab")
            assert process.opened == 1
            assert process.requests == [HEAD + f"Host: {process.url.removeprefix('http://')}\r\n\r\n".encode()] * 2

    asyncio.run(scenario())


def test_should_ask_several_at_once_on_connections_of_their_own():
    async def scenario():
        is_asked = asyncio.Event()
        async with kept([is_asked, ok(b"1"), ok(b"3")], [ok(b"2")]) as (process, made):
            first = asyncio.create_task(ask(process, made))
            while process.opened < 1:
                await asyncio.sleep(0)
            assert (await ask(process, made)).body == b"2"
            is_asked.set()
            assert (await first).body == b"1"
            assert (await ask(process, made)).body == b"3"
            assert process.opened == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("end", [[None], [ok(b"1", b"connection: close"), None]])
def test_should_open_a_new_connection_when_the_old_one_was_closed(end):
    async def scenario():
        # The other process closes the connection after its answer, or when the next request comes.
        before = [] if len(end) == 2 else [ok(b"1")]
        async with kept([*before, *end], [ok(b"2")]) as (process, made):
            assert (await ask(process, made)).body == b"1"
            assert (await ask(process, made)).body == b"2"
            assert process.opened == 2

    asyncio.run(scenario())


def test_should_read_a_body_of_unknown_length():
    async def scenario():
        chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        async with kept([chunked, ok(b"2")]) as (process, made):
            assert [(await ask(process, made)).body for _ in range(2)] == [b"abc", b"2"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab"], "closed the connection"),
        ([b"no HTTP at all\r\n\r\n"], "HttpParser"),
        ([], "closed the connection|ConnectionResetError"),
    ],
)
def test_should_say_why_there_is_no_answer(answer, says):
    async def scenario():
        async with kept([*answer, None], [ok(b"2")]) as (process, made):
            with pytest.raises(NoAnswer, match=says):
                await ask(process, made)
            assert (await ask(process, made)).body == b"2"

    asyncio.run(scenario())


def test_should_not_take_a_late_answer_for_the_next_one():
    async def scenario():
        is_late = asyncio.Event()
        async with kept([is_late, ok(b"late")], [ok(b"next")]) as (process, made):
            with pytest.raises(NoAnswer, match="too long"):
                await ask(process, made, answer_s=0.05)
            is_late.set()
            assert (await ask(process, made)).body == b"next"

    asyncio.run(scenario())


def test_should_not_use_a_connection_on_which_something_came_unasked():
    async def scenario():
        async with kept([ok(b"1") + b"HTTP/1.1 200 OK\r\n"], [ok(b"2")]) as (process, made):
            assert [(await ask(process, made)).body for _ in range(2)] == [b"1", b"2"]

    asyncio.run(scenario())


def test_should_close_the_connection_of_a_request_that_was_given_up():
    async def scenario():
        never = asyncio.Event()
        async with kept([never], [ok(b"2")]) as (process, made):
            given_up = asyncio.create_task(ask(process, made))
            while process.opened < 1:
                await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert (await ask(process, made)).body == b"2"
            never.set()

    asyncio.run(scenario())


def test_should_not_use_the_connections_of_an_event_loop_that_has_ended():
    made = KeptConnections()

    async def scenario():
        process = Scripted([ok(b"1")], [ok(b"2")])
        async with await asyncio.start_server(process.serve, "127.0.0.1", 0) as server:
            process.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return (await ask(process, made)).body

    assert [asyncio.run(scenario()) for _ in range(2)] == [b"1", b"1"]


def test_should_say_that_nobody_listens():
    with pytest.raises(NoAnswer, match="ConnectionRefusedError"):
        asyncio.run(KeptConnections().send("http://127.0.0.1:1", HEAD, b"", 5.0, 5.0))
