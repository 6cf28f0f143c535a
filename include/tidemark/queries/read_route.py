"""A route that reads a store, with parameters that are read in one pass."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol, TypeVar, get_type_hints
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tidemark.queries.errors import QueryInvalid
from tidemark.queries.parameters import AskedKeys, ReadParameters


class InThreads(Protocol):
    """What is known of a request before its parameters are read. `threads` are those in which it is answered."""

    @property
    def threads(self) -> Executor:
        """They may all be busy: then it waits."""

    @property
    def answer_headers(self) -> Mapping[str, str]:
        """The headers that the answer gets."""


A = TypeVar("A", bound=InThreads)


def read_route(
    ask: Callable[[Request], Awaitable[A]],
    pass_on: Callable[[Request, A, ReadParameters, AskedKeys], Awaitable[Response | A]],
) -> type[APIRoute]:
    """Return the class of routes that call a function in a thread of `asked`, with the parameters that its signature describes.

    `asked` is what `ask` returns, which runs in the event loop and must not block. `wanted` is the model of the parameters in
    the URL, `body` that of the body, if there is one. All others are parts of the path, except `store`, which `ask` has read.
    If the parameters say which keys are asked for, `pass_on` may get the response from another process, without a thread.

    FastAPI describes such a route from the signature, too. Its own handler would examine the type of every parameter for each
    request, which takes longer than a read (docs/decisions/0028-parameters-in-one-pass.md).
    """

    class ReadRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            read = self.endpoint
            hints = get_type_hints(read)
            url = TypeAdapter(hints["wanted"])
            body = TypeAdapter(hints["body"]) if "body" in hints else None

            async def handle(request: Request) -> Response:
                given = {name: text for name, text in request.path_params.items() if name != "store"}
                given["asked"] = await ask(request)
                # As Starlette reads them, without its objects. The last of several values counts.
                pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
                given["wanted"] = _validated(url, "query", dict(pairs))
                if body is not None:
                    given["body"] = _validated(body, "body", await _json_of(request))
                named = given.get("body", given["wanted"])
                if isinstance(named, AskedKeys):
                    answer = await pass_on(request, given["asked"], given["wanted"], named)
                    if isinstance(answer, Response):
                        return answer
                    given["asked"] = answer
                # Takes 30 µs of processor time; AnyIO's threads take 50.
                threads: Executor = given["asked"].threads
                response: Response = await asyncio.get_running_loop().run_in_executor(threads, partial(read, **given))
                response.headers.update(given["asked"].answer_headers)
                return response

            return handle

    return ReadRoute


def _validated(model: TypeAdapter[Any], source: str, given: object) -> Any:
    try:
        return model.validate_python(given)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": (source, *each["loc"])} for each in error.errors()]) from error


async def _json_of(request: Request) -> object:
    """Return the body. Raises `QueryInvalid`, or `HTTPException` for one that cannot be read at all."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise QueryInvalid("the body is not JSON", "send the header Content-Type: application/json")
    try:
        return await request.json()
    except json.JSONDecodeError as error:
        raise QueryInvalid(f"the body is not JSON: {error}", "send a JSON object; see /v1/openapi.json") from error
    except (ValueError, RecursionError, ClientDisconnect) as error:
        raise HTTPException(400, "the body cannot be read") from error
