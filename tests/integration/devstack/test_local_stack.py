"""`tidemark up`, `status` and `down` as a person types them, on real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from tests.support.airflow.operations import MigrateAirflow

from tidemark import processes
from tidemark.atomic_file import replace_file
from tidemark.devstack import ports, record, stack
from tidemark.devstack.airflow import AirflowApi
from tidemark.devstack.airflow_parts import PARALLELISM
from tidemark.devstack.broker import answers
from tidemark.devstack.record import Service, StackRecord
from tidemark.settings import Settings, project_root, stack_file

SLEEP = "import time; time.sleep(300)"
COMMITS_BEFORE_IT_ENDS = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1]).write_text("committed")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).write_text("running")
time.sleep(300)
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StackRecord]:
    """An empty record in folders of the test's own, whose mark is swept whatever the test does."""
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path / "var"))
    monkeypatch.setenv("TIDEMARK_STATE_DIR", str(tmp_path / "state"))
    known = StackRecord(stack_id=f"test-{uuid.uuid4()}", started_at=time.time())
    with processes.guarded(known.stack_id):
        record.save(known, tmp_path / "var")
        yield known


def tidemark(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tidemark.cli.main", *arguments],
        env=os.environ | {"PYTHONPATH": str(project_root() / "include")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def start(mark: str, folder: Path, *command: str) -> Service:
    environment = os.environ | {processes.MARK: mark}
    identity = processes.start([sys.executable, "-c", *command], folder / "log", environment, folder)
    return Service(identity.pid, identity.started_after_boot_s, identity.boot_id, 0, str(folder / "log"))


def write_run_file(settings: Settings, name: str, content: dict[str, object]) -> None:
    file = settings.var_dir / "instances" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(content), synced=False)


def test_should_do_nothing_when_there_is_no_stack_to_stop(tmp_path: Path) -> None:
    assert stack.down(Settings.load(var_dir=tmp_path / "var")) == 0


def test_should_end_parts_streams_and_stray_processes_and_nothing_else_at_down(
    recorded: StackRecord, tmp_path: Path
) -> None:
    settings = Settings.load()
    summary = tmp_path / "summary"
    part = start(recorded.stack_id, tmp_path, SLEEP)
    stream = start(recorded.stack_id, tmp_path, COMMITS_BEFORE_IT_ENDS, str(summary))
    stray = start(recorded.stack_id, tmp_path, SLEEP)
    foreign = start("another-stack", tmp_path, COMMITS_BEFORE_IT_ENDS, str(tmp_path / "foreign"))
    recorded.services |= {"scheduler": part, "triggerer": Service(2**22 + 1, 1.0, "b", 0, "gone")}
    record.save(recorded, settings.var_dir)
    for name, said in {"app-0": stream, "other-0": foreign}.items():
        write_run_file(settings, name, asdict(said.identity))
    assert processes.wait_until(summary.exists, 60)
    assert processes.wait_until(lambda: summary.read_text() == "running", 60)
    try:
        assert stack.down(settings, report=lambda _: None) == 3
        assert summary.read_text() == "committed"
        assert not any(service.identity.is_alive() for service in (part, stream, stray))
        assert foreign.identity.is_alive()
        assert not stack_file(settings.var_dir).exists()
    finally:
        processes.stop(foreign.identity)


def test_should_name_a_configured_broker_that_is_away(recorded: StackRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"{ports.LOOPBACK}:{ports.free_port()}"
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP_SERVERS", address)
    monkeypatch.setenv("TIDEMARK_BROKER_TIMEOUT_MS", "1000")
    said = tidemark("up", code=30)
    assert f"tidemark: no Kafka broker answers at {address}" in said
    assert processes.carrying(recorded.stack_id) == []


def test_should_show_a_lost_stream_in_the_status(recorded: StackRecord) -> None:
    gone = {"pid": 2**22 + 1, "started_after_boot_s": 1.0, "boot_id": "b"}
    said = {**gone, "application_id": "app", "instance": 0, "state": "RUNNING", "batch": 7}
    write_run_file(Settings.load(), "app-0", said)
    shown = json.loads(tidemark("status", "--json", code=1))
    assert [(row["application"], row["state"], row["batch"]) for row in shown["instances"]] == [("app", "LOST", 7)]


@pytest.mark.broker
@pytest.mark.airflow
@pytest.mark.timeout(1200)
def test_should_start_beside_taken_ports_restart_lost_parts_and_leave_nothing(
    recorded: StackRecord, migrate_airflow: MigrateAirflow
) -> None:
    settings = Settings.load()
    # What the first `up` does by the same function, which this run of pytest has called once for all tests.
    migrate_airflow(settings)
    with ExitStack() as taken:
        for port in (stack.BROKER_PORT, stack.AIRFLOW_PORT):
            if ports.is_free(port):
                holder = taken.enter_context(socket.socket())
                holder.bind((ports.LOOPBACK, port))
                holder.listen()
        tidemark("up")
    first = record.load(settings.var_dir)
    assert first is not None
    assert first.airflow is not None
    assert first.stack_id == recorded.stack_id
    assert {first.services["broker"].port, first.services["api-server"].port}.isdisjoint({9092, 8080})
    assert answers(first.settings["bootstrap_servers"])
    airflow = AirflowApi.of(first.airflow)
    # On a busy machine a part's heartbeat may be late.
    assert processes.wait_until(lambda: not airflow.unhealthy(), 180), airflow.unhealthy()
    assert listening_elsewhere(recorded.stack_id) == []

    # A second `up` adopts everything; one after a crash starts what died, and nothing else.
    assert "everything was already running" in tidemark("up")
    for part in ("scheduler", "broker"):
        os.kill(first.services[part].pid, signal.SIGKILL)
    assert "no," in tidemark("status", code=1)
    tidemark("up")
    second = record.load(settings.var_dir)
    assert second is not None
    changed = {name for name, service in second.services.items() if service != first.services[name]}
    assert changed == {"scheduler", "broker"}
    assert second.settings == first.settings

    def are_few() -> bool:
        # Parts, workers, and what parses a file just now; a killed scheduler's workers would be as many more for good.
        return len(processes.carrying(recorded.stack_id)) <= 5 + PARALLELISM + 2

    assert processes.wait_until(are_few, 60), [process.name() for process in processes.carrying(recorded.stack_id)]
    tidemark("status")

    # What a crashed part leaves behind is found by its mark.
    os.kill(second.services["scheduler"].pid, signal.SIGKILL)
    tidemark("down")
    assert processes.carrying(recorded.stack_id) == []
    assert not stack_file(settings.var_dir).exists()
    assert all(ports.is_free(second.services[name].port) for name in ("broker", "api-server"))


def listening_elsewhere(mark: str) -> list[str]:
    """Addresses other than loopback on which a process of this stack listens."""
    found = []
    for process in processes.carrying(mark):
        # Airflow's short-lived ones end while one looks.
        with suppress(psutil.NoSuchProcess):
            found += process.net_connections("inet")
    return [str(c.laddr) for c in found if c.status == psutil.CONN_LISTEN and not c.laddr.ip.endswith(ports.LOOPBACK)]
