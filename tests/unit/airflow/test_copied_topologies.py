"""A second module with the application id of another one is judged, saved and changed by no DAG of an operation.

Its own DAG, if it had one, is not asked whether the stream is paused.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException
from tests.support.airflow.approving import RESTORE_ASKED, run_of

import topologies
from tidemark.errors import ApplicationIdTaken
from tidemark.settings import project_root
from tidemark.topology_loader import names
from tidemark_airflow import cases
from tidemark_airflow.operations import chosen

COPY = "shopping_next"
_SOURCE = """
from tidemark.topology.builder import Topology
def topology():
    topology = Topology("shopping")
    topology.stream("x", schema="a STRING", key="a").filter("a != ''").to("y")
    return topology
"""


@pytest.fixture(autouse=True)
def _copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of `shopping` in a folder of TIDEMARK_TOPOLOGY_PATH, and a module there that does not load."""
    folder = tmp_path / "topologies"
    folder.mkdir()
    (folder / f"{COPY}.py").write_text(_SOURCE)
    (folder / "odd.py").write_text("1 +")
    for name in (COPY, "odd"):
        monkeypatch.delitem(sys.modules, f"topologies.{name}", raising=False)
    monkeypatch.setattr(topologies, "__path__", [*topologies.__path__, str(folder)])


def test_should_cover_every_module_but_the_copy_when_nothing_is_chosen() -> None:
    assert COPY in names()
    # A module that does not load fails its own task.
    assert chosen({"topologies": []}) == sorted({*names()} - {COPY})


def test_should_cover_what_is_chosen_and_refuse_the_copy() -> None:
    assert chosen({"topologies": ["shopping", "odd"]}) == ["shopping", "odd"]
    with pytest.raises(ApplicationIdTaken, match=f"{COPY}: the application id 'shopping' belongs to .*/shopping"):
        chosen({"topologies": ["clicks", COPY]})


def test_should_not_let_the_dag_that_the_copy_had_keep_a_paused_stream_running() -> None:
    """Airflow keeps that DAG as an unpaused one, and a stream is stopped only if each of its DAGs is paused."""
    spec = importlib.util.spec_from_file_location(
        "stream_pauses_under_test", project_root() / "dags" / "stream_pauses.py"
    )
    assert spec is not None
    assert spec.loader is not None
    dag_file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dag_file)
    streams = dag_file._streams()
    assert streams.keys() == {f"stream__{name}" for name in names()} - {f"stream__{COPY}"}
    assert (streams["stream__shopping"], streams["stream__odd"]) == ("shopping", None)


def test_should_refuse_a_case_of_the_copy_and_say_so_in_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path / "var"))
    context = {"params": {**RESTORE_ASKED, "topology": COPY}, "dag_run": run_of("upgrade")}
    refusal = r"topology shopping_next: the application id 'shopping' belongs to the module topologies/shopping\.py"
    with pytest.raises(AirflowFailException, match=refusal):
        cases.write_down(context)
    with pytest.raises(AirflowFailException, match=refusal):
        cases.report(context)
