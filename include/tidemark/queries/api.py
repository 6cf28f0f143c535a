"""The HTTP interface of queries: routes under `/v1`, who may call them, and the form of their answers."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Body, Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.metrics.registry import TEXT_FORMAT, Scrape
from tidemark.names import TaskId
from tidemark.queries import router as routing
from tidemark.queries.access import Caller, RateLimit, Tokens
from tidemark.queries.answer_form import ARROW_STREAM, HEX, VALUE, arrow_stream, json_entry
from tidemark.queries.catalog import QueryableStore
from tidemark.queries.cursor import Cursor
from tidemark.queries.errors import REFUSALS, NoEvents, QueryInvalid, QueryRefused
from tidemark.queries.event_feed import FeedReader
from tidemark.queries.export import TaskExport
from tidemark.queries.part_source import LiveSources
from tidemark.queries.position import ReadBounds, parse_position, position_token
from tidemark.queries.query import MAX_TIME_MS, RangeQuery, ScanQuery, SessionQuery, WindowQuery
from tidemark.queries.server_events import EVENT_STREAM
from tidemark.queries.store_reader import Deadline
from tidemark.queries.streamed_response import StreamSlots
from tidemark.queries.task_read import TaskRead
from tidemark.settings import Settings

log = logging.getLogger(__name__)

_BODY_BYTES = 16 << 20
_LENGTH_DIGITS = 12
_KEYS_EXAMPLE = {"keys": ["a"], "keys_hex": ["00ff"]}
_SEEN: Any = HTTPBearer(auto_error=False, description="a token of this application")


DEFAULT_LIMIT = 1000
"""Results of one page unless the caller wants more."""


class KeysParameters(BaseModel):
    """Keys as text, and keys in hexadecimal."""

    keys: list[str] = []
    keys_hex: list[str] = []

    def found(self, most: int) -> list[bytes]:
        """Return the keys, each once. Raises `QueryInvalid` if there are none, or more than `most`."""
        texts, hexes = self.keys, self.keys_hex
        found = [*(_bytes("keys", text, None) for text in texts), *(_bytes("keys", None, text) for text in hexes)]
        if not 1 <= len(found) <= most:
            raise QueryInvalid(f"{len(found)} keys are asked for", f"ask for 1 to {most} keys at once")
        return list(dict.fromkeys(key for key in found if key is not None))


class ScanParameters(BaseModel):
    """Parameters of every query with pages. `cursor` is that of the page before."""

    limit: int | None = Field(None, ge=1, description="maximum number of results")
    cursor: str | None = Field(None, description="cursor of the page before")

    def query(self) -> ScanQuery:
        """Return the query. Raises `QueryInvalid`."""
        raise NotImplementedError


class RangeParameters(ScanParameters):
    """A prefix, or a start and an end, or nothing for all keys. `_hex` is for keys that are not text."""

    prefix: str | None = None
    prefix_hex: str | None = None
    start: str | None = None
    start_hex: str | None = None
    end: str | None = None
    end_hex: str | None = None

    def query(self) -> ScanQuery:
        prefix = _bytes("prefix", self.prefix, self.prefix_hex)
        start, end = _bytes("start", self.start, self.start_hex), _bytes("end", self.end, self.end_hex)
        if prefix is None:
            return RangeQuery(start or b"", end)
        if start is not None or end is not None:
            raise QueryInvalid("a range has either a prefix, or a start and an end", "leave one of them out")
        return RangeQuery.of_prefix(prefix)


class _TimeParameters(ScanParameters):
    """A key, or nothing for all keys, and times in epoch milliseconds, both included."""

    key: str | None = None
    key_hex: str | None = None
    from_ms: int = Field(0, ge=0, le=MAX_TIME_MS)
    to_ms: int = Field(MAX_TIME_MS, ge=0, le=MAX_TIME_MS)


class WindowParameters(_TimeParameters):
    """The times are those of a window's start."""

    def query(self) -> ScanQuery:
        return WindowQuery(_bytes("key", self.key, self.key_hex), self.from_ms, self.to_ms)


class SessionParameters(_TimeParameters):
    """A session is found if it has any of these times."""

    def query(self) -> ScanQuery:
        return SessionQuery(_bytes("key", self.key, self.key_hex), self.from_ms, self.to_ms)


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
"""What the description of the interface says about errors."""
AS_ARROW: dict[int | str, dict[str, Any]] = {200: {"content": {ARROW_STREAM: {}}}}
AS_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {EVENT_STREAM: {}}}}
"""What it says about answers that are Arrow streams, if the caller accepts them, and about server-sent events."""


