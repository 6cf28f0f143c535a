"""The HTTP interface of queries: routes under `/v1`, who may call them, and the form of their answers."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Body, Depends, FastAPI, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param

from tidemark.metrics.registry import TEXT_FORMAT, Scrape
from tidemark.queries import router as routing
from tidemark.queries.access import Caller, RateLimit, Tokens
from tidemark.queries.answer_form import ARROW_STREAM, VALUE, arrow_stream, json_entry
from tidemark.queries.catalog import QueryableStore
from tidemark.queries.cursor import Cursor
from tidemark.queries.errors import NoEvents, QueryInvalid, QueryRefused, StateUnavailable
from tidemark.queries.event_feed import FeedReader
from tidemark.queries.export import TaskExport
from tidemark.queries.parameters import (
    AskedKeys,
    CountParameters,
    KeyParameters,
    KeysParameters,
    MetadataParameters,
    RangeInUrl,
    RangeParameters,
    ReadParameters,
    ScanParameters,
    SessionParameters,
    SessionsInUrl,
    TaskParameters,
    WatchParameters,
    WindowParameters,
    WindowsInUrl,
    parse_task,
)
from tidemark.queries.part_source import LiveSources
from tidemark.queries.peers import APPLICATION, LAUNCH, PASSED_TASK, TIME_LEFT
from tidemark.queries.position import parse_position, position_token
from tidemark.queries.problems import PROBLEMS, BodyLimit, Problem, handle_errors
from tidemark.queries.query_api import QueryApi
from tidemark.queries.read_route import read_route
from tidemark.queries.server_events import EVENT_STREAM
from tidemark.queries.store_reader import Deadline
from tidemark.queries.streamed_response import StreamSlots
from tidemark.queries.task_read import TaskRead
from tidemark.settings import Settings

_TIME = re.compile(r"[0-9]{1,9}")
_KEYS_EXAMPLE = {"keys": ["a"], "keys_hex": ["00ff"]}
_SEEN: Any = HTTPBearer(auto_error=False, description="a token of this application")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_RATE_BETWEEN = 10
"""A read of several tasks is sent once for each: reads of other processes may come this many times as often as a caller's."""
DEFAULT_LIMIT = 1000
"""Results of one page unless the caller wants more."""


AS_ARROW: dict[int | str, dict[str, Any]] = {200: {"content": {ARROW_STREAM: {}}}}
AS_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {EVENT_STREAM: {}}}}
"""Answers in the description: Arrow streams, which a caller has to accept, and server-sent events."""


