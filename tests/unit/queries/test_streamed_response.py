"""What happens to a stream when its client is slow or leaves, and when the process ends, with ASGI calls and no server."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.support.queries import ScriptedChanges, ScriptedParts

from tidemark.queries.errors import StateUnavailable, TooManyRequests
from tidemark.queries.streamed_response import StreamSlots


class Client:
    """Takes messages; from message number `stalls_at` on it takes none until `resume` is set. It leaves when told."""

    def __init__(self, stalls_at: int = 1 << 30) -> None:
        self.stalls_at = stalls_at
        self.taken: list[dict] = []
        self.refused = 0
        self.resume = asyncio.Event()
        self.leave = asyncio.Event()

    async def send(self, message) -> None:
        if len(self.taken) >= self.stalls_at and not self.resume.is_set():
            try:
                await self.resume.wait()
            except asyncio.CancelledError:
                self.refused += 1
                # Whoever waited too long gets the next message only.
                self.resume.set()
                raise
        self.taken.append(message)

    async def receive(self):
        await self.leave.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.taken)

    @property
    def is_complete(self) -> bool:
        return self.taken[-1].get("more_body") is False


def slots(most: int = 1, stall_s: float = 30.0) -> StreamSlots:
    return StreamSlots(most, stall_s, threading.Event())


def parts(*script: bytes) -> tuple[ScriptedChanges, ScriptedParts]:
    made = ScriptedChanges()
    return made, ScriptedParts(made, list(script))


def sent(served: StreamSlots, source, client_of=Client) -> Client:
    async def run() -> Client:
        client = client_of()
        response = await served.respond("text/event-stream", lambda: source)
        await response({"type": "http"}, client.receive, client.send)
        return client

    return asyncio.run(run())


def test_should_send_all_parts_and_release_everything():
    made, source = parts(b"a", b"", b"b")
    served = slots()
    client = sent(served, source)
    assert (client.body, client.is_complete, made.closed) == (b"ab", True, 1)
    # The slot is free again.
    assert sent(served, parts(b"c")[1]).body == b"c"


def test_should_disconnect_a_client_that_does_not_read_and_tell_it_why():
    made, source = parts(b"a", b"b", b"c")
    client = sent(slots(stall_s=0.05), source, lambda: Client(stalls_at=2))
    assert client.refused == 1
    assert client.body.startswith(b"a")
    assert b"event: slow\ndata: " in client.body
    assert b"0.05 s" in client.body
    # Nothing was read after the part that was not taken, and that is not in the middle of the answer either.
    assert source.script == [b"c"]
    assert b"b" not in client.body.split(b"event: slow")[0]
    assert (client.is_complete, made.closed) == (True, 1)


def test_should_end_with_an_event_when_the_process_ends():
    made, source = parts(b"a")
    served = slots()
    served.closing.set()
    client = sent(served, source)
    assert b"event: end" in client.body
    assert (client.is_complete, made.closed) == (True, 1)


def test_should_stop_when_the_client_leaves():
    class Endless(ScriptedParts):
        def read(self) -> bytes:
            return b"x"

    made = ScriptedChanges()

    class Leaving(Client):
        async def send(self, message) -> None:
            await super().send(message)
            if len(self.taken) == 5:
                self.leave.set()

    client = sent(slots(), Endless(made, []), Leaving)
    assert len(client.taken) >= 5
    assert made.closed == 1


def test_should_leave_an_answer_without_its_end_when_it_is_not_complete():
    class Broken(ScriptedParts):
        def read(self) -> bytes:
            raise StateUnavailable("the store was closed", "ask again")

    made = ScriptedChanges()
    client = sent(slots(), Broken(made, []))
    assert not client.is_complete
    assert made.closed == 1


def test_should_limit_the_number_of_streams_and_free_the_slot_of_one_that_does_not_open():
    served = slots(most=1)

    def fails():
        raise StateUnavailable("nobody", "ask again")

    with pytest.raises(StateUnavailable):
        asyncio.run(served.respond("text/event-stream", fails))
    asyncio.run(served.respond("text/event-stream", lambda: parts()[1]))
    with pytest.raises(TooManyRequests, match="already serves 1"):
        asyncio.run(served.respond("text/event-stream", lambda: parts()[1]))