@dataclass(frozen=True)
class Asking:
    """Who asks what of the routes that read stores."""

    caller: Caller
    store: QueryableStore
    request: routing.Request
    wants_arrow: bool


def make_api(
    router: routing.Router,
    scrape: Scrape,
    tokens: Tokens,
    settings: Settings,
    topology_version: str,
    live: LiveSources,
) -> FastAPI:
    """Return the application that answers queries and scrapes. Everything but `/v1/health` asks for a token."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = settings.query_threads
        yield

    api = FastAPI(
        title=f"Queries of {router.catalog.application_id}",
        version="1",
        lifespan=lifespan,
        # These would answer without a token.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    _handle_errors(api)
    api.add_middleware(BodyLimit)
    rates = RateLimit(settings.query_requests_per_second)
    slots = StreamSlots(settings.query_streams, settings.query_stall_ms / 1000, live.closing)

    # This and `asking` read nothing. As plain functions they would run in the threads of queries: each request would wait for
    # three threads instead of one, and one without a token would wait for the queries of others.
    async def caller(seen: Annotated[HTTPAuthorizationCredentials | None, Depends(_SEEN)]) -> Caller:
        found = tokens.caller(None if seen is None else seen.credentials)
        rates.require(found)
        return found

    known = Annotated[Caller, Depends(caller)]

    async def asking(
        request: Request,
        who: known,
        store: str,
        max_lag_records: Annotated[int | None, Query(ge=0, description="maximum lag of the state in records")] = None,
        max_lag_ms: Annotated[int | None, Query(ge=0, description="maximum lag of the state in milliseconds")] = None,
        at_least: Annotated[
            str, Query(description="position that the state must contain, from an earlier answer")
        ] = "",
        task: Annotated[str | None, Query(description="ask this task only, such as 0_1")] = None,
    ) -> Asking:
        who.require(store)
        found = router.catalog.store(store)
        return Asking(
            who,
            found,
            routing.Request(
                ReadBounds.of(max_lag_records, max_lag_ms, at_least),
                Deadline.after(settings.query_timeout_ms),
                request.headers["authorization"],
                None if task is None else _task(task),
            ),
            ARROW_STREAM in request.headers.get("accept", ""),
        )

    asked_by = Annotated[Asking, Depends(asking)]

    def scanned(asked: Asking, wanted: ScanParameters) -> Response:
        most = settings.query_page_records
        limit = min(DEFAULT_LIMIT, most) if wanted.limit is None else wanted.limit
        if limit > most:
            raise QueryInvalid(f"limit {limit} is more than {most}", "ask for less, and follow the cursor")
        at = None if wanted.cursor is None else Cursor.decode(wanted.cursor)
        return _page(asked, router.scan(asked.store, wanted.query(), at, limit, asked.request))

    @api.get("/v1/health", tags=["process"])
    async def health() -> dict[str, str]:
        """Answer that this process can be reached."""
        return {"holder": router.host.holder}

    @api.get("/metrics", tags=["process"], response_class=PlainTextResponse)
    def metrics(who: known) -> Response:
        """Return the metrics of this process in Prometheus's text format. The token needs the scope `metrics`."""
        who.require_metrics()
        return Response(scrape(), media_type=TEXT_FORMAT)

    @api.get("/v1/openapi.json", tags=["process"])
    def openapi(_: known) -> dict[str, Any]:
        """Describe this interface."""
        described = api.openapi()
        described["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        return described

    @api.get("/v1/stores", tags=["stores"])
    def stores(who: known) -> dict[str, Any]:
        """List the stores that this token may read."""
        named = router.catalog.stores.items()
        allowed = {name: store for name, store in named if _may_read(who, name)}
        return {
            "application_id": router.catalog.application_id,
            "topology_version": topology_version,
            "stores": [_described(name, store) for name, store in allowed.items()],
        }

    @api.get("/v1/stores/{store}/key", tags=["key-value stores"], responses=AS_ARROW)
    def key(asked: asked_by, key: str | None = None, key_hex: str | None = None) -> Response:
        """Return the value of one key of a key-value store; `entry` is null if the key does not exist."""
        name = _bytes("key", key, key_hex)
        answer = router.keys(asked.store, [_required("key", name)], asked.request)
        if asked.wants_arrow:
            return _arrow(answer)
        entries = _entries(answer)
        return _json({"entry": entries[0] if entries else None, **_positions(answer)})

    @api.post("/v1/stores/{store}/keys", tags=["key-value stores"], responses=AS_ARROW)
    def keys(asked: asked_by, wanted: Annotated[KeysParameters, Body(examples=[_KEYS_EXAMPLE])]) -> Response:
        """Return the values of many or of large keys. A key that does not exist has no entry."""
        named = wanted.found(settings.query_page_records)
        answer = router.keys(asked.store, named, asked.request)
        return _page(asked, answer)

    @api.get("/v1/stores/{store}/range", tags=["key-value stores"], responses=AS_ARROW)
    def range_(asked: asked_by, wanted: Annotated[RangeParameters, Query()]) -> Response:
        """Return the keys that begin with `prefix`, or those from `start` to before `end`, or all, ordered by their bytes."""
        return scanned(asked, wanted)

    @api.post("/v1/stores/{store}/range", tags=["key-value stores"], responses=AS_ARROW)
    def long_range(asked: asked_by, wanted: Annotated[RangeParameters, Body()]) -> Response:
        """Return the same, with parameters that are too long for a URL."""
        return scanned(asked, wanted)

    @api.get("/v1/stores/{store}/windows", tags=["window stores"], responses=AS_ARROW)
    def windows(asked: asked_by, wanted: Annotated[WindowParameters, Query()]) -> Response:
        """Return the windows of one key, or of all keys, whose start is from `from_ms` to `to_ms`, both included."""
        return scanned(asked, wanted)

    @api.post("/v1/stores/{store}/windows", tags=["window stores"], responses=AS_ARROW)
    def long_windows(asked: asked_by, wanted: Annotated[WindowParameters, Body()]) -> Response:
        """Return the same, with parameters that are too long for a URL."""
        return scanned(asked, wanted)

    @api.get("/v1/stores/{store}/sessions", tags=["session stores"], responses=AS_ARROW)
    def sessions(asked: asked_by, wanted: Annotated[SessionParameters, Query()]) -> Response:
        """Return the sessions of one key, or of all keys, that have any time from `from_ms` to `to_ms`, both included."""
        return scanned(asked, wanted)

    @api.post("/v1/stores/{store}/sessions", tags=["session stores"], responses=AS_ARROW)
    def long_sessions(asked: asked_by, wanted: Annotated[SessionParameters, Body()]) -> Response:
        """Return the same, with parameters that are too long for a URL."""
        return scanned(asked, wanted)

    @api.get("/v1/stores/{store}/count", tags=["stores"])
    def count(asked: asked_by, approximate: bool = False) -> Response:
        """Count keys, windows or sessions: exactly, which reads all of them, or approximately, which reads none."""
        answer = router.count(asked.store, approximate, asked.request)
        return _json({"count": answer.count, "is_approximate": approximate, **_positions(answer)})

    @api.get("/v1/stores/{store}/watch", tags=["streams"], responses=AS_EVENTS)
    async def watch(
        asked: asked_by,
        key: str | None = None,
        key_hex: str | None = None,
        after: Annotated[str, Query(description="position after which the watch begins; without it, now")] = "",
        last_event_id: Annotated[
            str, Header(description="id of the last event that was seen, instead of `after`")
        ] = "",
    ) -> Response:
        """Send the changes of a key, or of the whole store, as server-sent events, each after its commit."""
        named = _bytes("key", key, key_hex)
        offsets, batches = parse_position(last_event_id or after)
        if batches:
            raise QueryInvalid("a watch cannot begin at the batch of a commit record", "pass the position of an answer")
        tasks = router.watched(asked.store, named, asked.request)
        return await slots.respond(EVENT_STREAM, lambda: live.changes.watch(asked.store, tasks, named, offsets))

    @api.get("/v1/stores/{store}/export", tags=["streams"], responses=AS_ARROW)
    async def export(request: Request, asked: asked_by) -> Response:
        """Send all contents of one task's store, which `task` names, as an Arrow stream of one snapshot."""
        task = asked.request.task
        if task is None:
            raise QueryInvalid("task is missing", "export one task after another; /v1/metadata lists those of a store")
        params = {name: value for name, value in request.query_params.items() if name != "task"}
        stall_s = settings.query_stall_ms / 1000
        return await slots.respond(
            ARROW_STREAM, lambda: router.export(asked.store, task, params, stall_s, asked.request)
        )

    @api.get("/v1/events", tags=["process"], responses=AS_EVENTS)
    async def events(
        who: known,
        last_event_id: Annotated[str, Header(description="id of the last event that was seen")] = "",
    ) -> Response:
        """Send the state transitions, rebalances and restores of this instance as server-sent events, from the last 1000 on."""
        who.require_all()
        feed = live.events
        if feed is None:
            raise NoEvents(
                f"{router.host.holder} is a standby, which has no states of an instance",
                "ask an instance; /v1/metadata shows how far the copies of a standby are",
            )
        return await slots.respond(EVENT_STREAM, lambda: FeedReader(feed, last_event_id))

    @api.get("/v1/metadata", tags=["stores"])
    def metadata(asked: asked_by, key: str | None = None, key_hex: str | None = None) -> Response:
        """Return who holds the tasks of a store, or the task of a key, and how far each copy is."""
        named = _bytes("key", key, key_hex)
        return _json({"tasks": router.metadata(asked.store, named, asked.request)})

    @api.post("/v1/stores/{store}/tasks/{task_id}", tags=["between processes"], responses=AS_ARROW)
    def task_read(asked: asked_by, task_id: str, body: Annotated[dict[str, Any], Body()]) -> Response:
        """Answer one read of one task for another process, from what this process holds."""
        try:
            read = TaskRead.from_dict(body).at_most(settings.query_page_records)
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            raise QueryInvalid(
                f"the read of task {task_id} cannot be understood: {error}",
                "run the same version of Tidemark everywhere",
            ) from error
        answer = router.local(asked.store, _task(task_id), read, asked.request.deadline)
        return Response(answer.to_arrow(), media_type=ARROW_STREAM)

    @api.get("/v1/stores/{store}/tasks/{task_id}/export", tags=["between processes"], responses=AS_ARROW)
    async def task_export(asked: asked_by, task_id: str) -> Response:
        """Send all contents of one task's store for another process, from what this process holds."""
        task = router.require_task(asked.store, _task(task_id))
        bounds = asked.request.bounds
        return await slots.respond(
            ARROW_STREAM, lambda: TaskExport(router.host, task, asked.store, bounds, settings.query_timeout_ms)
        )

    return api


def _handle_errors(api: FastAPI) -> None:
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


def _may_read(caller: Caller, store: str) -> bool:
    try:
        caller.require(store)
    except QueryRefused:
        return False
    return True


def _described(name: str, store: QueryableStore) -> dict[str, Any]:
    return {
        "name": name,
        "kind": store.spec.kind.value,
        "subtopology": store.subtopology.index,
        "retention_ms": store.spec.retention_ms,
        "columns": {field.name: str(field.type) for field in store.schema.field(VALUE).type},
    }


def _page(asked: Asking, answer: routing.Answer) -> Response:
    if asked.wants_arrow:
        return _arrow(answer)
    return _json({"entries": _entries(answer), **_end(answer)})


def _arrow(answer: routing.Answer) -> Response:
    return Response(arrow_stream(answer.table, _end(answer)), media_type=ARROW_STREAM)


def _end(answer: routing.Answer) -> dict[str, Any]:
    return {"cursor": None if answer.cursor is None else answer.cursor.encode(), **_positions(answer)}


def _positions(answer: routing.Answer) -> dict[str, Any]:
    return {
        "position": position_token(answer.positions),
        "positions": [position.to_dict() for position in answer.positions],
    }


def _json(body: dict[str, Any]) -> Response:
    return JSONResponse(body)


def _entries(answer: routing.Answer) -> list[dict[str, Any]]:
    return [json_entry(row) for row in answer.table.to_pylist()]


def _bytes(name: str, text: str | None, hexadecimal: str | None) -> bytes | None:
    if text is not None and hexadecimal is not None:
        raise QueryInvalid(f"both {name} and {name}{HEX} are given", "leave one of them out")
    try:
        if hexadecimal is None:
            return None if text is None else text.encode()
        return bytes.fromhex(hexadecimal)
    except UnicodeEncodeError:
        raise QueryInvalid(f"{name} is not Unicode text", f"pass its bytes as {name}{HEX}") from None
    except ValueError:
        raise QueryInvalid(f"{name}{HEX} is not hexadecimal", "write two digits per byte, such as 00ff") from None


def _required(name: str, value: bytes | None) -> bytes:
    if value is None:
        raise QueryInvalid(f"{name} is missing", f"pass {name}=TEXT or {name}{HEX}=BYTES; an empty {name} is {name}=")
    return value


def _task(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError:
        raise QueryInvalid(f"{text!r} is not a task", "write subtopology and partition, such as 0_1") from None
