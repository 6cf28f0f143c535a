"""The DAGs that Airflow reads from `dags/`, in a fresh interpreter as in the DAG processor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tidemark.devstack import airflow_parts
from tidemark.names import MAINTENANCE_POOL
from tidemark.overview.forms import Parameter
from tidemark.settings import Settings, project_root
from tidemark.topology_loader import load, names

# What a DAG file must not pull in: it is read every few seconds.
HEAVY = (
    "pyspark",
    "pyarrow",
    "pandas",
    "numpy",
    "rocksdict",
    "confluent_kafka",
    "great_expectations",
    "airflow.providers.apache",
)

_REPORT = """
import json, os, sys
import airflow
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
bag = DagBag(sys.argv[1])
def named(callbacks):
    found = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    return [getattr(c, "__name__", None) or type(c).__name__ + ":" + c.what for c in found if c]
def described(dag):
    return {
        "alerts": named(dag.on_failure_callback),
        "display_name": dag.dag_display_name, "triggered": dag.schedule is None,
        "tags": sorted(dag.tags), "doc_md": dag.doc_md, "owner": dag.owner, "schedule": type(dag.timetable).__name__,
        "cron": dag.schedule if isinstance(dag.schedule, str) else None,
        "deadlines_s": [d.interval.total_seconds() for d in dag.deadline or []],
        "runs_s": dag.dagrun_timeout.total_seconds() if dag.dagrun_timeout else None,
        "max_active_runs": dag.max_active_runs, "max_failed": dag.max_consecutive_failed_dag_runs,
        "catchup": dag.catchup, "paused": dag.is_paused_upon_creation,
        "params": {n: {"value": p.value, **p.schema, "description": p.description} for n, p in dag.params.items()},
        "tasks": {
            t.task_id: {"owner": t.owner, "retries": t.retries, "mapped": t.is_mapped,
                        "timeout_s": t.execution_timeout.total_seconds() if t.execution_timeout else None,
                        "pool": t.pool, "priority": t.priority_weight, "weights": str(t.weight_rule),
                        "upstream": sorted(t.upstream_task_ids), "rule": t.trigger_rule.value,
                        "alerts": named(t.on_failure_callback)}
            for t in dag.tasks
        },
    }
print("REPORT " + json.dumps({
    "dags": {n: described(d) for n, d in bag.dags.items()}, "errors": bag.import_errors,
    "loaded": sorted(set(sys.modules) - before),
}))
"""


_SYNCHRONISE = """
import json, sys
from pathlib import Path
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dag import DagModel
from airflow.models.errors import ParseImportError
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from sqlalchemy import select
initdb()
DagBundlesManager().sync_bundles_to_db()
sync_bag_to_db(DagBag(sys.argv[1], bundle_path=Path(sys.argv[1]), bundle_name="dags-folder"), "dags-folder", None)
with create_session() as session:
    print("REPORT " + json.dumps({
        "stale": dict(session.execute(select(DagModel.dag_id, DagModel.is_stale)).tuples().all()),
        "files": dict(session.execute(select(DagModel.dag_id, DagModel.relative_fileloc)).tuples().all()),
        "errors": dict(session.execute(select(ParseImportError.filename, ParseImportError.stacktrace)).tuples().all()),
    }))
