"""An application of FastAPI that finds reads by itself, before middleware and routes are asked one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from tidemark.queries.errors import QueryInvalid

_PREFIX = "/v1/stores/{store}/"
_PARTS = 5


def _is_text(query: bytes) -> bool:
    """Return whether the parameters of a URL are UTF-8. Others would be read as other characters, and so as other keys."""
    if b"%" not in query:
        return query.isascii()
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        return False
    return query.isascii()


class QueryApi(FastAPI):
    """Answers `GET /v1/stores/{store}/NAME` with the handler of that route; everything else as FastAPI does.

    FastAPI's way to the handler takes more processor time than the read. Errors have the same form on both ways, because the
    same functions make it. A body, and so its limit, exists only on the other.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._reads: dict[str, Callable[[Request], Awaitable[Response]]] = {}

    def include_reads(self, reads: APIRouter) -> None:
        """Include the routes of a router, whose own handlers need nothing but the request."""
        self.include_router(reads)
        for route in reads.routes:
            if isinstance(route, APIRoute) and "GET" in route.methods and route.path.startswith(_PREFIX):
                self._reads[route.path.removeprefix(_PREFIX)] = route.get_route_handler()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_text(scope["query_string"]):
            refused = QueryInvalid(
                "the parameters in the URL are not percent-encoded UTF-8",
                "pass the bytes of a key in hexadecimal, such as key_hex=00ff",
            )
            response = await self._response_to(refused, Request(scope, receive))
            await response(scope, receive, send)
            return
        if scope["type"] == "http" and scope["method"] == "GET" and not scope.get("root_path"):
            parts = scope["path"].split("/")
            handle = self._reads.get(parts[-1])
            if handle is not None and len(parts) == _PARTS and parts[:3] == ["", "v1", "stores"] and parts[3]:
                request = Request({**scope, "path_params": {"store": parts[3]}}, receive)
                try:
                    response = await handle(request)
                except Exception as error:  # noqa: BLE001 - there is a response to every error, which logs what it must
                    response = await self._response_to(error, request)
                await response(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    async def _response_to(self, error: Exception, request: Request) -> Response:
        handlers = self.exception_handlers
        # There is one for `Exception`.
        found = next(handlers[kind] for kind in type(error).__mro__ if kind in handlers)
        response = found(request, error)
        return await response if isinstance(response, Awaitable) else response
