"""A TCP proxy before a broker: it delays, cuts, refuses, slows down, and holds one EndTxn back.

Clients reach the broker by the proxy alone where the broker advertises the proxy's port (`proxied`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tidemark.devstack.broker_config import Node
from tidemark.devstack.ports import LOOPBACK

PRODUCE, ADD_PARTITIONS, END_TXN, OFFSET_COMMIT = 0, 24, 26, 28
"""Numbers of requests of a transaction: Produce, AddPartitionsToTxn, EndTxn, TxnOffsetCommit."""
_LOOK_EVERY_S = 0.1
_NO_ERROR = b"\0\0"


def proxied(node: Node, listens: int, advertises: int) -> dict[str, str]:
    """Overrides for a broker with one more listener, whose clients are told to come to the proxy's port."""
    own, other = f"PLAINTEXT://{node.bootstrap}", f"PROXIED://{LOOPBACK}"
    return {
        "listeners": f"{own},{other}:{listens},CONTROLLER://{LOOPBACK}:{node.voters[node.node_id]}",
        "advertised.listeners": f"{own},{other}:{advertises}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }


@dataclass
class Hold:
    """A producer's next `request` is to reach its broker once one of the kind `until` was answered in its next transaction.

    The connection of the one that is held is cut, so that the client asks again, and is answered. Several proxies may share it.
    `replies` are what the broker said to it, behind the correlation id and the throttle time.
    """

    transactional_id: str
    request: int
    until: int
    is_taken: bool = False
    has_ended: bool = False
    is_due: bool = False
    replies: list[bytes] = field(default_factory=list)

    def takes(self, request: int, frame: bytes) -> bool:
        """Whether this is the one."""
        return not self.is_taken and request == self.request and self._is_of_it(frame)

    def passes(self, request: int, frame: bytes) -> bool:
        """A request that is let through; whether its answer is the one to wait for."""
        if not self.is_taken or not self._is_of_it(frame):
            return False
        is_awaited = self.has_ended and request == self.until
        self.has_ended |= request == END_TXN
        return is_awaited

    def answered(self, answer: bytes) -> None:
        """The answer to such a request. The broker refuses partitions while it completes the transaction before."""
        # That to AddPartitionsToTxn, up to version 2, ends with the error of its last partition.
        self.is_due |= self.until != ADD_PARTITIONS or answer.endswith(_NO_ERROR)

    def _is_of_it(self, frame: bytes) -> bool:
        return self.transactional_id.encode() in frame


class Proxy:
    """Listens on `port` of loopback for a broker that listens on `broker_port`. Runs in a thread of its own."""

    def __init__(self, port: int, broker_port: int) -> None:
        self.port = port
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.hold: Hold | None = None
        self._broker_port = broker_port
        self._is_open = True
        self._streams: set[asyncio.StreamWriter] = set()
        self._served: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy {port}", daemon=True)
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, LOOPBACK, self.port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def cut(self) -> None:
        """Every connection is reset, once."""
        self._loop.call_soon_threadsafe(self._reset)

    def close(self) -> None:
        """Nobody is let in, and those who are in are thrown out, until `open`."""
        self._is_open = False
        self.cut()

    def slow(self, delay_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Everything passes so much later, or at that rate, until `open`."""
        self.delay_s, self.bytes_per_s = delay_s, bytes_per_s

    def open(self) -> None:
        """As at the beginning."""
        self._is_open = True
        self.slow()

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _close(self) -> None:
        self._is_open = False
        if self._server is not None:
            self._server.close()
        self._reset()
        # Each connection ends by itself once its streams are reset; one that holds a request back is not waited for.
        _, left = await asyncio.wait(self._served or {asyncio.ensure_future(asyncio.sleep(0))}, timeout=1)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _reset(self) -> None:
        for stream in self._streams:
            stream.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_open:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(LOOPBACK, self._broker_port)
        except OSError:
            writer.transport.abort()
            return
        self._streams |= {writer, up_writer}
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        awaited: set[bytes] = set()
        answers = asyncio.ensure_future(self._pass_on(up_reader, writer, awaited))
        held = None
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                held = await self._requests(reader, up_writer, awaited)
            answers.cancel()
            if held is not None:
                writer.transport.abort()
                with suppress(OSError, asyncio.IncompleteReadError):
                    await self._deliver_late(held, up_reader, up_writer)
        finally:
            self._streams -= {writer, up_writer}
            self._served.discard(task)
            for stream in (writer, up_writer):
                stream.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, up: asyncio.StreamWriter, awaited: set[bytes]
    ) -> bytes | None:
        """Pass requests on until the connection ends; the frame that was held back, if one was.

        The correlation ids of those whose answers a hold waits for go to `awaited`.
        """
        while True:
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            request, hold = int.from_bytes(frame[:2], "big"), self.hold
            if hold is not None and hold.takes(request, frame):
                hold.is_taken = True
                return size + frame
            await self._pause(len(frame))
            if hold is not None and hold.passes(request, frame):
                awaited.add(frame[4:8])
            up.write(size + frame)
            await up.drain()

    async def _deliver_late(self, frame: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hold = self.hold
        while hold is not None and not hold.is_due:
            await asyncio.sleep(_LOOK_EVERY_S)
            hold = self.hold
        if hold is None:
            return
        writer.write(frame)
        await writer.drain()
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        hold.replies.append(answer[8:])

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, awaited: set[bytes]) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = await reader.readexactly(4)
                answer = await reader.readexactly(int.from_bytes(size, "big"))
                await self._pause(len(answer))
                writer.write(size + answer)
                await writer.drain()
                if answer[:4] in awaited:
                    awaited.discard(answer[:4])
                    if self.hold is not None:
                        self.hold.answered(answer)
        writer.close()

    async def _pause(self, size: int) -> None:
        seconds = self.delay_s + (size / self.bytes_per_s if self.bytes_per_s else 0.0)
        if seconds:
            await asyncio.sleep(seconds)
