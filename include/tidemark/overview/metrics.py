"""The metrics of applications, checks, drills and audits, from what the Streams page knows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tidemark.metrics import table
from tidemark.metrics.metric import Metric, Readings
from tidemark.operations.drill_history.report import is_drillable
from tidemark.operations.drill_history.table import PastDrill
from tidemark.overview.application import Application, ApplicationState
from tidemark.overview.history import History
from tidemark.verdict import Verdict


@dataclass(frozen=True)
class LastRun:
    """The last run of a DAG that has this state. `began_ms` is in epoch milliseconds."""

    state: str
    began_ms: int


@dataclass(frozen=True)
class DagView:
    """A DAG: whether it is on, and its last run of each state."""

    dag_id: str
    is_on: bool
    runs: tuple[LastRun, ...] = ()


def read_unloadable(readings: Readings, unloadable: Collection[str]) -> None:
    """Add the number of the topologies that do not load to the values of a scrape. Takes their names."""
    readings.add(table.TOPOLOGIES_UNLOADABLE, len(unloadable))


def read_applications(readings: Readings, applications: Iterable[Application]) -> None:
    """Add everything about these applications to the values of a scrape. What is not known is left out."""
    for app in applications:
        _read_application(readings, app)
        if app.history is not None:
            _read_history(readings, app.application_id, app.history)


def read_dags(readings: Readings, dags: Iterable[DagView]) -> None:
    """Add DAGs to the values of a scrape."""
    for dag in dags:
        readings.add(table.DAG_ON, int(dag.is_on), dag.dag_id)
        for run in dag.runs:
            readings.add(table.DAG_LAST_RUN, run.began_ms / 1000, dag.dag_id, run.state)


def _read_application(readings: Readings, app: Application) -> None:
    name = app.application_id
    if app.is_wanted is not None:
        readings.add(table.APPLICATION_WANTED, int(app.is_wanted), name)
    if app.are_files_known:
        for state in ApplicationState:
            if state is not ApplicationState.UNKNOWN:
                readings.add(table.APPLICATION_STATE, int(state is app.state), name, state)
        readings.add(table.APPLICATION_INSTANCES, len(app.running), name)
        unwatched = [one for one in (*app.files.instances, *app.files.standbys) if one.is_watched is False]
        readings.add(table.APPLICATION_UNWATCHED, len(unwatched), name)
    readings.add(table.DRILLABLE, int(is_drillable(app.plan)), name)
    if app.lag is not None:
        readings.add(table.APPLICATION_LAG, app.lag, name)
    if app.last_commit_ms is not None:
        readings.add(table.APPLICATION_LAST_COMMIT, app.last_commit_ms / 1000, name)
    if app.savepoint is not None and app.savepoint.taken_ms is not None:
        readings.add(table.SAVEPOINT_TAKEN, app.savepoint.taken_ms / 1000, name)
    if app.history is not None or app.history_fault is not None:
        readings.add(table.FACTS_REACHABLE, int(app.history_fault is None), name)


def _read_history(readings: Readings, name: str, history: History) -> None:
    for check in history.checks:
        found = Counter(finding.verdict for finding in check.findings)
        for verdict in Verdict:
            readings.add(table.CHECK_FINDINGS, found[verdict], name, check.check, verdict)
        readings.add(table.CHECK_LAST_RUN, check.time_ms / 1000, name, check.check)
    if history.drills:
        _read_drills(readings, name, history.drills)
    if history.audit is not None:
        _read_verdict(readings, table.AUDIT_VERDICT, name, history.audit.verdict)
        readings.add(table.AUDIT_LAST_RUN, history.audit.time_ms / 1000, name)


def _read_drills(readings: Readings, name: str, drills: tuple[PastDrill, ...]) -> None:
    last = drills[0]
    _read_verdict(readings, table.DRILL_VERDICT, name, last.verdict)
    readings.add(table.DRILL_LAST_RUN, last.ended_ms / 1000, name)
    passed = next((drill for drill in drills if drill.verdict is Verdict.OK), None)
    if passed is not None:
        readings.add(table.DRILL_LAST_PASSED, passed.ended_ms / 1000, name)
    readings.add(table.DRILL_KEYS, last.keys, name)
    readings.add(table.DRILL_BYTES, last.bytes, name)
    for metric, value in (
        (table.DRILL_RTO, last.rto_s),
        (table.DRILL_RPO, last.rpo_offsets),
        (table.DRILL_RPO_TIME, last.rpo_s),
    ):
        if value is not None:
            readings.add(metric, value, name)


def _read_verdict(readings: Readings, metric: Metric, name: str, found: Verdict) -> None:
    for verdict in Verdict:
        readings.add(metric, int(verdict is found), name, verdict)
