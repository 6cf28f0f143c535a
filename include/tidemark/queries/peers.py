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
from tidemark.queries.kept_connections import AnswerLate, KeptConnections, NoAnswer, PeerAnswer

_CONNECT_S = 1.0
_SILENT_S = 5.0
"""A process that did not answer is asked last for this many seconds."""

PASSED_TASK = "tidemark-task"
"""The header of a query that is passed on. It names a task, for which the receiver answers from its own stores."""
APPLICATION, TIME_LEFT = "tidemark-application", "tidemark-time-left-ms"
"""Headers of every query of another process: the application that is meant, and the time for reading."""
LAUNCH = "tidemark-launch"
"""The header of an answer between processes. It is the launch that the process has announced, which no other process knows."""
_READING = 0.8
"""The part of the time for an answer in which it is read. In the rest it is written, sent, and read by who has asked."""
_PROOF_S = 0.25
"""A process that does not answer for so long is taken for silent."""
_SENT_ON = (b"authorization", b"accept", b"content-type")


def between_processes(application_id: str, answer_s: float) -> dict[str, str]:
    """Return the headers of a query that is answered within `answer_s`.

    The receiver stops reading earlier, so that a page that ends then, with a cursor, still arrives in time.
    """
    return {APPLICATION: application_id, TIME_LEFT: str(max(1, round(answer_s * _READING * 1000)))}


def passed_head(request: Request, task: TaskId, body: bytes, more: Mapping[str, str]) -> bytes:
    """Return the first line and the headers of a request as it is passed on, with `more` headers."""
    scope = request.scope
    query: bytes = scope["query_string"]
    first = b"%b %b%b%b" % (scope["method"].encode(), scope["raw_path"], b"?" if query else b"", query)
    # Those that were looked at here are the first of several with one name.
    sent = {name: value for name, value in reversed(scope["headers"]) if name in _SENT_ON}
    sent |= {name.encode(): value.encode() for name, value in more.items()}
    headers = b"".join(b"%b: %b\r\n" % each for each in sent.items())
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return b"%b HTTP/1.1\r\n%b: %b\r\n%b%b" % (first, PASSED_TASK.encode(), str(task).encode(), headers, length)


class Peers:
    """Sends queries to the other processes of an application, with the token of the caller. Safe to use from threads."""

    def __init__(
        self, application_id: str, verify: ssl.SSLContext | bool = True, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`verify` is as in httpx."""
        self._client = httpx.Client(follow_redirects=False, trust_env=False, verify=verify)
        self._kept = KeptConnections(verify)
        self._application_id = application_id
        self._monotonic = monotonic
        self._silent: dict[str, float] = {}
        self._lock = threading.Lock()

    def is_silent(self, url: str) -> bool:
        """Return whether the process did not answer a moment ago."""
        with self._lock:
            return self._monotonic() - self._silent.get(url, float("-inf")) < _SILENT_S

    def note_silent(self, url: str) -> None:
        """Ask what listens at this address last for a while."""
        with self._lock:
            self._silent[url] = self._monotonic()

    def post(self, url: str, path: str, body: dict[str, Any], authorization: str, answer_s: float) -> httpx.Response:
        """Send a request. Raises `StateUnavailable` if there is no answer in time."""
        timeout = httpx.Timeout(answer_s, connect=min(_CONNECT_S, answer_s))
        headers = {"Authorization": authorization, **between_processes(self._application_id, answer_s)}
        try:
            answer = self._client.post(f"{url}{path}", json=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise self._without_answer(url, error, answer_s) from error
        self._has_answered(url)
        return answer

    async def pass_on(self, url: str, request: Request, task: TaskId, body: bytes, answer_s: float) -> PeerAnswer:
        """Send a request that only reads to a process that holds the task, in the event loop.

        Raises `StateUnavailable` if there is no answer in time.
        """
        head = passed_head(request, task, body, between_processes(self._application_id, answer_s))
        try:
            answer = await self._kept.send(url, head, body, min(_CONNECT_S, answer_s), answer_s)
        except NoAnswer as error:
            raise self._without_answer(url, error, answer_s) from error
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
            headers={"Authorization": authorization, APPLICATION: self._application_id},
            timeout=httpx.Timeout(wait_s, connect=_CONNECT_S),
        )
        try:
            answer = self._client.send(request, stream=True)
            if not answer.is_success:
                answer.read()
        except httpx.HTTPError as error:
            raise self._without_answer(url, error, wait_s) from error
        return answer

    def _has_answered(self, url: str) -> None:
        if url in self._silent:
            with self._lock:
                self._silent.pop(url, None)

    def _without_answer(self, url: str, error: httpx.HTTPError | NoAnswer, waited_s: float) -> StateUnavailable:
        # A query that had hardly any time left says nothing about the process.
        if waited_s >= _PROOF_S or not isinstance(error, httpx.TimeoutException | AnswerLate):
            self.note_silent(url)
        why = str(error) if isinstance(error, NoAnswer) else type(error).__name__
        return StateUnavailable(f"{url} does not answer ({why})", "look whether that process still runs")

    def close_kept(self) -> None:
        """Close the connections on which requests are passed on. Must be called in the event loop that passes them on."""
        self._kept.close()

    def close(self) -> None:
        """Close all other connections."""
        self._client.close()
