"""Connections of the query server, with limits on their number, on the size of a request's head, and on the time that a request
may take to arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_REQUEST_S = 20.0
"""The seconds in which a whole request has to arrive, from when it begins, or from when the connection is opened.

With TLS a connection is opened when its handshake has ended, which has as many seconds of its own.
"""
_MOST_CONNECTIONS = 512
"""Open connections of one process. One more is closed at once."""
_MOST_HEAD_BYTES = 512 << 10
"""Bytes of a request without its body, and with what one read of the connection had before it: at most 256 KiB."""


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection on which no whole request arrives in time or a head is too large, and those that are too many.

    A connection that is idle after an answer is closed by uvicorn (`timeout_keep_alive`). The API limits bodies.
    """

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
        else:
            self._expect_request()

    def data_received(self, data: bytes) -> None:
        # An empty line before a request ends uvicorn's time for an idle connection, and begins no message.
        if self.cycle is None or self.cycle.response_complete:
            self._expect_request()
        super().data_received(data)
        self._head_bytes += len(data)
        if self._head_bytes > _MOST_HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Take the begin of a request, as the parser calls it. It may follow another one that is not answered yet."""
        super().on_message_begin()
        self._head_bytes = 0
        self._expect_request()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, as the parser calls it."""
        self._head_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request, as the parser calls it."""
        self._forget_request()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_request()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_REQUEST_S, self.transport.abort)

    def _forget_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedLoop(uvloop.Loop):
    """Runs a server that closes a connection whose TLS handshake does not end in time; the protocol sees none before."""

    async def create_server(self, *args: Any, **named: Any) -> asyncio.AbstractServer:  # type: ignore[override]
        """Create the server as uvicorn asks for it."""
        if named.get("ssl"):
            named["ssl_handshake_timeout"] = _REQUEST_S
        return await super().create_server(*args, **named)
