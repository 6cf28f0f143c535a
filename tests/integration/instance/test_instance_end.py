"""The end of an instance: everything is closed even after a failure, and the process ends although threads still run."""

from __future__ import annotations

import json
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
from tidemark.supervision.run_file import read_run_file, run_file_path
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

_COUNTS = """
from tidemark.topology.builder import Topology
def topology():
    topology = Topology("APPLICATION")
    records = topology.stream("APPLICATION-in", schema="id STRING", key="id")
    records.group_by_key().count(store="counts").to("APPLICATION-out")
    return topology
"""


def launched(settings, folder, application_id, **environment):
    """The end of a launched instance of a count."""
    (folder / "counts.py").write_text(_COUNTS.replace("APPLICATION", application_id))
    root = project_root()
    return subprocess.run(
        [sys.executable, root / "spark_jobs" / "stream_instance.py", "--topology", "counts"],
        env={
            **os.environ, **settings.as_environment(), "PYTHONPATH": f"{root}:{root / 'include'}",
            "TIDEMARK_TOPOLOGY_PATH": str(folder), **environment,
        },
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


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
def test_should_leave_no_jvm_when_its_topics_are_missing(settings, tmp_path, spark_jars, unique):
    mark, application_id = uuid.uuid4().hex, unique("missing")
    ended = launched(settings, tmp_path, application_id, **{processes.MARK: mark})
    assert ended.returncode == ExitCode.REFUSED, ended.stderr
    assert f"{application_id}-in" in ended.stderr
    assert processes.wait_until(lambda: not processes.carrying(mark), 60), processes.carrying(mark)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_should_end_with_the_error_of_spark_though_it_may_have_joined(
    settings, tmp_path, spark_jars, unique, create_topic
):
    application_id = unique("no-spark")
    for end in ("in", "out"):
        create_topic(f"{application_id}-{end}")
    options = {"spark.driver.extraJavaOptions": "-javaagent:/no/such.jar"}
    extra = {"TIDEMARK_SPARK_EXTRA_CONF": json.dumps(options)}
    ended = launched(settings, tmp_path, application_id, **extra)
    assert ended.returncode == ExitCode.FAILED, ended.stderr
    assert "JAVA_GATEWAY_EXITED" in ended.stderr
    assert (
        InstanceState(read_run_file(run_file_path(settings.var_dir, application_id, 0))["state"]) is InstanceState.ERROR
    )


def test_should_end_after_a_fault_even_when_a_library_thread_still_runs():
    environment = {**os.environ, "PYTHONPATH": f"{project_root()}:{project_root() / 'include'}"}
    command = [sys.executable, "-c", _ENDS_BY_A_FAULT]
    ended = subprocess.run(
        command, env=environment, cwd=project_root(), capture_output=True, text=True, timeout=180, check=False
    )
    assert ended.returncode == ExitCode.FAILED
    assert "ZeroDivisionError: a fault" in ended.stderr
