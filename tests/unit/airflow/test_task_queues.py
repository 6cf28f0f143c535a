"""The queues of tasks, as the scheduler and a worker read them from the serialized DAG."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import DownstreamTasksSkipped
from airflow.serialization.serialized_objects import DagSerialization

from tidemark_airflow.dag import stream_dag
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import operations_dag
from tidemark_airflow.pausing import pauses_dag

DEFAULT = "default"


class _Topology:
    application_id = "patient-monitoring"
    num_standby_replicas = 2

    def describe(self) -> str:
        return "a stand-in"


def stream() -> DAG:
    return stream_dag("patient_monitoring", _Topology())


def pauses() -> DAG:
    return pauses_dag(lambda: {})


def operation() -> DAG:
    with operations_dag(
        "anything", kind=DagKind.OPERATION, description="", use_when="", runbook="", schedule=None, params={}
    ) as dag:
        dag.task(task_id="one")(lambda: None)()
        dag.task(task_id="many")(lambda n: None).expand(n=[1, 2])
    return dag


def written(dag: DAG) -> dict[str, Any]:
    """Return a DAG as Airflow serializes it."""
    found: dict[str, Any] = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    return found


def queues(dag: DAG) -> dict[str, str]:
    """The queue that the scheduler gives to each task."""
    return {task.task_id: task.queue for task in DagSerialization.from_dict(written(dag)).tasks}


CASES = {
    ("", ""): {"instance": DEFAULT, "standby": DEFAULT, "stop_paused": DEFAULT, "one": DEFAULT, "many": DEFAULT},
    ("a", ""): {"instance": "a", "standby": "a", "stop_paused": "a", "one": "a", "many": "a"},
    ("a", "a"): {"instance": "a", "standby": "a", "stop_paused": "a", "one": "a", "many": "a"},
    ("", "b"): {
        "instance": DEFAULT, "standby": "b", "stop_paused": DEFAULT, "stop_paused_standbys": "b",
        "one": DEFAULT, "many": DEFAULT,
    },
    ("a", "b"): {
        "instance": "a", "standby": "b", "stop_paused": "a", "stop_paused_standbys": "b", "one": "a", "many": "a",
    },
}  # fmt: skip


@pytest.mark.parametrize("asked", CASES)
def test_should_send_each_task_to_the_machine_on_which_its_processes_are(
    asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance_queue, standby_queue = asked
    monkeypatch.setenv("TIDEMARK_INSTANCE_QUEUE", instance_queue)
    monkeypatch.setenv("TIDEMARK_STANDBY_QUEUE", standby_queue)
    assert queues(stream()) | queues(pauses()) | queues(operation()) == {"instances": DEFAULT, **CASES[asked]}


@pytest.mark.parametrize("make", [stream, pauses, operation])
def test_should_name_no_queue_without_the_settings(make: Callable[[], DAG]) -> None:
    assert '"queue"' not in json.dumps(written(make()))


@pytest.mark.parametrize("is_paused", [False, True])
def test_should_need_no_worker_of_standbys_while_no_stream_is_paused(
    is_paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_STANDBY_QUEUE", "b")
    dag = pauses_dag(lambda: {"stream__a": "app"})
    ti = SimpleNamespace(
        get_dag=lambda _: SimpleNamespace(is_paused=is_paused, tags=[]), xcom_push=lambda **_: None, map_index=-1
    )
    context: Any = {"ti": ti, "task": dag.get_task("stop_paused"), "dag_run": None}
    if is_paused:
        assert dag.get_task("stop_paused").execute(context) == ["stream__a"]
        return
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        dag.get_task("stop_paused").execute(context)
    assert skipped.value.tasks == ["stop_paused_standbys"]


def test_a_worker_should_defer_the_task_of_a_standby_to_a_triggerer_of_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEMARK_STANDBY_QUEUE", "b")
    dag = stream()
    # Airflow takes the queue of a trigger from the operator that has deferred.
    assert dag.get_task("standby").unmap({"instance": 1}).queue == "b"
    assert dag.get_task("instance").unmap({"instance": 0}).queue == DEFAULT
