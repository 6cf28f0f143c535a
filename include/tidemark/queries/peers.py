"""Sends queries to other processes with the token of the caller. A process that did not answer is asked last for a while."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from starlette.requests import Request

from tidemark.names import TaskId
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.kept_connections import KeptConnections, NoAnswer, PeerAnswer

_CONNECT_S = 1.0
_SILENT_S = 5.0
"""A process that did not answer is asked last for this many seconds."""

PASSED_TASK = "tidemark-task"
"""The header of a query that is passed on. It names a task, for which the receiver answers from its own stores."""
_SENT_ON = (b"authorization", b"accept", b"content-type")


def passed_head(request: Request, task: TaskId, body: bytes) -> bytes:
    """Return the first line and the headers of a request as it is passed on."""
    scope = request.scope
    query: bytes = scope["query_string"]
    first = b"%b %b%b%b" % (scope["method"].encode(), scope["raw_path"], b"?" if query else b"", query)
    # Those that were looked at here are the first of several with one name.
    sent = {name: value for name, value in reversed(scope["headers"]) if name in _SENT_ON}
    headers = b"".join(b"%b: %b\r\n" % each for each in sent.items())
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return b"%b HTTP/1.1\r\n%b: %b\r\n%b%b" % (first, PASSED_TASK.encode(), str(task).encode(), headers, length)


class Peers:
    """Asks other processes, with the token of whoever asked this one. Safe to use from threads."""

    def __init__(self, verify: ssl.SSLContext | bool = True, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`verify` is as in httpx."""
        self._client = httpx.Client(follow_redirects=False, trust_env=False, verify=verify)
        self._kept = KeptConnections(verify)
        self._monotonic = monotonic
        self._silent: dict[str, float] = {}
        self._lock = threading.Lock()

    def is_silent(self, url: str) -> bool:
        """Return whether the process did not answer a moment ago."""
        with self._lock:
            return self._monotonic() - self._silent.get(url, float("-inf")) < _SILENT_S

    def post(self, url: str, path: str, body: dict[str, Any], authorization: str, answer_s: float) -> httpx.Response:
        """Send a request. Raises `StateUnavailable` if there is no answer in time."""
        timeout = httpx.Timeout(answer_s, connect=min(_CONNECT_S, answer_s))
        try:
            answer = self._client.post(
                f"{url}{path}", json=body, headers={"Authorization": authorization}, timeout=timeout
            )
        except httpx.HTTPError as error:
            raise self._silence(url, type(error).__name__) from error
        self._has_answered(url)
        return answer

    async def pass_on(self, url: str, head: bytes, body: bytes, answer_s: float) -> PeerAnswer:
        """Send a request that only reads, in the event loop. `head` is what `passed_head` returned.

        Raises `StateUnavailable` if there is no answer in time.
        """
        try:
            answer = await self._kept.send(url, head, body, min(_CONNECT_S, answer_s), answer_s)
        except NoAnswer as error:
            raise self._silence(url, str(error)) from error
        self._has_answered(url)
        return answer

    def stream(
        self, url: str, path: str, params: Mapping[str, str], authorization: str, wait_s: float
    ) -> httpx.Response:
        """Return a response whose body is read later, part by part. Raises `StateUnavailable` if there is none in time."""
        request = self._client.build_request(
            "GET",
            f"{url}{path}",
            params=params,
            headers={"Authorization": authorization},
            timeout=httpx.Timeout(wait_s, connect=_CONNECT_S),
        )
        try:
            answer = self._client.send(request, stream=True)
            if not answer.is_success:
                answer.read()
        except httpx.HTTPError as error:
            raise self._silence(url, type(error).__name__) from error
        return answer

    def _has_answered(self, url: str) -> None:
        if url in self._silent:
            with self._lock:
                self._silent.pop(url, None)

    def _silence(self, url: str, why: str) -> StateUnavailable:
        with self._lock:
            self._silent[url] = self._monotonic()
        return StateUnavailable(f"{url} does not answer ({why})", "look whether that process still runs")

    def close_kept(self) -> None:
        """Close the connections on which requests are passed on. Must be called in the event loop that passes them on."""
        self._kept.close()

    def close(self) -> None:
        """Close all other connections."""
        self._client.close()
