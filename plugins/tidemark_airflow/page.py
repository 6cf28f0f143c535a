"""The routes of the Streams page. Each asks Airflow who is there, shows only the streams whose DAGs that person may see, and
buttons only for DAGs that the person may run.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from tidemark.errors import TidemarkError
from tidemark.metrics.metric import Readings
from tidemark.metrics.registry import TEXT_FORMAT, MetricRegistry
from tidemark.overview.application import Application
from tidemark.overview.cases import report_page
from tidemark.overview.concerns import stream_dag_id
from tidemark.overview.forms import fields_of
from tidemark.overview.metrics import read_applications, read_dags, read_unloadable
from tidemark.overview.pages import (
    Links,
    application_sections,
    form_page,
    message_page,
    overview_sections,
    whole_page,
)
from tidemark.overview.rights import Rights
from tidemark.overview.sampler import LoadedTopologies, Overview, Sampler
from tidemark.overview.scrape_targets import scrape_targets
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import forget_modules, module_versions
from tidemark_airflow.page_access import dags_of, dags_that_are_on, form_of, login_address, rights_of
from tidemark_airflow.page_mount import URL_PREFIX

_UPDATE_S = 3.0
_STREAM_S = 20.0
"""An open stream of updates ends after this time. The browser opens the next one, which asks Airflow again who is there."""
_MODULES_S = 3.0
"""The least time between two comparisons of the topology modules' files. They are compared only when a page is requested."""
_RENDERED_S = 1.0
"""Tabs that show the same to people with the same rights share what was rendered within this time."""
_OPERATION_DAGS = (
    "compaction_check", "durability_check", "exactly_once_audit", "lag_check", "repair", "rescale", "reset", "restore_drill",
    "restore_oncall", "retention_check", "savepoint", "upgrade",
)  # fmt: skip
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _UNPROCESSABLE = 401, 403, 404, 422

Sections = Mapping[str, str]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Visitor:
    """A person whom Airflow knows, and what that person may do."""

    rights: Rights
    links: Links


class StreamsView:
    """What the routes show: one sampler for everybody, and what was rendered last."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._versions = module_versions()
        self._looked_s = time.monotonic()
        self._loading = threading.Lock()
        self.topologies = LoadedTopologies.load()
        self._sampler = Sampler(settings, self.topologies)
        self._metrics = MetricRegistry({})
        self._rendered: dict[tuple[str | None, Visitor], tuple[float, Sections]] = {}
        self._lock = threading.Lock()

    def follow_modules(self) -> None:
        """Load the topologies again if a module was added, changed or removed. Looks every few seconds, in one thread."""
        if not self._loading.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self._looked_s < _MODULES_S:
                return
            # Read before the modules, so that a change in between is found by the next look.
            versions = module_versions()
            if versions != self._versions:
                forget_modules()
                self.topologies = LoadedTopologies.load()
                # The threads of the previous sampler end by themselves half a minute after its last use.
                self._sampler = Sampler(self.settings, self.topologies)
                self._versions = versions
            self._looked_s = time.monotonic()
        finally:
            self._loading.release()

    @property
    def dag_ids(self) -> list[str]:
        """The DAGs that the page shows or whose forms its buttons open."""
        known = (self.topologies.plans, self.topologies.faults, self.topologies.copies)
        return [*(stream_dag_id(name) for names in known for name in names), *_OPERATION_DAGS]

    def plans(self, rights: Rights) -> Mapping[str, TopologyPlan]:
        """Return by name the topologies that may be seen."""
        return _readable(self.topologies.plans, rights)

    def overview(self, rights: Rights) -> Overview:
        """Return what may be seen. Blocks for half a second at most."""
        seen = self.plans(rights)
        overview = self._sampler.overview(dags_that_are_on(seen))
        return replace(
            overview,
            applications=tuple(app for app in overview.applications if app.topology in seen),
            unloadable=_readable(overview.unloadable, rights),
            copies=_readable(overview.copies, rights),
        )

    def sections(self, topology: str | None, visitor: Visitor) -> Sections | None:
        """Return the sections of a page, perhaps those of a second ago; None if there is no such stream for this person."""
        key = (topology, visitor)
        with self._lock:
            at_s, sections = self._rendered.get(key, (0.0, {}))
            if time.monotonic() - at_s < _RENDERED_S:
                return sections
            overview = self.overview(visitor.rights)
            if topology is None:
                sections = overview_sections(overview, visitor.rights, visitor.links)
            elif (app := overview.application(topology)) is not None:
                sections = application_sections(overview, app, visitor.rights, visitor.links)
            else:
                return None
            now_s = time.monotonic()
            fresh = {k: kept for k, kept in self._rendered.items() if now_s - kept[0] < _STREAM_S}
            self._rendered = fresh | {key: (now_s, sections)}
            return sections

    def metrics(self, rights: Rights) -> bytes:
        """Return the metrics of what may be seen, in Prometheus's text format. Blocks for half a second at most."""

        def read(readings: Readings) -> None:
            overview = self.overview(rights)
            read_unloadable(readings, overview.unloadable)
            read_applications(readings, overview.applications)
            read_dags(readings, dags_of(rights.readable))

        return self._metrics.scrape(read)

    def application(self, topology: str, rights: Rights) -> Application:
        """Return one stream. Raises `HTTPException` if there is none, or if this person may not see it."""
        app = self.overview(rights).application(topology)
        if app is None:
            raise HTTPException(_NOT_FOUND, f"there is no stream {topology} that you may see")
        return app


