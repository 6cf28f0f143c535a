"""The end of an instance: everything is closed even after a failure, and the process ends although threads still run."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.support.counting import NO_PROBE, counted_plan

from tidemark import processes
from tidemark.errors import ExitCode
from tidemark.folder_lock import FolderLock
from tidemark.instance.assembly import make_instance
from tidemark.settings import project_root
from tidemark.supervision.state import InstanceState

_ENDS_BY_A_FAULT = """
import runpy, sys, threading
from tidemark.settings import Settings
def load():
    raise ZeroDivisionError("a fault")
Settings.load = load
threading.Thread(target=threading.Event().wait).start()
sys.argv = ["stream_instance.py", "--topology", "clicks"]
runpy.run_path("spark_jobs/stream_instance.py", run_name="__main__")
"""

_WITHOUT_TOPICS = """
from tidemark.topology.builder import Topology
def topology():
    topology = Topology("without-topics")
    records = topology.stream("without-topics-in", schema="id STRING", key="id")
    records.group_by_key().count(store="counts").to("without-topics-out")
    return topology
"""


@pytest.mark.broker
@pytest.mark.parametrize("part", ["member", "savepoints"])
def test_should_close_the_rest_when_a_part_cannot_be_closed(settings, admin, unique, part):
    instance = make_instance(counted_plan(settings, admin, unique("app"), 0), settings, 0, "made", NO_PROBE)
    close = getattr(instance, part).close

    def closing():
        close()
        raise KafkaException(KafkaError(KafkaError._DESTROY))

    getattr(instance, part).close = closing
    instance.close(None)
    assert instance.states.state is InstanceState.ERROR, "it never ran"
    FolderLock(instance.folder).release()


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_should_leave_no_jvm_when_its_topics_are_missing(settings, tmp_path, spark_jars):
    (tmp_path / "without_topics.py").write_text(_WITHOUT_TOPICS)
    mark = uuid.uuid4().hex
    environment = {
        **os.environ, **settings.as_environment(), "PYTHONPATH": f"{project_root()}:{project_root() / 'include'}",
        "TIDEMARK_TOPOLOGY_PATH": str(tmp_path), processes.MARK: mark,
    }  # fmt: skip
    command = [sys.executable, project_root() / "spark_jobs" / "stream_instance.py", "--topology", "without_topics"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == ExitCode.REFUSED, ended.stderr
    assert "without-topics-in" in ended.stderr
    assert processes.wait_until(lambda: not processes.carrying(mark), 60), processes.carrying(mark)


def test_should_end_after_a_fault_even_when_a_library_thread_still_runs():
    environment = {**os.environ, "PYTHONPATH": f"{project_root()}:{project_root() / 'include'}"}
    command = [sys.executable, "-c", _ENDS_BY_A_FAULT]
    ended = subprocess.run(
        command, env=environment, cwd=project_root(), capture_output=True, text=True, timeout=180, check=False
    )
    assert ended.returncode == ExitCode.FAILED
    assert "ZeroDivisionError: a fault" in ended.stderr
