"""Mounts the Streams page, and loads its code only when somebody opens Airflow in a browser.

Every part of Airflow loads the plugin, and most of them show no page.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

URL_PREFIX = "/streams"


class StreamsPage:
    """Imports and makes the application at its first request, or when `LoadsEarly` asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if self._app is None:
            # The import takes a second, in which the server must answer others.
            await asyncio.to_thread(self.load)
        await self._app(scope, receive, send)

    def load(self) -> None:
        """Import and make the application, once. Blocks for a second."""
        with self._lock:
            if self._app is None:
                from tidemark_airflow.page import make_app

                self._app = make_app()


class LoadsEarly:
    """Middleware of the API server: loads the page while a browser shows something else of Airflow, such as the login."""

    def __init__(self, app: App, page: StreamsPage) -> None:
        self._app = app
        self._page = page
        self._is_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if not self._is_begun and _is_of_browser(scope):
            self._is_begun = True
            threading.Thread(target=self._page.load, name="load-streams-page", daemon=True).start()
        await self._app(scope, receive, send)


def _is_of_browser(scope: Scope) -> bool:
    """Return whether a browser requests a page. Programs, such as Airflow's own parts, do not ask for HTML."""
    return scope["type"] == "http" and any(
        name == b"accept" and b"text/html" in value for name, value in scope["headers"]
    )


def page_views(base_path: str) -> list[dict[str, Any]]:
    """Return the menu entry, and the tab that Airflow shows on every DAG.

    `base_path` is the path under which Airflow is served, without `/` at its end.
    """
    address = f"{base_path}{URL_PREFIX}"
    return [
        {"name": "Streams", "href": f"{address}/", "destination": "nav", "url_route": "streams", "nav_top_level": True},
        {"name": "Stream", "href": f"{address}/dags/{{DAG_ID}}", "destination": "dag", "url_route": "stream"},
    ]
