"""The HTML of the Streams page: whole pages, and the sections that are sent again when they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from tidemark.html_page import render_page
from tidemark.overview.application import Application, ApplicationState
from tidemark.overview.chart import size_chart, throughput_chart
from tidemark.overview.concerns import Action, ActionKind, Concern, Severity, concerns, operations, stream_dag_id
from tidemark.overview.figures import drawing_figures
from tidemark.overview.format import (
    format_age,
    format_bytes,
    format_clock,
    format_count,
    format_moment,
    format_prose,
    format_span,
)
from tidemark.overview.forms import DagForm, Field
from tidemark.overview.rights import Rights
from tidemark.overview.sampler import Overview
from tidemark.overview.store_history import SizePoint
from tidemark.redaction import redacted
from tidemark.topology.drawing.layout import live_picture
from tidemark.verdict import Verdict

OVERVIEW_SECTIONS = ("summary", "concerns", "streams")
APPLICATION_SECTIONS = (
    "head", "concerns", "figures", "restores", "throughput", "drawing", "processes", "stores", "sizes", "checks", "drills",
    "letters", "cases", "events",
)  # fmt: skip

# The word is always written beside the colour.
_TONES = {
    ApplicationState.RUNNING: "good",
    ApplicationState.RESTORING: "busy",
    ApplicationState.STARTING: "busy",
    ApplicationState.STOPPING: "busy",
    ApplicationState.HELD: "busy",
    ApplicationState.WAITING: "bad",
    ApplicationState.STALLED: "bad",
    ApplicationState.DOWN: "bad",
    ApplicationState.FAILED: "bad",
    ApplicationState.STOPPED: "idle",
    ApplicationState.NEVER_RAN: "idle",
    ApplicationState.UNKNOWN: "warn",
}
_VERDICT_TONES = {
    Verdict.OK: "good",
    Verdict.NOT_ENOUGH_EVIDENCE: "idle",
    Verdict.WARNING: "warn",
    Verdict.FAILED: "bad",
}
_SEVERITY_TONES = {Severity.CRITICAL: "bad", Severity.WARNING: "warn"}


@dataclass(frozen=True)
class Links:
    """Addresses of pages. `airflow` and `streams` are the paths under which Airflow and this page are served, without `/`."""

    airflow: str
    streams: str

    @property
    def overview(self) -> str:
        """The page of all streams."""
        return f"{self.streams}/"

    def application(self, topology: str) -> str:
        """The page of one stream."""
        return f"{self.streams}/applications/{quote(topology, safe='')}"

    def report(self, topology: str, case_id: str) -> str:
        """The report of a case."""
        return f"{self.application(topology)}/cases/{quote(case_id, safe='')}"

    def audit(self, topology: str) -> str:
        """The page of the last audit."""
        return f"{self.application(topology)}/audit"

    def dag(self, dag_id: str) -> str:
        """Airflow's page of a DAG."""
        return f"{self.airflow}/dags/{quote(dag_id, safe='')}"

    def runs(self, dag_id: str) -> str:
        """The address of Airflow's API that triggers a DAG."""
        return f"{self.airflow}/api/v2/dags/{quote(dag_id, safe='')}/dagRuns"

    def action(self, action: Action) -> str:
        """The page that a button opens. That of a trigger is our own form, as Airflow has no address of one with values."""
        if action.kind is ActionKind.TRIGGER:
            return f"{self.streams}/forms/{quote(action.dag_id, safe='')}?{urlencode(action.params)}"
        return self.dag(action.dag_id) + ("/required_actions" if action.kind is ActionKind.ANSWER else "")

    def updates(self, topology: str | None) -> str:
        """The stream of changed sections of a page."""
        return f"{self.streams}/updates" + ("" if topology is None else f"?topology={quote(topology, safe='')}")


def overview_sections(overview: Overview, rights: Rights, links: Links) -> dict[str, str]:
    """Return the sections of the page of all streams, by name."""
    overview = replace(overview, applications=tuple(_shown(app, rights) for app in overview.applications))
    found = [(app, concern) for app in overview.applications for concern in concerns(app)]
    values = _values(overview, rights, links) | {
        "concerns": sorted(found, key=lambda one: list(Severity).index(one[1].severity)),
        "concerned": {app.topology for app, _ in found},
        "idle": sum(_is_idle(app) for app in overview.applications),
        "unreadable": [app.topology for app in overview.applications if not _is_idle(app) and app.live_fault],
        "uncounted": [app.topology for app in overview.applications if not _is_idle(app) and _letters_fault(app)],
        "unread": _unread(overview),
        "is_named": True,
    }
    return {name: render_page(f"overview/{name}.html", **values) for name in OVERVIEW_SECTIONS}


def _is_idle(app: Application) -> bool:
    return _TONES[app.state] == "idle"


def _letters_fault(app: Application) -> str | None:
    """Return why the stream's dead letters cannot be counted, although its other live figures are known; None if they can."""
    return None if app.live is None else app.live.letters_fault


