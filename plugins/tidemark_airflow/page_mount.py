"""Mounts the Streams page so that it costs nothing until somebody opens it, because every part of Airflow loads the plugin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

URL_PREFIX = "/streams"


class StreamsPage:
    """Imports and makes the application at its first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if self._app is None:
            # The import takes a second, in which the server must answer others.
            await asyncio.to_thread(self._load)
        await self._app(scope, receive, send)

    def _load(self) -> None:
        with self._lock:
            if self._app is None:
                from tidemark_airflow.page import make_app

                self._app = make_app()


def page_views(base_path: str) -> list[dict[str, Any]]:
    """Return the menu entry, and the tab that Airflow shows on every DAG.

    `base_path` is the path under which Airflow is served, without `/` at its end.
    """
    address = f"{base_path}{URL_PREFIX}"
    return [
        {"name": "Streams", "href": f"{address}/", "destination": "nav", "url_route": "streams", "nav_top_level": True},
        {"name": "Stream", "href": f"{address}/dags/{{DAG_ID}}", "destination": "dag", "url_route": "stream"},
    ]
