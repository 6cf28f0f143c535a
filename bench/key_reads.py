"""The client of the reads: connections that are kept open, each with one request at a time.

Sockets are read without an HTTP library, because the client shares the processor with what it measures.
"""

from __future__ import annotations

import multiprocessing
import re
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from bench.case import PARTITIONS
from bench.errors import BenchFailed
from bench.events import key_name
from tidemark.kafka.partitioner import partitions_of

_CHUNK = 1 << 16
_DRAWN = 100_000
_SILENT_S = 10.0
_SAMPLED = 500
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TRIVIAL_BODY = b"x" * 700


@dataclass(frozen=True)
class Target:
    """A process that answers reads at `path`. `partitions` are those whose keys it can be asked for; None: all."""

    host: str
    port: int
    path: str
    token: str = ""
    partitions: frozenset[int] | None = None

    def request(self, key: int, from_ms: int, to_ms: int) -> bytes:
        """Return the request for the windows of a key that start from `from_ms` to `to_ms`, both included."""
        return (
            f"GET {self.path}?key={key_name(key)}&from_ms={from_ms}&to_ms={to_ms} HTTP/1.1\r\nHost: {self.host}\r\n"
            f"Authorization: Bearer {self.token}\r\n\r\n"
        ).encode()


@dataclass(frozen=True)
class Asked:
    """The windows to read: those of `keys` keys that start from `from_ms` to `to_ms`. `seed` decides which key comes next."""

    keys: int
    from_ms: int
    to_ms: int
    seed: int


@dataclass(frozen=True)
class Answer:
    """The answer for a key, a JSON body."""

    key: int
    body: bytes


@dataclass(frozen=True)
class Reads:
    """The reads of one process: latencies in milliseconds, some of the answers, and the CPU seconds of the client."""

    latencies_ms: npt.NDArray[np.float64]
    answers: list[Answer]
    cpu_s: float


def read(targets: list[tuple[int, Target]], asked: Asked, since_s: float, until_s: float) -> Reads:
    """Read until `until_s`, and measure the reads that were sent and answered from `since_s` on. Blocks.

    `targets` has one numbered connection each. The times are those of `time.monotonic`, which all processes share. Raises
    `BenchFailed` for an answer that is not a success, and if there is none within ten seconds.
    """
    latencies: list[float] = []
    answers: list[Answer] = []
    cpu_s: float | None = None
    with ExitStack() as opened, selectors.DefaultSelector() as selector:
        for number, target in targets:
            connection = opened.enter_context(closing(_Connection(target, asked, number)))
            connection.send()
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while selector.get_map():
            ready = selector.select(_SILENT_S)
            if not ready:
                raise BenchFailed(f"{targets[0][1].path} gave no answer for {_SILENT_S:.0f} s")
            for registered, _ in ready:
                connection = registered.data
                body = connection.receive()
                if body is None:
                    continue
                now = time.monotonic()
                if since_s <= connection.sent_s and now <= until_s:
                    cpu_s = time.process_time() if cpu_s is None else cpu_s
                    latencies.append(1000 * (now - connection.sent_s))
                    if now - since_s >= len(answers) * (until_s - since_s) / _SAMPLED:
                        answers.append(Answer(connection.key, body))
                if now < until_s:
                    connection.send()
                else:
                    selector.unregister(connection.socket)
    return Reads(np.array(latencies), answers, 0.0 if cpu_s is None else time.process_time() - cpu_s)


def ask(target: Target, asked: Asked, keys: list[int]) -> list[Answer]:
    """Return the answers for these keys, one after the other. Blocks. Raises `BenchFailed`."""
    found = []
    with closing(_Connection(target, asked, 0)) as connection:
        for key in keys:
            connection.send(key)
            while (body := connection.receive()) is None:
                pass
            found.append(Answer(key, body))
    return found


def owned(target: Target, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return those of the keys that the target can be asked for."""
    if target.partitions is None:
        return keys
    names = [key_name(key).encode() for key in keys.tolist()]
    return keys[np.isin(partitions_of(names, PARTITIONS), list(target.partitions))]


class _Connection:
    """One connection, and the request that waits for an answer."""

    def __init__(self, target: Target, asked: Asked, number: int) -> None:
        self.socket = socket.create_connection((target.host, target.port), _SILENT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.key, self.sent_s = 0, 0.0
        self._target, self._asked = target, asked
        drawn = np.random.default_rng([asked.seed, number]).integers(0, asked.keys, _DRAWN)
        self._keys: Iterator[int] = cycle(owned(target, drawn).tolist())
        self._data = b""

    def send(self, key: int | None = None) -> None:
        """Ask for a key, by default the next one that was drawn."""
        self.key = next(self._keys) if key is None else key
        request = self._target.request(self.key, self._asked.from_ms, self._asked.to_ms)
        self.sent_s = time.monotonic()
        self.socket.sendall(request)

    def receive(self) -> bytes | None:
        """Return the body of the answer when all of it has arrived. Waits for a part of it. Raises `BenchFailed`."""
        try:
            part = self.socket.recv(_CHUNK)
        except OSError as error:
            raise BenchFailed(f"{self._target.path} did not answer: {error}") from error
        if not part:
            raise BenchFailed(f"{self._target.path} closed the connection without an answer")
        self._data += part
        head, is_complete, body = self._data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not is_complete or (length is not None and len(body) < int(length[1])):
            return None
        if length is None or not head.startswith(b"HTTP/1.1 200 "):
            raise BenchFailed(f"{self._target.path} answered {head[:100]!r} {body[:500]!r}")
        self._data = b""
        return body

    def close(self) -> None:
        self.socket.close()


@contextmanager
def trivial_server() -> Iterator[Target]:
    """Run a process that gives every request the same answer, which shows how many reads the client itself can do."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve_trivially, args=(there,), daemon=True)
    process.start()
    try:
        if not here.poll(60):
            raise BenchFailed("the trivial server did not start")
        yield Target("127.0.0.1", here.recv(), "/trivial")
    finally:
        process.kill()
        process.join()


def _serve_trivially(started: Connection) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_TRIVIAL_BODY), _TRIVIAL_BODY)
    with socket.create_server(("127.0.0.1", 0)) as listening, selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        started.send(listening.getsockname()[1])
        while True:
            for registered, _ in selector.select():
                if registered.fileobj is listening:
                    accepted, _ = listening.accept()
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(accepted, selectors.EVENT_READ, accepted)
                elif registered.data.recv(_CHUNK):
                    registered.data.sendall(answer)
                else:
                    selector.unregister(registered.data)
                    registered.data.close()