def _unread(overview: Overview) -> list[str]:
    """Return what must be known of every stream that should run before all can be called well, and is not.

    Live figures that cannot be read are a fault, which is named with the stream.
    """
    active = [app for app in overview.applications if not _is_idle(app)]
    live = [app.live for app in active if not app.live_fault]
    unread = {
        "the state of the processes": not all(app.are_files_known for app in active),
        "the live figures": any(one is None or one.figures is None for one in live),
        "the history": overview.history_fault is not None or any(app.history is None for app in active),
        "every topology": bool(overview.unloadable),
    }
    return [what for what, is_unread in unread.items() if is_unread]


def application_sections(overview: Overview, app: Application, rights: Rights, links: Links) -> dict[str, str]:
    """Return the sections of the page of one stream, by name."""
    app, reads_data = _shown(app, rights), rights.reads_data_of(app.topology)
    known = app.live is not None and app.live.figures is not None
    values = _values(overview, rights, links) | {
        "app": app,
        "concerns": [(app, concern) for concern in concerns(app)],
        "is_named": False,
        "operations": rights.allowed(operations(app)),
        "reads_data": reads_data,
        "samples": app.live.samples if app.live is not None and reads_data else (),
        "stream_dag": stream_dag_id(app.topology),
        "drawing": Markup(live_picture(app.plan, drawing_figures(app))),
        "chart": _chart(app) if known else None,
        "size_rows": [_size_row(store, points) for store, points in app.sizes.of.items()]
        if app.sizes is not None
        else [],
    }
    return {name: render_page(f"overview/{name}.html", **values) for name in APPLICATION_SECTIONS}


def _shown(app: Application, rights: Rights) -> Application:
    """Return the stream with what this person may see: findings show records only to those who may run its DAG."""
    if app.history is None or rights.reads_data_of(app.topology):
        return app
    checks = tuple(
        replace(check, findings=tuple(redacted(one) for one in check.findings)) for check in app.history.checks
    )
    return replace(app, history=replace(app.history, checks=checks))


def whole_page(title: str, sections: Mapping[str, str], links: Links, topology: str | None, nonce: str) -> str:
    """Return a page with its sections, its style and its script. `nonce` allows these two, and nothing else, to the browser."""
    return render_page(
        "overview/page.html",
        title=title,
        sections=[Markup(section) for section in sections.values()],
        updates=links.updates(topology),
        overview=links.overview,
        topology=topology,
        nonce=nonce,
    )


def message_page(title: str, message: str, link: str, label: str, nonce: str) -> str:
    """Return a page that says why there is nothing to see, and where to go."""
    return render_page("overview/message.html", title=title, message=message, link=link, label=label, nonce=nonce)


def form_page(
    form: DagForm, fields: Sequence[Field], links: Links, topology: str | None, run_id: str, nonce: str
) -> str:
    """Return the page with a DAG's form. However often it is sent, it starts one run, `run_id`."""
    return render_page(
        "overview/form.html",
        form=form,
        fields=fields,
        links=links,
        topology=topology,
        run_id=run_id,
        nonce=nonce,
        prose=format_prose,
    )


def _chart(app: Application) -> Markup:
    figures = app.live.figures if app.live is not None else None
    return Markup(throughput_chart(figures.throughput if figures is not None else ()))


@dataclass(frozen=True)
class _SizeLine:
    """The last known size, and the line of all; None if there is none, or only one."""

    last: str | None
    chart: Markup | None


@dataclass(frozen=True)
class _SizeRow:
    """The sizes of a store over time."""

    store: str
    since_ms: int
    keys: _SizeLine
    bytes_disk: _SizeLine


def _size_row(store: str, points: Sequence[SizePoint]) -> _SizeRow:
    keys = [(point.time_ms, point.keys) for point in points if point.keys is not None]
    size = [(point.time_ms, point.bytes_disk) for point in points if point.bytes_disk is not None]
    return _SizeRow(
        store,
        points[0].time_ms,
        _size_line(f"Keys of {store}", keys, format_count),
        _size_line(f"Bytes of {store}", size, format_bytes),
    )


def _size_line(what: str, points: Sequence[tuple[int, int]], show: Callable[[int], str]) -> _SizeLine:
    if not points:
        return _SizeLine(None, None)
    return _SizeLine(show(points[-1][1]), Markup(size_chart(what, points, show)) if len(points) > 1 else None)


def _values(overview: Overview, rights: Rights, links: Links) -> dict[str, Any]:
    """Return what every template may use."""

    def buttons(concern: Concern) -> list[Action]:
        return [] if concern.action is None else rights.allowed([concern.action])

    formats: dict[str, Callable[..., str]] = {
        "age": lambda time_ms: format_age(time_ms, overview.now_ms),
        "bytes": format_bytes,
        "clock": format_clock,
        "count": format_count,
        "moment": format_moment,
        "prose": format_prose,
        "span": format_span,
    }
    return {
        **formats,
        "view": overview,
        "links": links,
        "buttons": buttons,
        "tones": _TONES,
        "verdict_words": {verdict: "OK" if verdict is Verdict.OK else str(verdict).capitalize() for verdict in Verdict},
        "verdict_tones": _VERDICT_TONES,
        "severity_tones": _SEVERITY_TONES,
    }
