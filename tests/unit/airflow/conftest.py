from tests.support.airflow.fixtures import _airflow_home_is_removed, _outside_of_a_worker, bench, make_bench, task

__all__ = ["_airflow_home_is_removed", "_outside_of_a_worker", "bench", "make_bench", "task"]
