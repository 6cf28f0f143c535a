"""The metrics of applications, checks, drills, audits and DAGs."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.support.overview import APP, NOW, application, checked, instance, live, write_run_file, write_standby_file

from tidemark.metrics import table
from tidemark.metrics.metric import Metric, Readings
from tidemark.operations.drill_history.table import PastDrill
from tidemark.overview.application import ProcessFiles
from tidemark.overview.history import AuditView
from tidemark.overview.metrics import DagView, LastRun, read_applications, read_dags
from tidemark.overview.scrape_targets import scrape_targets
from tidemark.overview.stores import SavepointView
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.verdict import Verdict


def read(*applications, dags=()) -> Readings:
    readings = Readings({})
    read_applications(readings, applications)
    read_dags(readings, dags)
    return readings


def values(readings: Readings, metric: Metric) -> dict[tuple[str, ...], float]:
    return {tuple(labels[name] for name in metric.labels): value for value, labels in readings.of(metric)}


def drill(verdict: Verdict, ended_ms: int) -> PastDrill:
    return PastDrill("d", ended_ms - 9000, ended_ms, verdict, 8.5, 12, 1.5, 200, 4096, {})


def test_a_running_application_should_show_state_lag_and_commit():
    found = read(application(instance(), live=live(lag=25), savepoint=SavepointView("s", NOW - 5000)))
    assert values(found, table.APPLICATION_WANTED) == {(APP,): 1}
    states = values(found, table.APPLICATION_STATE)
    assert [state for state, value in states.items() if value] == [(APP, "Running")]
    assert states[APP, "Down"] == 0
    assert values(found, table.APPLICATION_INSTANCES) == {(APP,): 1}
    assert values(found, table.APPLICATION_LAG) == {(APP,): 25}
    assert values(found, table.APPLICATION_LAST_COMMIT) == {(APP,): (NOW - 1000) / 1000}
    assert values(found, table.SAVEPOINT_TAKEN) == {(APP,): (NOW - 5000) / 1000}


def test_what_nothing_watches_should_be_counted():
    standby = instance(instance="standby-0", is_watched=False)
    files = ProcessFiles(
        (instance(is_watched=True), instance(instance=1), instance(instance=2, is_watched=False)), (standby,)
    )
    assert values(read(application(files=files)), table.APPLICATION_UNWATCHED) == {(APP,): 2}


def test_what_is_not_known_should_be_left_out():
    found = read(application(is_wanted=None))
    shown = {name for name, _ in found}
    of_files = {table.APPLICATION_STATE.name, table.APPLICATION_INSTANCES.name, table.APPLICATION_UNWATCHED.name}
    assert shown == {*of_files, table.DRILLABLE.name}
    away = read(application(history_fault="the database is away"))
    assert values(away, table.FACTS_REACHABLE) == {(APP,): 0}
    assert values(away, table.CHECK_FINDINGS) == {}


def test_an_application_whose_files_cannot_be_read_should_show_neither_a_state_nor_instances():
    found = read(application(are_files_known=False, files_fault="permission denied"))
    assert {name for name, _ in found} == {table.APPLICATION_WANTED.name, table.DRILLABLE.name}
    states = values(read(application()), table.APPLICATION_STATE)
    assert (APP, "Not known") not in states


def test_checks_drills_and_audits_should_come_from_the_history():
    history = replace(
        checked("lag", Verdict.FAILED, Verdict.OK, Verdict.OK),
        drills=(drill(Verdict.FAILED, NOW - 1000), drill(Verdict.OK, NOW - 90_000), drill(Verdict.OK, NOW - 99_000)),
        audit=AuditView(NOW - 2000, Verdict.WARNING),
    )
    found = read(application(instance(), history=history))
    findings = values(found, table.CHECK_FINDINGS)
    assert findings[APP, "lag", "failed"] == 1
    assert findings[APP, "lag", "ok"] == 2
    assert findings[APP, "lag", "warning"] == 0
    assert values(found, table.CHECK_LAST_RUN) == {(APP, "lag"): (NOW - 5000) / 1000}
    assert values(found, table.FACTS_REACHABLE) == {(APP,): 1}
    assert values(found, table.DRILL_VERDICT) == {(APP, str(verdict)): verdict is Verdict.FAILED for verdict in Verdict}
    assert values(found, table.DRILL_LAST_RUN) == {(APP,): (NOW - 1000) / 1000}
    assert values(found, table.DRILL_LAST_PASSED) == {(APP,): (NOW - 90_000) / 1000}
    figures = (table.DRILL_RTO, table.DRILL_RPO, table.DRILL_RPO_TIME, table.DRILL_KEYS, table.DRILL_BYTES)
    assert [values(found, metric)[APP,] for metric in figures] == [8.5, 12, 1.5, 200, 4096]
    assert values(found, table.AUDIT_VERDICT) == {
        (APP, str(verdict)): verdict is Verdict.WARNING for verdict in Verdict
    }
    assert values(found, table.AUDIT_LAST_RUN) == {(APP,): (NOW - 2000) / 1000}


def test_an_application_should_be_drillable_when_savepoints_hold_one_of_its_stores():
    topology = Topology("unsaved")
    topology.stream("in", schema="id STRING").group_by_key().count(name="n", store=Materialized("n", in_memory=True))
    unsaved = replace(application(), plan=topology.plan())
    assert values(read(application(), unsaved), table.DRILLABLE) == {(APP,): 1, ("unsaved",): 0}


def test_dags_should_show_whether_they_are_on_and_their_last_runs():
    dags = [
        DagView("lag_check", True, (LastRun("success", NOW), LastRun("failed", NOW - 1000))),
        DagView("reset", False),
    ]
    found = read(dags=dags)
    assert values(found, table.DAG_ON) == {("lag_check",): 1, ("reset",): 0}
    assert values(found, table.DAG_LAST_RUN) == {
        ("lag_check", "success"): NOW / 1000, ("lag_check", "failed"): (NOW - 1000) / 1000,
    }  # fmt: skip


def test_targets_should_be_the_processes_that_run_and_answer(tmp_path):
    write_run_file(tmp_path, APP, 0, query_url="http://127.0.0.1:4711")
    write_run_file(tmp_path, APP, 1, query_url=None)
    write_run_file(tmp_path, APP, 2, query_url="http://127.0.0.1:4712", state="ERROR")
    write_run_file(tmp_path, f"{APP}-2", 0, query_url="http://127.0.0.1:4713")
    write_standby_file(tmp_path, APP, 0, query_url="https://[::1]:4714")
    assert [target.to_dict() for target in scrape_targets(tmp_path, APP, time.time())] == [
        {
            "targets": ["127.0.0.1:4711"],
            "labels": {"__scheme__": "http", "__meta_tidemark_application": APP, "__meta_tidemark_instance": "0"},
        },
        {
            "targets": ["[::1]:4714"],
            "labels": {
                "__scheme__": "https",
                "__meta_tidemark_application": APP,
                "__meta_tidemark_instance": "standby-0",
            },
        },
    ]
