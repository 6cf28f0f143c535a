"""An Airflow in its own folder, and instances that are cheap to start. Everything that is started here is ended here."""

from __future__ import annotations

import os
import shutil
import tempfile

# Before anything imports Airflow, which writes its configuration when it is imported.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="tidemark-tests-airflow-"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "false")

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard
from tests.support.airflow.stream_bench import Bench
from tests.support.airflow.stream_task import Task

from tidemark.settings import Settings
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey
from tidemark.supervision.liveness import observe
from tidemark.supervision.stop import kill_rest


@pytest.fixture(scope="session", autouse=True)
def _airflow_home_is_removed() -> Iterator[None]:
    yield
    if "tidemark-tests-airflow-" in os.environ["AIRFLOW_HOME"]:
        shutil.rmtree(os.environ["AIRFLOW_HOME"], ignore_errors=True)


@pytest.fixture
def make_bench(tmp_path: Path, unique: Callable[[str], str], mark: str) -> Iterator[Callable[..., Bench]]:
    """`make_bench(instance=0, is_standby=False)`: a fake instance or standby in a folder of the test's own."""
    topology = unique("fake").replace("-", "_")
    settings = Settings.load(var_dir=tmp_path / "var", state_dir=tmp_path / "state")
    made: list[Bench] = []

    def make(instance: int = 0, is_standby: bool = False) -> Bench:
        key = InstanceKey(topology.replace("_", "-"), instance, is_standby)
        bench = Bench(settings, InstanceFiles(settings.var_dir, key), topology)
        bench.files.make_folders()
        made.append(bench)
        return bench

    yield make
    for bench in made:
        kill_rest(observe(bench.files))
        for process in bench.living():
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """One fake instance, number 0."""
    return make_bench()


@pytest.fixture
def _outside_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)


@pytest.fixture
def task(_outside_of_a_worker: None, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The task of `bench`'s instance."""
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(bench.settings.var_dir))
    return Task(bench)
