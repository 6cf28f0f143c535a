"""`tidemark standby` as a user runs it: processes, signals, locks, and the status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.standby import Application, contents, count

from tidemark.cli.standby import LogLines, table_of
from tidemark.names import TaskId
from tidemark.processes import wait_until
from tidemark.standby.copies import StandbyCopies
from tidemark.standby.progress import CatchUpRate
from tidemark.stores.checkpoint_file import read_checkpoint
from tidemark.stores.directory import InstanceDirectory
from tidemark.stores.rocksdb import RocksStore
from tidemark.supervision.local_instances import local_instances
from tidemark.supervision.run_file import read_run_file, standby_file_path
from tidemark.topology_loader import load

ROOT = Path(__file__).resolve().parents[3]
TASK = TaskId(0, 0)
TOPOLOGY = """
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized


def topology() -> Topology:
    topology = Topology("{app}")
    stream = topology.stream("{app}-in", schema="id STRING", key="id")
    stream.group_by_key().count(name="n", store="n").to("{app}-out")
    stream.group_by_key().count(name="n", store=Materialized("m", in_memory=True)).to("{app}-out2")
    return topology
"""


@pytest.fixture
def written(settings, admin, unique, tmp_path, monkeypatch):
    """An application whose topology is a module that processes find; `m` is in memory."""
    name = unique("standby_made").replace("-", "_")
    (tmp_path / f"{name}.py").write_text(TOPOLOGY.format(app=unique("app")))
    import topologies

    monkeypatch.setattr(topologies, "__path__", [*topologies.__path__, str(tmp_path)])
    made = Application(load(name).plan(), settings, admin)
    made.topology_name, made.module_folder = name, tmp_path
    made.commit({"n": {0: [(b"a", count(1)), (b"b", None)], 1: [(b"x", count(2))]}})
    return made


@pytest.fixture
def launch(written, settings):
    """`launch()` starts a standby process; what still runs is killed with the test."""
    started = []

    def start(number=0):
        environment = {
            **os.environ, **settings.as_environment(), "PYTHONPATH": str(ROOT / "include"),
            "TIDEMARK_TOPOLOGY_PATH": str(written.module_folder),
        }  # fmt: skip
        command = [
            sys.executable, "-m", "tidemark.cli.main", "standby", "run", written.topology_name, "--number", str(number),
        ]  # fmt: skip
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def is_level(application):
    said = read_run_file(standby_file_path(application.settings.var_dir, application.id, 0)) or {}
    return said.get("state") == "RUNNING"


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_run_until_told_to_stop_and_leave_its_state_as_an_instance_does(written, launch, settings):
    process = launch()
    assert wait_until(lambda: is_level(written), 60)
    (row,) = local_instances(settings.var_dir, time.time())
    assert (row.application, row.instance, row.state) == (written.id, "standby-0", "RUNNING")
    second = launch()
    _, said = second.communicate(timeout=120)
    assert second.returncode == 10
    (line,) = [line for line in said.splitlines() if line.startswith("tidemark:")]
    assert f"locked by process {process.pid}" in line
    assert "--number" in line
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "not followed: m (in memory)" in said
    (row,) = local_instances(settings.var_dir, time.time())
    assert row.state == "NOT_RUNNING"
    folder = settings.state_dir / "standby-0" / written.id / "0_0"
    store = RocksStore(folder / "rocksdb" / "n", write_buffer_bytes=1 << 20)
    assert contents(store) == {b"a": count(1)}
    assert read_checkpoint(folder / ".checkpoint") == {written.changelog("n"): store.checkpoint.changelog_offset}
    store.close()


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_count_as_a_dead_peer_once_it_is_killed(written, launch, settings):
    process = launch()
    copies = StandbyCopies(settings.state_dir, written.id)
    assert wait_until(lambda: copies.find([TASK])[TASK].get("n"), 60)
    heir = InstanceDirectory(settings.state_dir, written.id, 0)
    heir.open_task(TaskId(0, 1)).close()
    assert not (heir.folder / "0_1" / "rocksdb").exists(), "what a live standby holds is not renamed"
    process.kill()
    process.wait()
    assert copies.find([TASK])[TASK] == {}
    task = heir.open_task(TASK)
    store = RocksStore(task.store_path("n"), write_buffer_bytes=1 << 20)
    assert contents(store) == {b"a": count(1)} == written.fold("n")
    store.close()
    task.close()
    heir.close()


PACES = [
    CatchUpRate("0_0", "n", 50, 150, 100, 25.0, 4.0),
    CatchUpRate("0_1", "n", 7, 7, 0, 0.0, 0.0),
    CatchUpRate("0_2", "n", 1, 9, 8, 0.0, None),
]


def test_should_show_how_far_each_copy_is_and_when_it_will_be_up_to_date():
    cells = [[cell.plain for cell in row] for row in table_of(PACES).rows]
    assert cells[0] == ["0_0", "n", "50", "150", "100", "25", "4 s"]
    assert [row[-1] for row in cells] == ["4 s", "none", "—"]


def test_should_log_every_copy_and_then_be_silent_for_some_seconds(caplog):
    caplog.set_level("INFO")
    tell = LogLines()

    def lines():
        return [record for record in caplog.records if record.name == "tidemark.standby"]

    tell(PACES)
    assert "task=0_0 store=n at=50 to=150 lag=100 rate=25/s left=4 s" in caplog.text
    assert len(lines()) == len(PACES)
    tell(PACES)
    assert len(lines()) == len(PACES)