"""


def read_dags(tmp_path: Path, include: Path | None = None, script: str = _REPORT) -> dict[str, Any]:
    root = project_root()
    folders = [str(include or root / "include"), str(root / "include"), str(root), str(root / "plugins")]
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(root / "plugins"),
        "PYTHONPATH": os.pathsep.join(folders),
    }
    read = subprocess.run(
        [sys.executable, "-c", script, str(root / "dags")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    line = next(line for line in read.stdout.splitlines() if line.startswith("REPORT "))
    report: dict[str, Any] = json.loads(line.removeprefix("REPORT "))
    return report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, _settings_of_the_suite: None) -> dict[str, Any]:
    return read_dags(tmp_path_factory.mktemp("dags"))


def test_should_make_a_dag_of_every_topology(report: Mapping[str, Any]) -> None:
    assert report["errors"] == {}
    assert {f"stream__{name}" for name in names()} <= set(report["dags"])


def test_should_import_no_heavy_module_when_parsed(report: Mapping[str, Any]) -> None:
    heavy = [m for m in report["loaded"] if any(m == h or m.startswith(f"{h}.") for h in HEAVY)]
    assert heavy == []


def test_should_document_owner_purpose_and_operation_of_every_dag(report: Mapping[str, Any]) -> None:
    for name in names():
        dag = report["dags"][f"stream__{name}"]
        topology = load(name)
        assert dag["owner"] == "streams"
        assert {"tidemark", "stream", topology.application_id} <= set(dag["tags"])
        assert topology.describe() in dag["doc_md"]
        assert "| stop |" in dag["doc_md"]


def test_should_launch_when_unpaused_and_never_run_twice(report: Mapping[str, Any]) -> None:
    for name in names():
        dag = report["dags"][f"stream__{name}"]
        assert dag["schedule"] == "ContinuousTimetable"
        assert dag["max_active_runs"] == 1
        assert dag["paused"] is True
        assert dag["catchup"] is False
        # A failed run pauses the DAG instead of starting the next one at once.
        assert dag["max_failed"] == 1
        assert dag["runs_s"] is None


def test_should_describe_and_type_every_parameter(report: Mapping[str, Any]) -> None:
    for dag in report["dags"].values():
        for name, param in dag["params"].items():
            assert param["type"], name
            assert param["title"], name
            assert len(param["description"]) > 20, name
            assert Parameter(param["value"], param).kind is not None, name
    assert report["dags"]["stream__patient_monitoring"]["params"]["instances"]["value"] == 1


def test_should_set_owner_retries_and_timeout_of_every_task(report: Mapping[str, Any]) -> None:
    for dag in report["dags"].values():
        for name, task in dag["tasks"].items():
            assert task["owner"] != "airflow", name
            assert task["retries"] >= 1, name
            assert task["timeout_s"], name


def test_should_raise_an_alert_when_any_task_of_any_dag_fails_for_good(report: Mapping[str, Any]) -> None:
    for dag_id, dag in report["dags"].items():
        what = "stream failed" if "stream__" in dag_id else "operation failed"
        for name, task in dag["tasks"].items():
            assert task["alerts"] == [f"AlertOnFailure:{what}"], f"{dag_id}.{name}"
        # A run that takes too long fails no task of its own; a stream has no such time.
        assert dag["alerts"] == (["alert_on_time_out"] if dag["runs_s"] else []), dag_id


def test_should_reserve_workers_for_streams_and_schedule_them_first(report: Mapping[str, Any]) -> None:
    looking_after = {
        "compaction_check", "drill_age_check", "durability_check", "exactly_once_audit", "history_cleanup", "lag_check",
        "restore_drill", "retention_check", "savepoint",
    }  # fmt: skip
    found: dict[str, set[int]] = {"streams": set(), "maintenance": set(), "others": set()}
    for name, dag in report["dags"].items():
        is_stream = name.startswith("stream_")
        kind = "streams" if is_stream else "maintenance" if name in looking_after else "others"
        for task in dag["tasks"].values():
            assert task["pool"] == (MAINTENANCE_POOL if kind == "maintenance" else "default_pool"), name
            # What is downstream adds nothing: a DAG of many tasks is no more urgent than a stream.
            assert task["weights"] == "absolute", name
            found[kind].add(task["priority"])
    assert looking_after < set(report["dags"])
    assert max(found["maintenance"]) < min(found["others"]) <= max(found["others"]) < min(found["streams"])


def test_should_leave_workers_for_streams_whatever_else_runs(report: Mapping[str, Any]) -> None:
    """A case waits for the instances that it relaunches, so it must not take the last worker that could launch them."""
    taken = airflow_parts.MAINTENANCE_SLOTS
    for name, dag in report["dags"].items():
        if not name.startswith("stream_") and not _is_maintenance(dag):
            assert not any(task["mapped"] for task in dag["tasks"].values()), name
            taken += dag["max_active_runs"] * _most_at_once(dag["tasks"])
    assert taken > airflow_parts.MAINTENANCE_SLOTS
    assert taken < airflow_parts.PARALLELISM


def _is_maintenance(dag: Mapping[str, Any]) -> bool:
    return {task["pool"] for task in dag["tasks"].values()} == {MAINTENANCE_POOL}


def _most_at_once(tasks: Mapping[str, Mapping[str, Any]]) -> int:
    """The largest number of tasks of a DAG run that can run at the same time, because none of them waits for another."""
    before: dict[str, set[str]] = {}

    def all_before(name: str) -> set[str]:
        if name not in before:
            direct = tasks[name]["upstream"]
            before[name] = {*direct}.union(*(all_before(each) for each in direct))
        return before[name]

    def is_free(names: Sequence[str]) -> bool:
        return not any(all_before(name) & {*names} for name in names)

    return max(size for size in range(1, len(tasks) + 1) if any(is_free(some) for some in combinations(tasks, size)))


def test_should_map_one_task_per_instance(report: Mapping[str, Any]) -> None:
    tasks = report["dags"]["stream__patient_monitoring"]["tasks"]
    assert tasks["instance"]["mapped"]
    assert tasks["instance"]["upstream"] == ["instances"]


TRIGGERED = {"repair", "rescale", "reset", "restore_oncall", "upgrade"}
"""What only a person starts, most often at night."""
CHECKS = {
    "compaction_check": "37 */6 * * *",
    "durability_check": "7 * * * *",
    "lag_check": "*/5 * * * *",
    "retention_check": "17 */6 * * *",
}


def test_should_run_checks_on_a_schedule_with_one_task_per_application(report: Mapping[str, Any]) -> None:
    for name, cron in CHECKS.items():
        dag = report["dags"][name]
        assert dag["cron"] == cron
        assert {"tidemark", "check"} <= set(dag["tags"])
        assert dag["params"]["topologies"]["value"] == []
        assert dag["tasks"][name.removesuffix("_check")]["mapped"]
        assert dag["tasks"][name.removesuffix("_check")]["upstream"] == ["topologies"]
        # What a run says is what the table in docs/checks.md and the history say, so a check needs no other page.
        assert "docs/checks.md" in dag["doc_md"]


def test_should_expire_savepoints_only_after_a_new_one_is_verified(report: Mapping[str, Any]) -> None:
    dag = report["dags"]["savepoint"]
    assert dag["cron"] == "27 */6 * * *"
    assert "saved.take" in dag["tasks"]["saved.verify"]["upstream"]
    assert "saved.verify" in dag["tasks"]["saved.expire"]["upstream"]


def test_should_change_topics_only_after_an_approval(report: Mapping[str, Any]) -> None:
    dag = report["dags"]["compaction_check"]
    assert dag["params"]["apply"]["value"] is False
    assert dag["tasks"]["set_topics"]["upstream"] == ["approval"]
    assert dag["tasks"]["approval"]["upstream"] == ["differences"]
    # A run is judged by its leaves, and those behind the check are skipped where nothing is to be set.
    assert dag["tasks"]["done"]["upstream"] == ["compaction", "set_topics"]


def test_should_change_an_application_only_after_an_approval_and_with_its_instances_held(
    report: Mapping[str, Any],
) -> None:
    for name in ("upgrade", "rescale", "reset", "repair"):
        dag = report["dags"][name]
        assert dag["params"]["dry_run"]["value"] is True, name
        assert dag["cron"] is None, name
        order = ["preflight", "plan", "unless_dry_run", "approval", "fence", "change", "relaunch", "drain"]
        assert [dag["tasks"][task]["upstream"] for task in order[1:]] == [[task] for task in order[:-1]], name
        # Whatever happens, it is held no longer, and the report alone decides how the run ends.
        assert dag["tasks"]["release"]["upstream"] == ["relaunch"], name
        assert dag["tasks"]["report"]["upstream"] == ["drain", "release"], name
        assert {dag["tasks"][task]["rule"] for task in ("release", "report")} == {"all_done"}, name


def test_should_set_the_deadline_of_a_restore_from_the_response_time_and_the_rto(report: Mapping[str, Any]) -> None:
    settings = Settings()
    allowed_s = settings.oncall_response_timeout_ms / 1000 + settings.rto_s
    found = {name: dag["deadlines_s"] for name, dag in report["dags"].items() if dag["deadlines_s"]}
    assert found == {"restore_oncall": [allowed_s]}


def test_should_give_every_operation_one_run_at_a_time_a_timeout_and_a_runbook(report: Mapping[str, Any]) -> None:
    operations = {name: dag for name, dag in report["dags"].items() if {"operation", "check"} & set(dag["tags"])}
    assert CHECKS.keys() <= operations.keys()
    for name, dag in operations.items():
        assert len(dag["doc_md"]) > 100, name
        assert dag["owner"] == "operations", name
        assert (dag["max_active_runs"], dag["catchup"]) == (1, False), name
        longest = max(task["timeout_s"] for task in dag["tasks"].values())
        assert dag["runs_s"], name
        assert dag["runs_s"] >= longest, name


def test_a_dag_that_a_person_triggers_should_never_be_paused_at_first(report: Mapping[str, Any]) -> None:
    unpaused = {name for name, dag in report["dags"].items() if not dag["paused"]}
    # What makes pausing a stop must not wait to be unpaused itself.
    assert unpaused == {*TRIGGERED, "stream_pauses"}
    assert {name for name, dag in report["dags"].items() if dag["triggered"]} == TRIGGERED


def test_the_list_of_dags_should_tell_streams_operations_and_checks_apart(report: Mapping[str, Any]) -> None:
    kinds = {name: {"stream", "operation", "check"} & set(dag["tags"]) for name, dag in report["dags"].items()}
    assert {name: kind for name, kind in kinds.items() if len(kind) != 1} == {}
    # Airflow lists DAGs by their display names.
    listed = sorted(report["dags"], key=lambda name: report["dags"][name]["display_name"])
    in_order = [kinds[name].pop() for name in listed]
    assert in_order == sorted(in_order, key=["stream", "operation", "check"].index)
    assert {name for name, kind in zip(listed, in_order, strict=True) if kind == "check"} == {
        *CHECKS, "drill_age_check", "exactly_once_audit", "restore_drill",
    }  # fmt: skip
    for name, dag in report["dags"].items():
        assert name in dag["display_name"], "a search for the id finds it"


def test_every_dag_should_say_first_when_to_use_it(report: Mapping[str, Any]) -> None:
    said = {name: dag["doc_md"].split("\n\n")[0] for name, dag in report["dags"].items()}
    for name, first in said.items():
        heading, text = first.split("\n", 1)
        assert heading == "### When to use it", name
        assert len(text) > 50, name
        assert text.endswith((".", "`.")), name
    own = [text for name, text in said.items() if not name.startswith("stream__")]
    assert len(set(own)) == len(own), "each says its own"


def test_should_keep_the_other_dags_active_when_topologies_do_not_load(tmp_path: Path) -> None:
    folder = tmp_path / "include" / "topologies"
    shutil.copytree(project_root() / "include" / "topologies", folder)
    (folder / "broken.py").write_text("def topology():\n    return 1 / 0\n")
    (folder / "unfinished.py").write_text("def topology():\n    return\n")
    found = read_dags(tmp_path, tmp_path / "include", _SYNCHRONISE)
    streams = {f"stream__{name}" for name in names()}
    assert {dag_id for dag_id, file in found["files"].items() if file == "streams.py"} == streams
    assert {dag_id for dag_id, is_stale in found["stale"].items() if is_stale} == set()
    ((file, message),) = found["errors"].items()
    assert file == "unloadable_topologies.py"
    # Airflow shows it to people who may not see these streams.
    assert "division by zero" not in message
    assert "NoneType" not in message
    for name in ("broken", "unfinished"):
        assert f"topologies/{name}.py has no DAG: the page of all streams says why" in message


def test_should_have_every_stream_from_one_file_when_all_topologies_load(tmp_path: Path) -> None:
    found = read_dags(tmp_path, script=_SYNCHRONISE)
    assert {found["files"][f"stream__{name}"] for name in names()} == {"streams.py"}
    assert found["errors"] == {}


def test_should_make_one_dag_of_an_application_that_two_modules_name(tmp_path: Path) -> None:
    folder = tmp_path / "include" / "topologies"
    shutil.copytree(project_root() / "include" / "topologies", folder)
    shutil.copy(folder / "clicks.py", folder / "a_clicks.py")
    report = read_dags(tmp_path, tmp_path / "include")
    assert "stream__clicks" in report["dags"]
    assert "stream__a_clicks" not in report["dags"]
    (message,) = report["errors"].values()
    assert "topologies/a_clicks.py has no DAG: the page of all streams says why" in message


def test_should_not_shadow_a_module_of_the_standard_library() -> None:
    for path in (project_root() / "plugins").rglob("*.py"):
        assert path.stem not in sys.stdlib_module_names, path
