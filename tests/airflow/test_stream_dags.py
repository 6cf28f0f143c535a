"""What Airflow makes of `dags/`: read in a fresh interpreter, as the DAG processor does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tidemark.settings import project_root
from tidemark.topology.load import load, names

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
PARSE_LIMIT_S = 3.0

_REPORT = """
import json, os, sys, time
import airflow
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
started = time.monotonic()
bag = DagBag(sys.argv[1])
seconds = time.monotonic() - started
def described(dag):
    return {
        "tags": sorted(dag.tags), "doc_md": dag.doc_md, "owner": dag.owner, "schedule": type(dag.timetable).__name__,
        "max_active_runs": dag.max_active_runs, "max_failed": dag.max_consecutive_failed_dag_runs,
        "catchup": dag.catchup, "dagrun_timeout": dag.dagrun_timeout, "paused": dag.is_paused_upon_creation,
        "params": {n: {"value": p.value, **p.schema, "description": p.description} for n, p in dag.params.items()},
        "tasks": {
            t.task_id: {"owner": t.owner, "retries": t.retries, "mapped": t.is_mapped,
                        "timeout_s": t.execution_timeout.total_seconds() if t.execution_timeout else None,
                        "upstream": sorted(t.upstream_task_ids)}
            for t in dag.tasks
        },
    }
print("REPORT " + json.dumps({
    "dags": {n: described(d) for n, d in bag.dags.items()}, "errors": bag.import_errors, "seconds": seconds,
    "loaded": sorted(set(sys.modules) - before),
}))
"""


def read_dags(tmp_path: Path, include: Path | None = None) -> dict[str, Any]:
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
        [sys.executable, "-c", _REPORT, str(root / "dags")],
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


def test_should_load_nothing_heavy_when_parsed(report: Mapping[str, Any]) -> None:
    heavy = [m for m in report["loaded"] if any(m == h or m.startswith(f"{h}.") for h in HEAVY)]
    assert heavy == []


def test_should_parse_within_the_time_of_a_scheduler_loop(report: Mapping[str, Any]) -> None:
    assert report["seconds"] < PARSE_LIMIT_S


def test_should_say_who_owns_a_dag_what_it_is_and_how_to_operate_it(report: Mapping[str, Any]) -> None:
    for name in names():
        dag = report["dags"][f"stream__{name}"]
        topology = load(name)
        assert dag["owner"] == "streams"
        assert {"tidemark", "stream", topology.application_id} <= set(dag["tags"])
        assert topology.describe() in dag["doc_md"]
        assert "| stop |" in dag["doc_md"]


def test_should_launch_by_unpausing_alone_and_never_run_twice(report: Mapping[str, Any]) -> None:
    for name in names():
        dag = report["dags"][f"stream__{name}"]
        assert dag["schedule"] == "ContinuousTimetable"
        assert dag["max_active_runs"] == 1
        assert dag["paused"] is True
        assert dag["catchup"] is False
        # A failed run pauses the DAG instead of starting the next one at once.
        assert dag["max_failed"] == 1
        assert dag["dagrun_timeout"] is None


def test_should_describe_and_type_every_parameter(report: Mapping[str, Any]) -> None:
    for dag in report["dags"].values():
        for name, param in dag["params"].items():
            assert param["type"], name
            assert param["title"], name
            assert len(param["description"]) > 20, name
    assert report["dags"]["stream__patient_monitoring"]["params"]["instances"]["value"] == 1


def test_should_set_owner_retries_and_timeout_of_every_task(report: Mapping[str, Any]) -> None:
    for dag in report["dags"].values():
        for name, task in dag["tasks"].items():
            assert task["owner"] != "airflow", name
            assert task["retries"] >= 1, name
            assert task["timeout_s"], name


def test_should_map_one_task_per_instance(report: Mapping[str, Any]) -> None:
    tasks = report["dags"]["stream__patient_monitoring"]["tasks"]
    assert tasks["instance"]["mapped"]
    assert tasks["instance"]["upstream"] == ["instances"]


def test_should_show_the_other_dags_when_one_topology_does_not_load(tmp_path: Path) -> None:
    shutil.copytree(project_root() / "include" / "topologies", tmp_path / "include" / "topologies")
    (tmp_path / "include" / "topologies" / "broken.py").write_text("def topology():\n    return 1 / 0\n")
    report = read_dags(tmp_path, tmp_path / "include")
    assert "stream__patient_monitoring" in report["dags"]
    assert "stream__broken" not in report["dags"]
    (message,) = report["errors"].values()
    assert "broken" in message
    assert "division by zero" in message
    assert "line 2" in message


def test_should_shadow_no_module_of_the_standard_library() -> None:
    for path in (project_root() / "plugins").rglob("*.py"):
        assert path.stem not in sys.stdlib_module_names, path
