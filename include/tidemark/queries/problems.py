"""The form of every answer that is not a success: what is wrong, where, and what to do."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.queries.errors import REFUSALS, QueryInvalid, QueryRefused

log = logging.getLogger(__name__)

_BODY_BYTES = 16 << 20
_LENGTH_DIGITS = 12


class Problem(BaseModel):
    """The body of every answer that is not a success."""

    status: int
    title: str = Field(description="what kind of error it is")
    detail: str = Field(description="what failed, and where")
    remedy: str = Field(description="what to do")


_TITLES = {
    400: "the request cannot be read",
    404: "there is no such route",
    405: "the route has no such method",
    413: "the body is too large",
    500: "the query failed",
}
_A_PROBLEM = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    # Naming the model here would cost a quarter of a second at the first request: one validator per route and status.
    status: {"content": _A_PROBLEM, "description": title}
    for status, title in sorted({**{kind.status: kind.title for kind in REFUSALS}, **_TITLES}.items())
}
"""The errors in the description of the interface, by HTTP status."""


def handle_errors(api: FastAPI) -> None:
    """Give every error the same form: what is wrong, where, and what to do."""

    @api.exception_handler(QueryRefused)
    async def refused(_: Request, error: QueryRefused) -> Response:
        retry = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
        if error.status == 401:
            retry = {"WWW-Authenticate": "Bearer"}
        return _problem(error.status, error.title, error.detail, error.remedy, retry)

    @api.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return _problem(422, QueryInvalid.title, f"{where}: {first['msg']}", f"correct {where}; see /v1/openapi.json")

    @api.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path}: {error.detail}"
        title = _TITLES.get(error.status_code, "the request is refused")
        # 405 has to name the methods that exist.
        return _problem(error.status_code, title, what, "see /v1/openapi.json", error.headers)

    @api.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        log.error("a query failed", exc_info=error)
        return _problem(500, _TITLES[500], type(error).__name__, "look at the log of this process")


class BodyLimit:
    """Refuses a body that is too large before it is read, and one whose size is not known."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            length = Headers(scope=scope).get("content-length", "")
            if not length.isdecimal() or len(length) > _LENGTH_DIGITS or int(length) > _BODY_BYTES:
                refused = _problem(413, _TITLES[413], f"a body has at most {_BODY_BYTES} bytes", "ask for fewer keys")
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _problem(status: int, title: str, detail: str, remedy: str, headers: Mapping[str, str] | None = None) -> Response:
    texts = {"title": title, "detail": detail, "remedy": remedy}
    # A message may quote half of a surrogate pair, which UTF-8 does not have.
    plain = {name: text.encode(errors="backslashreplace").decode() for name, text in texts.items()}
    return JSONResponse({"status": status, **plain}, status, headers)
