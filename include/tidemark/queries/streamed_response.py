"""An answer without a known end, sent part by part: watches, events and exports.

Sources are opened, and parts are made, in threads of their own, so they take none of `query_threads`. At most one part
waits for the client: the source is read again when the last part was sent. A client that reads nothing for `query_stall_ms`
is disconnected, after a last part that says so if it still takes that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tidemark.queries.errors import QueryRefused, TooManyRequests
from tidemark.queries.part_source import PartSource
from tidemark.queries.server_events import END, SLOW

log = logging.getLogger(__name__)

_KEEP_ALIVE_S = 5.0


@dataclass(eq=False)
class StreamSlots:
    """The streams that one process serves at the same time. `closing` is set when the process is about to end."""

    most: int
    stall_s: float
    closing: threading.Event
    _open: int = field(init=False, default=0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    async def respond(self, media_type: str, open_source: Callable[[], PartSource]) -> Response:
        """Return the response that sends what the source makes. Raises `TooManyRequests`, and what `open_source` raises.

        `open_source` may block.
        """
        with self._lock:
            if self._open >= self.most:
                raise TooManyRequests(
                    f"this process already serves {self.most} watches and exports",
                    "end one of them, ask another process, or raise TIDEMARK_QUERY_STREAMS",
                )
            self._open += 1
        # A thread for this stream alone: it waits most of the time.
        limiter = anyio.CapacityLimiter(1)
        try:
            source = await anyio.to_thread.run_sync(open_source, limiter=limiter)
            return StreamedResponse(source, media_type, self, limiter)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Free the slot of a stream that has ended."""
        with self._lock:
            self._open -= 1


class StreamedResponse(Response):
    """Sends the parts of a source until it ends, the client leaves, the client stalls, or the process ends."""

    def __init__(self, source: PartSource, media_type: str, slots: StreamSlots, limiter: anyio.CapacityLimiter) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._source = source
        self._slots = slots
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with anyio.create_task_group() as group:

                async def until_disconnect() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    group.cancel_scope.cancel()

                group.start_soon(until_disconnect)
                await self._send_parts(send)
                group.cancel_scope.cancel()
        finally:
            self._slots.release()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._source.close, limiter=self._limiter)

    async def _send_parts(self, send: Send) -> None:
        sent_s = time.monotonic()
        while not self._slots.closing.is_set():
            try:
                part = await anyio.to_thread.run_sync(self._source.read, limiter=self._limiter)
            except QueryRefused as refused:
                # Without the end of its body, the client knows that the answer is not complete.
                log.warning("a streamed answer ends early: %s", refused.detail)
                return
            if part is None:
                await self._send(send, b"", more=False)
                return
            if not part and time.monotonic() - sent_s >= _KEEP_ALIVE_S:
                part = self._source.keep_alive
            if part:
                sent_s = time.monotonic()
                if not await self._send(send, part, more=True):
                    why = f"nothing was read for {self._slots.stall_s:g} s"
                    log.warning("a client of a streamed answer is disconnected: %s", why)
                    await self._send_last(send, SLOW, why)
                    return
        await self._send_last(send, END, "this process ends")

    async def _send_last(self, send: Send, kind: str, why: str) -> None:
        last = self._source.last_part(kind, why)
        if last is not None:
            await self._send(send, last, more=False)

    async def _send(self, send: Send, part: bytes, *, more: bool) -> bool:
        """Return whether the client took the part in time. A part that it did not take is not sent at all."""
        message: Message = {"type": "http.response.body", "body": part, "more_body": more}
        with anyio.move_on_after(self._slots.stall_s) as limit:
            await send(message)
        return not limit.cancelled_caught
