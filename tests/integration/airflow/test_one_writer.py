"""Requests that write, sent to a real Airflow on SQLite at the same time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.airflow.operations import MigrateAirflow
from tests.support.airflow.real_airflow import RealAirflow, real_airflow

from tidemark import processes
from tidemark.settings import Settings

_CLIENTS, _REQUESTS = 4, 60


@pytest.fixture
def airflow(
    migrate_airflow: MigrateAirflow, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RealAirflow]:
    folder = tmp_path_factory.mktemp("writers")
    (folder / "dags").mkdir()
    settings = Settings.load(var_dir=folder / "var", state_dir=folder / "state", bootstrap_servers="127.0.0.1:1")
    migrate_airflow(settings)
    mark = f"tests-{uuid.uuid4()}"
    monkeypatch.setenv(processes.MARK, mark)
    with real_airflow(settings, folder / "dags", mark, "api-server") as started:
        yield started


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_should_answer_requests_that_write_at_the_same_time(airflow: RealAirflow) -> None:
    airflow.api.health()
    airflow.api.call("GET", "/api/v2/variables")

    def write(number: int) -> str:
        body = {"key": f"key-{number}", "value": "any"}
        return str(airflow.api.call("POST", "/api/v2/variables", body)["key"])

    with ThreadPoolExecutor(_CLIENTS) as clients:
        written = list(clients.map(write, range(_REQUESTS)))
    assert written == [f"key-{number}" for number in range(_REQUESTS)]
