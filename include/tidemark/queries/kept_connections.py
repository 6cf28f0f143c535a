"""Connections to other processes that are kept open, for requests that are passed on from the event loop.

Such a request is sent as bytes, and `httptools`, with which the server reads requests, reads the answer: an HTTP library for
clients would take more processor time than the read itself (docs/decisions/0030-reads-are-passed-on.md).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import httptools
import httpx

_KEPT = 16
"""Idle connections that are kept to each process."""


class NoAnswer(Exception):
    """There was no answer, for the reason that is its text."""


class AnswerLate(NoAnswer):
    """There was no answer within the time that was given for it."""


class _Closed(NoAnswer):
    """The connection was closed before anything of an answer came."""


@dataclass(frozen=True)
class PeerAnswer:
    """The answer of another process, with its body as it came. `headers` are by name in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class KeptConnections:
    """Sends requests in an event loop, each on a connection of its own, and keeps connections for the next ones."""

    def __init__(self, verify: ssl.SSLContext | bool = True) -> None:
        """`verify` is as in httpx."""
        self._verify = verify
        self._peers: dict[str, _Peer] = {}

    async def send(self, url: str, head: bytes, body: bytes, connect_s: float, answer_s: float) -> PeerAnswer:
        """Send a request to the process at `url`, which may get it twice: it must be one that only reads.

        `head` has the first line and all headers but `Host`, each with its end. Raises `NoAnswer` if there is none in time.
        """
        peer = self._peers.get(url)
        if peer is None:
            peer = self._peers[url] = self._known(url)
        data = b"%bHost: %b\r\n\r\n%b" % (head, peer.name, body)
        loop = asyncio.get_running_loop()
        while peer.idle:
            connection = peer.idle.pop()
            if connection.serves(loop):
                try:
                    return await peer.ask(connection, data, answer_s)
                except _Closed:
                    # The other process closes connections that are idle for a while, perhaps just now.
                    continue
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await loop.create_connection(
                    partial(_Connection, loop), peer.host, peer.port, ssl=peer.context
                )
        except TimeoutError as error:
            raise AnswerLate(type(error).__name__) from error
        except OSError as error:
            raise NoAnswer(type(error).__name__) from error
        return await peer.ask(connection, data, answer_s)

    def _known(self, url: str) -> _Peer:
        at = urlsplit(url)
        context = None
        if at.scheme == "https":
            if isinstance(self._verify, bool):
                self._verify = httpx.create_ssl_context(verify=self._verify, trust_env=False)
            context = self._verify
        return _Peer(at.hostname or "", at.port or (443 if context else 80), at.netloc.encode(), context)

    def close(self) -> None:
        """Close the connections that are idle. Must be called in the event loop."""
        for peer in self._peers.values():
            while peer.idle:
                peer.idle.pop().close()


@dataclass(eq=False)
class _Peer:
    """A process, and the connections to it that are idle, the last used one last."""

    host: str
    port: int
    name: bytes
    context: ssl.SSLContext | None
    idle: list[_Connection] = field(default_factory=list)

    async def ask(self, connection: _Connection, data: bytes, answer_s: float) -> PeerAnswer:
        """Return the answer, and keep the connection if there is one. Raises `NoAnswer`."""
        is_kept = False
        try:
            answer = await connection.ask(data, answer_s)
            is_kept = connection.is_open and len(self.idle) < _KEPT
            return answer
        finally:
            if is_kept:
                self.idle.append(connection)
            else:
                connection.close()


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = False
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[PeerAnswer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._has_begun = False

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether it is open, and belongs to this event loop."""
        return self.is_open and self._loop is loop

    async def ask(self, data: bytes, timeout_s: float) -> PeerAnswer:
        """Send a request, and return the answer. Raises `NoAnswer`."""
        if self._transport is None or not self.is_open:
            raise _Closed("it closed the connection")
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._body, self._has_begun = {}, [], False
        answered: asyncio.Future[PeerAnswer] = self._loop.create_future()
        self._answered = answered
        timer = self._loop.call_later(timeout_s, self._fail, AnswerLate("it took too long"))
        try:
            self._transport.write(data)
            return await answered
        finally:
            timer.cancel()
            self._answered = None

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from those of asyncio.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        kind = NoAnswer if self._has_begun else _Closed
        self._fail(kind("it closed the connection" if error is None else type(error).__name__))

    def data_received(self, data: bytes) -> None:
        if self._answered is None:
            # Nothing was asked for: it would be taken for the next answer.
            self.close()
            return
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(NoAnswer(type(error).__name__))

    def on_message_begin(self) -> None:
        """Close the connection after an answer that no request has asked for."""
        if self._answered is None or self._answered.done():
            self.is_open = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, as the parser calls it."""
        self._headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Give the answer to who waits for it."""
        self.is_open = self.is_open and self._parser.should_keep_alive()
        if self._answered is not None and not self._answered.done():
            answer = PeerAnswer(self._parser.get_status_code(), self._headers, b"".join(self._body))
            self._answered.set_result(answer)

    def _fail(self, error: NoAnswer) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)
