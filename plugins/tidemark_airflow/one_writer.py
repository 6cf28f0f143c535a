"""Lets requests that write pass one at a time where Airflow's database is SQLite, which has one lock for all who write.

Airflow 3.3 commits the entry of a user's request in its log on the server's event loop. Another request that holds the lock
needs this loop to commit. Without this middleware both wait for each other until SQLite gives up: the whole server stands
still for as long as a request may wait for the lock, then the user's request fails with 500 "database is locked".
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from tidemark_airflow.page_mount import App, Receive, Scope, Send

_READS = {"GET", "HEAD", "OPTIONS"}
_LONGEST_WAIT_S = 45.0
"""A request waits this long for its turn. Then it is passed on all the same, so that one that hangs cannot block all others.

This is more than the 30 s for which a request may wait for SQLite's lock while another process has it.
"""


class OneWriter:
    """Middleware of the API server: passes requests on, those with a method that may write one after the other."""

    def __init__(self, app: App, longest_wait_s: float = _LONGEST_WAIT_S) -> None:
        self._app = app
        self._longest_wait_s = longest_wait_s
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on once it is its turn."""
        if scope["type"] != "http" or scope["method"] in _READS:
            await self._app(scope, receive, send)
            return
        # The whole body is read before the request takes its turn, so that a slow sender does not block others.
        messages = await _all_of_the_request(receive)

        async def received() -> MutableMapping[str, Any]:
            return messages.pop(0) if messages else await receive()

        has_turn = await self._wait()
        try:
            await self._app(scope, received, send)
        finally:
            if has_turn:
                self._turn.release()

    async def _wait(self) -> bool:
        try:
            return await asyncio.wait_for(self._turn.acquire(), self._longest_wait_s)
        except TimeoutError:
            return False


async def _all_of_the_request(receive: Receive) -> list[MutableMapping[str, Any]]:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def middlewares(database_url: str) -> list[dict[str, Any]]:
    """Return what Airflow adds to its API server, as a plugin's `fastapi_root_middlewares`: nothing but on SQLite."""
    if not database_url.startswith("sqlite"):
        return []
    return [{"middleware": OneWriter, "name": "One writer at a time"}]