@dataclass(frozen=True)
class Asking:
    """A request whose caller may read the store, before its parameters are read."""

    store: QueryableStore
    deadline: Deadline
    authorization: str
    wants_arrow: bool
    threads: Executor
    passed_task: str | None = None
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, QueryRefused] = field(default_factory=dict)

    def request(self, wanted: TaskParameters) -> routing.Request:
        """Return the request with the parameters of the URL. Raises `QueryInvalid`."""
        passed = self.passed_task
        task = wanted.only_task() if passed is None else parse_task(passed)
        return routing.Request(
            wanted.bounds(), self.deadline, self.authorization, task, passed is not None, self.refusals
        )


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
        router.peers.close_kept()

    api = QueryApi(
        title=f"Queries of {router.catalog.application_id}",
        version="1",
        lifespan=lifespan,
        # These would answer without a token.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    handle_errors(api)
    api.add_middleware(BodyLimit)
    rates = RateLimit(settings.query_requests_per_second)
    between = _RATE_BETWEEN * settings.query_requests_per_second
    rates_between = RateLimit(max(between, len(router.tasks)) if between else 0)
    application_id = router.catalog.application_id
    launched = {LAUNCH: router.launch}
    slots = StreamSlots(settings.query_streams, settings.query_stall_ms / 1000, live.closing)

    # This and `asking` read nothing. As plain functions they would run in the threads of queries: each request would wait for
    # three threads instead of one, and one without a token would wait for the queries of others.
    def caller_with(request: Request, token: str | None, limit: RateLimit = rates) -> Caller:
        found = tokens.caller(token)
        limit.require(found)
        meant = request.headers.get(APPLICATION, application_id)
        if meant != application_id:
            raise StateUnavailable(
                f"this is a process of {application_id}, not of {meant}", f"ask a process of {meant}"
            )
        return found

    async def caller(request: Request, seen: Annotated[HTTPAuthorizationCredentials | None, Depends(_SEEN)]) -> Caller:
        return caller_with(request, None if seen is None else seen.credentials)

    async def process(request: Request, seen: Annotated[HTTPAuthorizationCredentials | None, Depends(_SEEN)]) -> Caller:
        return caller_with(request, None if seen is None else seen.credentials, rates_between)

    known = Annotated[Caller, Depends(caller)]

    # A read that another process sent asks no further process. These have threads of their own, so two processes never wait for
    # each other's threads.
    threads, threads_for_processes = (
        ThreadPoolExecutor(settings.query_threads, name) for name in ("query", "query-of-process")
    )

    def asking_for(store: str, who: Caller, request: Request) -> Asking:
        who.require(store)
        left = request.headers.get(TIME_LEFT, "")
        timeout_ms = settings.query_timeout_ms
        return Asking(
            router.catalog.store(store, who.may_read),
            Deadline.after(min(timeout_ms, int(left)) if _TIME.fullmatch(left) else timeout_ms),
            request.headers["authorization"],
            ARROW_STREAM in request.headers.get("accept", ""),
            threads,
        )

    async def asking(store: str, who: known, request: Request) -> Asking:
        return asking_for(store, who, request)

    asked_by = Annotated[Asking, Depends(asking)]

    async def ask(request: Request) -> Asking:
        # As `_SEEN` does.
        scheme, token = get_authorization_scheme_param(request.headers.get("authorization"))
        passed = request.headers.get(PASSED_TASK)
        is_between = passed is not None or "task_id" in request.path_params
        who = caller_with(
            request, token if scheme.lower() == "bearer" else None, rates_between if is_between else rates
        )
        asked = asking_for(request.path_params["store"], who, request)
        if not is_between:
            return asked
        return replace(asked, threads=threads_for_processes, passed_task=passed, answer_headers=launched)

    async def pass_on(request: Request, asked: Asking, wanted: ReadParameters, named: AskedKeys) -> Response | Asking:
        keys = named.asked_keys(settings.query_page_records)
        found = router.other_holder(asked.store, keys, asked.request(wanted))
        if found is None:
            return asked
        to = found.endpoint
        # The body of a `GET` has no meaning, and could be of any length.
        body = await request.body() if request.method == "POST" else b""
        refused: QueryRefused
        try:
            answer = await router.peers.pass_on(to.url, request, found.task, body, found.answer_s)
            if answer.status == 200:
                router.require_announced(to, answer.headers.get(LAUNCH))
                return Response(answer.body, media_type=answer.headers.get("content-type"))
            refused = routing.refusal(to, answer.status, answer.body)
        except StateUnavailable as silent:
            refused = silent
        return replace(asked, refusals={to.holder: refused})

    reads = APIRouter(route_class=read_route(ask, pass_on))

    def scanned(asked: Asking, scan: ScanParameters, wanted: ReadParameters) -> Response:
        # A page may have fewer results than were asked for; its cursor leads to the others.
        limit = min(DEFAULT_LIMIT if scan.limit is None else scan.limit, settings.query_page_records)
        at = None if scan.cursor is None else Cursor.decode(scan.cursor)
        return _page(asked, router.scan(asked.store, scan.query(), at, limit, asked.request(wanted)))

    @reads.get("/v1/stores/{store}/key", tags=["key-value stores"], responses=AS_ARROW)
    def key(asked: asked_by, wanted: Annotated[KeyParameters, Query()]) -> Response:
        """Return the value of one key of a key-value store; `entry` is null if the key does not exist."""
        answer = router.keys(asked.store, [wanted.required_key()], asked.request(wanted))
        if asked.wants_arrow:
            return _arrow(answer)
        entries = _entries(answer)
        if len(entries) > 1:
            raise QueryInvalid(
                f"{len(entries)} tasks of store {asked.store.spec.name} hold the key",
                "ask one of them with task=, or POST /keys, which returns the value of each",
            )
        return _json({"entry": entries[0] if entries else None, **_positions(answer)})

    @reads.post("/v1/stores/{store}/keys", tags=["key-value stores"], responses=AS_ARROW)
    def keys(
        asked: asked_by,
        wanted: Annotated[ReadParameters, Query()],
        body: Annotated[KeysParameters, Body(examples=[_KEYS_EXAMPLE])],
    ) -> Response:
        """Return the values of many or of large keys. A key that does not exist has no entry."""
        named = body.asked_keys(settings.query_page_records)
        return _page(asked, router.keys(asked.store, named, asked.request(wanted)))

    @reads.get("/v1/stores/{store}/range", tags=["key-value stores"], responses=AS_ARROW)
    def range_(asked: asked_by, wanted: Annotated[RangeInUrl, Query()]) -> Response:
        """Return the keys that begin with `prefix`, or those from `start` to before `end`, or all, ordered by their bytes."""
        return scanned(asked, wanted, wanted)

    @reads.post("/v1/stores/{store}/range", tags=["key-value stores"], responses=AS_ARROW)
    def long_range(
        asked: asked_by, wanted: Annotated[ReadParameters, Query()], body: Annotated[RangeParameters, Body()]
    ) -> Response:
        """Return the same, with parameters that are too long for a URL."""
        return scanned(asked, body, wanted)

    @reads.get("/v1/stores/{store}/windows", tags=["window stores"], responses=AS_ARROW)
    def windows(asked: asked_by, wanted: Annotated[WindowsInUrl, Query()]) -> Response:
        """Return the windows of one key, or of all keys, whose start is from `from_ms` to `to_ms`, both included."""
        return scanned(asked, wanted, wanted)

    @reads.post("/v1/stores/{store}/windows", tags=["window stores"], responses=AS_ARROW)
    def long_windows(
        asked: asked_by, wanted: Annotated[ReadParameters, Query()], body: Annotated[WindowParameters, Body()]
    ) -> Response:
        """Return the same, with parameters that are too long for a URL."""
        return scanned(asked, body, wanted)

    @reads.get("/v1/stores/{store}/sessions", tags=["session stores"], responses=AS_ARROW)
    def sessions(asked: asked_by, wanted: Annotated[SessionsInUrl, Query()]) -> Response:
        """Return the sessions of one key, or of all keys, that have any time from `from_ms` to `to_ms`, both included."""
        return scanned(asked, wanted, wanted)

    @reads.post("/v1/stores/{store}/sessions", tags=["session stores"], responses=AS_ARROW)
    def long_sessions(
        asked: asked_by, wanted: Annotated[ReadParameters, Query()], body: Annotated[SessionParameters, Body()]
    ) -> Response:
        """Return the same, with parameters that are too long for a URL."""
        return scanned(asked, body, wanted)

    @reads.get("/v1/stores/{store}/count", tags=["stores"])
    def count(asked: asked_by, wanted: Annotated[CountParameters, Query()]) -> Response:
        """Count keys, windows or sessions: exactly, which reads all of them, or approximately, which reads none."""
        answer = router.count(asked.store, wanted.approximate, asked.request(wanted))
        return _json({"count": answer.count, "is_approximate": wanted.approximate, **_positions(answer)})

    @reads.post("/v1/stores/{store}/tasks/{task_id}", tags=["between processes"], responses=AS_ARROW)
    def task_read(
        asked: asked_by,
        task_id: str,
        wanted: Annotated[ReadParameters, Query()],
        body: Annotated[dict[str, Any], Body()],
    ) -> Response:
        """Answer one read of one task for another process, from what this process holds."""
        try:
            read = TaskRead.from_dict(body).at_most(settings.query_page_records)
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            raise QueryInvalid(
                f"the read of task {task_id} cannot be understood: {error}",
                "run the same version of Tidemark everywhere",
            ) from error
        answer = router.local(asked.store, parse_task(task_id), read, asked.request(wanted).deadline)
        return Response(answer.to_arrow(), media_type=ARROW_STREAM)

    api.include_reads(reads)

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
        allowed = {name: store for name, store in named if who.may_read(name)}
        return {
            "application_id": router.catalog.application_id,
            "topology_version": topology_version,
            "stores": [_described(name, store) for name, store in allowed.items()],
        }

    @api.get("/v1/stores/{store}/watch", tags=["streams"], responses=AS_EVENTS)
    async def watch(
        asked: asked_by,
        wanted: Annotated[WatchParameters, Query()],
        last_event_id: Annotated[
            str, Header(description="id of the last event that was seen, instead of `after`")
        ] = "",
    ) -> Response:
        """Send the changes of a key, or of the whole store, as server-sent events, each after its commit."""
        named = wanted.key_bytes()
        offsets, batches = parse_position(last_event_id or wanted.after)
        if batches:
            raise QueryInvalid("a watch cannot begin at the batch of a commit record", "pass the position of an answer")
        tasks = router.watched(asked.store, named, asked.request(wanted))
        return await slots.respond(EVENT_STREAM, lambda: live.changes.watch(asked.store, tasks, named, offsets))

    @api.get("/v1/stores/{store}/export", tags=["streams"], responses=AS_ARROW)
    async def export(request: Request, asked: asked_by, wanted: Annotated[ReadParameters, Query()]) -> Response:
        """Send all contents of one task's store, which `task` names, as an Arrow stream of one snapshot."""
        read = asked.request(wanted)
        task = read.task
        if task is None:
            raise QueryInvalid("task is missing", "export one task after another; /v1/metadata lists those of a store")
        params = {name: value for name, value in request.query_params.items() if name != "task"}
        stall_s = settings.query_stall_ms / 1000
        return await slots.respond(ARROW_STREAM, lambda: router.export(asked.store, task, params, stall_s, read))

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
    def metadata(who: known, request: Request, wanted: Annotated[MetadataParameters, Query()]) -> Response:
        """Return who holds the tasks of a store, or the task of a key, and how far each copy is."""
        asked = asking_for(wanted.store, who, request)
        return _json({"tasks": router.metadata(asked.store, wanted.key_bytes(), asked.request(wanted))})

    @api.get("/v1/stores/{store}/tasks/{task_id}/export", tags=["between processes"], responses=AS_ARROW)
    async def task_export(
        store: str,
        who: Annotated[Caller, Depends(process)],
        request: Request,
        task_id: str,
        wanted: Annotated[ReadParameters, Query()],
    ) -> Response:
        """Send all contents of one task's store for another process, from what this process holds."""
        asked = asking_for(store, who, request)
        bounds = asked.request(wanted).bounds
        task = router.require_task(asked.store, parse_task(task_id))
        response = await slots.respond(
            ARROW_STREAM, lambda: TaskExport(router.host, task, asked.store, bounds, settings.query_timeout_ms)
        )
        response.headers.update(launched)
        return response

    return api


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
    return Response(_ENCODER.encode(body).encode(), media_type="application/json")


def _entries(answer: routing.Answer) -> list[dict[str, Any]]:
    return [json_entry(row) for row in answer.rows()]