def _view(request: Request) -> StreamsView:
    found: StreamsView = request.app.state.view
    return found


Shown = Annotated[StreamsView, Depends(_view)]


def _visitor(request: Request, view: Shown, user: Annotated[BaseUser, Depends(get_user)]) -> Visitor:
    view.follow_modules()
    return Visitor(rights_of(user, view.dag_ids), _links(request))


Known = Annotated[Visitor, Depends(_visitor)]
ROUTES = APIRouter()


def make_app() -> FastAPI:
    """Return the application. Raises `InvalidSettings`."""
    app = FastAPI(title="Streams", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.view = StreamsView(Settings.load())
    app.include_router(ROUTES)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(TidemarkError, _failed)
    return app


@ROUTES.get("/")
def overview(view: Shown, who: Known) -> Response:
    """Show all streams."""
    return _page(view, "Streams", None, who)


@ROUTES.get("/applications/{topology}")
def application(topology: str, view: Shown, who: Known) -> Response:
    """Show one stream."""
    return _page(view, f"{topology} · Streams", topology, who)


@ROUTES.get("/dags/{dag_id}")
def tab(dag_id: str, view: Shown, who: Known) -> Response:
    """Show the stream of a DAG, for the tab on it."""
    topology = next((name for name in view.plans(who.rights) if stream_dag_id(name) == dag_id), None)
    if topology is not None:
        return _page(view, f"{topology} · Streams", topology, who)
    nonce, link = secrets.token_urlsafe(12), f"{who.links.airflow}/plugin/streams"
    if dag_id.startswith(stream_dag_id("")):
        title = "This stream is not shown"
        message = (
            "Its topology was not deployed to the API server yet, and is shown within seconds after that; or it does not load, "
            "and the page of all streams says why; or you may not see it."
        )
    else:
        title = "This DAG keeps no stream running"
        message = (
            "It works on streams, or has nothing to do with them. A stream's DAG has a name that begins with stream__."
        )
    return _html(message_page(title, message, link, "Show all streams", nonce), nonce)


@ROUTES.get("/applications/{topology}/cases/{case_id}")
def case(topology: str, case_id: str, view: Shown, who: Known) -> Response:
    """Show the report of a restore or a change."""
    app_id = view.application(topology, who.rights).application_id
    return _file(report_page(view.settings, app_id, case_id), "this case has no report")


@ROUTES.get("/applications/{topology}/audit")
def audit(topology: str, view: Shown, who: Known) -> Response:
    """Show the page of the last audit, which has records of what failed."""
    app_id = view.application(topology, who.rights).application_id
    if not who.rights.reads_data_of(topology):
        raise HTTPException(
            _FORBIDDEN, f"this page shows records, so only those who may run {stream_dag_id(topology)} see it"
        )
    return _file(view.settings.var_dir / "audit" / app_id / "pages" / "index.html", "no audit has written a page here")


@ROUTES.get("/forms/{dag_id}")
def form(dag_id: str, request: Request, view: Shown, who: Known) -> Response:
    """Show the form that triggers a DAG, with the values that the address has. The person's browser sends it to Airflow."""
    if dag_id not in who.rights.readable:
        raise HTTPException(_NOT_FOUND, f"there is no DAG {dag_id} of streams that you may see")
    if dag_id not in who.rights.triggerable:
        raise HTTPException(_FORBIDDEN, f"you may see the DAG {dag_id}, but not trigger it")
    found = form_of(dag_id)
    if found is None:
        raise HTTPException(_NOT_FOUND, f"Airflow has no DAG {dag_id}; it may not have read its file yet")
    given = {name: request.query_params.getlist(name) for name in request.query_params}
    try:
        fields = fields_of(found, given)
    except ValueError as error:
        raise HTTPException(_UNPROCESSABLE, str(error)) from error
    named = [value for name in ("topology", "topologies") for value in given.get(name, ())]
    topology = next((name for name in named if name in view.plans(who.rights)), None)
    nonce, run_id = secrets.token_urlsafe(12), f"manual__{datetime.now(UTC).isoformat()}_{secrets.token_hex(4)}"
    return _html(form_page(found, fields, who.links, topology, run_id, nonce), nonce)


@ROUTES.get("/metrics")
def metrics(view: Shown, who: Known) -> Response:
    """Show Prometheus the applications, checks, drills, audits and DAGs that this user may see."""
    return Response(view.metrics(who.rights), media_type=TEXT_FORMAT, headers=_headers("default-src 'none'"))


@ROUTES.get("/metrics/targets")
def targets(view: Shown, who: Known) -> Response:
    """Show Prometheus the instances and standbys on this machine that it can scrape, for `http_sd_configs`."""
    seen = [plan.application_id for plan in view.plans(who.rights).values()]
    found = [target.to_dict() for app in seen for target in scrape_targets(view.settings.var_dir, app, time.time())]
    return JSONResponse(found, headers=_headers("default-src 'none'"))


@ROUTES.get("/updates")
async def updates(view: Shown, who: Known, topology: str | None = None) -> Response:
    """Send the sections of a page that change, as server-sent events."""
    events = _updates(lambda: view.sections(topology, who))
    headers = {**_headers("default-src 'none'"), "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _page(view: StreamsView, title: str, topology: str | None, who: Visitor) -> Response:
    sections = view.sections(topology, who)
    if sections is None:
        raise HTTPException(_NOT_FOUND, f"there is no stream {topology} that you may see")
    nonce = secrets.token_urlsafe(12)
    return _html(whole_page(title, sections, who.links, topology, nonce), nonce)


async def _updates(render: Callable[[], Sections | None]) -> AsyncIterator[str]:
    """Yield the sections that differ from those that were sent before, every three seconds.

    Ends with the event `gone` when there is no such stream any more, or when this person may not see it.
    """
    sent: Sections = {}
    ends_s = time.monotonic() + _STREAM_S
    yield "retry: 1000\n\n"
    while time.monotonic() < ends_s:
        sections = await asyncio.to_thread(render)
        if sections is None:
            yield "event: gone\ndata: {}\n\n"
            return
        changed = {name: html for name, html in sections.items() if sent.get(name) != html}
        sent = sections
        yield f"event: sections\ndata: {json.dumps(changed)}\n\n"
        await asyncio.sleep(_UPDATE_S)


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a browser with a page that says what to do, and a program with JSON."""
    status, detail = getattr(error, "status_code", _FORBIDDEN), str(getattr(error, "detail", ""))
    if "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"detail": detail}, status, headers=_headers("default-src 'none'"))
    links, nonce = _links(request), secrets.token_urlsafe(12)
    if status == _UNAUTHORIZED:
        login = f"{links.airflow}{login_address()}"
        text = message_page("Log in to see the streams", "Airflow does not know who you are.", login, "Log in", nonce)
    else:
        titles = {_FORBIDDEN: "You may not do this", _UNPROCESSABLE: "This address is not right"}
        title = titles.get(status, "There is nothing here")
        text = message_page(title, f"{detail[:1].upper()}{detail[1:]}.", f"{links.airflow}/", "Open Airflow", nonce)
    return _html(text, nonce, status)


async def _failed(request: Request, error: Exception) -> Response:
    links, nonce = _links(request), secrets.token_urlsafe(12)
    text = message_page("The page cannot be shown", str(error), links.overview, "Try again", nonce)
    return _html(text, nonce, 503)


def _readable(by_topology: Mapping[str, _T], rights: Rights) -> dict[str, _T]:
    """Return what may be seen of a mapping whose keys are names of topologies."""
    return {name: each for name, each in by_topology.items() if stream_dag_id(name) in rights.readable}


def _links(request: Request) -> Links:
    streams = str(request.scope.get("root_path", "")).rstrip("/")
    return Links(streams.removesuffix(URL_PREFIX), streams)


def _html(text: str, nonce: str, status: int = 200) -> Response:
    allowed = f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'"
    return HTMLResponse(text, status, headers=_headers(allowed))


def _file(path: Path | None, missing: str) -> Response:
    """Return a page that was written before, which needs no script."""
    try:
        text = None if path is None else path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = None
    if text is None:
        raise HTTPException(_NOT_FOUND, missing)
    return HTMLResponse(text, headers=_headers("default-src 'none'; style-src 'unsafe-inline'"))


def _headers(allowed: str) -> dict[str, str]:
    policy = f"{allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }
