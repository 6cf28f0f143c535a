"""Fixtures of an Airflow without its processes. Only a `conftest.py` imports them: a module's import would make them anew."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.airflow.forked_airflow import ForkedAirflow, forked_airflow
from tests.support.alert_notes import NOTE, NOTES_FILE

from tidemark.devstack import airflow_parts, ports
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.settings import Settings

MigrateAirflow = Callable[[Settings], None]


@dataclass(frozen=True)
class Operations:
    """Whole runs of the DAGs of operations over a real broker. `folder` is for topologies, `notes` the file of alerts."""

    airflow: ForkedAirflow
    settings: Settings
    folder: Path
    notes: Path

    def topology(self, name: str) -> str:
        """A module that counts records of `<name>-in` by key; its name."""
        module = name.replace("-", "_")
        (self.folder / f"{module}.py").write_text(
            f"from tests.support.counting import counting\n\n\ndef topology():\n    return counting({name!r})\n"
        )
        return module


@pytest.fixture(scope="session")
def migrate_airflow(mark: str, worker_id: str, tmp_path_factory: pytest.TempPathFactory) -> MigrateAirflow:
    """`migrate_airflow(settings)`: what `airflow_parts.prepare` makes of an Airflow's database, without its 15 s.

    The database is a copy of one that is prepared once for all workers of this run of pytest.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "migrated-airflow"
    template = Settings.load(var_dir=folder)

    def copy(settings: Settings) -> None:
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            airflow_parts.prepare(template, airflow_parts.environment(template, mark, ports.free_port()))
        home = airflow_parts.home(settings)
        home.mkdir(parents=True)
        for name in ("airflow.db", "migrated"):
            shutil.copy(airflow_parts.home(template) / name, home)

    return copy


@pytest.fixture(scope="session")
def operations(
    broker: EmbeddedBroker, mark: str, migrate_airflow: MigrateAirflow, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operations]:
    """DAGs of operations, run over the session's broker."""
    folder = tmp_path_factory.mktemp("operations")
    settings = Settings.load(
        bootstrap_servers=broker.bootstrap,
        var_dir=folder / "var",
        state_dir=folder / "state",
        savepoint_location=str(folder / "savepoints"),
        num_partitions=1,
        alert_callback=NOTE,
        # No stream runs beside the audit for which it would have to pause.
        audit_time_share=1.0,
    )
    migrate_airflow(settings)
    (folder / "mine").mkdir()
    notes = folder / "notes"
    mine = {"TIDEMARK_TOPOLOGY_PATH": str(folder / "mine"), NOTES_FILE: str(notes)}
    with forked_airflow({**airflow_parts.environment(settings, mark, ports.free_port()), **mine}, folder) as airflow:
        yield Operations(airflow, settings, folder / "mine", notes)
