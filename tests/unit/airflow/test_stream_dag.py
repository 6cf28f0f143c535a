"""The restart budget that a stream's DAG file gives: the tasks of the DAG must have it, not only the DAG."""

from tidemark.supervision.restart_policy import RestartBudget
from tidemark.topology_loader import load
from tidemark_airflow.dag import stream_dag


def test_should_give_the_budget_to_every_task() -> None:
    budget = RestartBudget(max_restarts=7, window_s=60, backoff_max_s=5)
    dag = stream_dag("patient_monitoring", load("patient_monitoring"), budget=budget)
    given = {"instances": 1, "max_restarts": 7, "restart_window_s": 60, "backoff_max_s": 5}
    assert {task.task_id: dict(task.params) for task in dag.tasks} == dict.fromkeys(("instances", "instance"), given)
