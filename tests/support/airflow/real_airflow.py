"""A whole Airflow on loopback for one test: its parts can be killed and started again one by one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tidemark import processes
from tidemark.devstack import airflow_parts, ports
from tidemark.devstack.airflow import AirflowApi, AirflowRefused
from tidemark.devstack.record import AirflowAccess
from tidemark.devstack.stack import READY_TIMEOUT_S
from tidemark.processes import Identity, wait_until
from tidemark.settings import Settings, project_root

# Airflow waits for minutes before it believes that a part is dead; a test does not. A worker sends a heartbeat every five
# seconds, and the API server may stand still for as long as a writer waits for SQLite's lock: a worker whose heartbeat is
# late for that reason is alive.
IMPATIENT = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(airflow_parts.LOCKED_S + 10),
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "6",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
}


def answered(ask: Callable[[], bool]) -> Callable[[], bool]:
    """`ask`, and False where Airflow refuses: one that is too busy to answer is asked again."""

    def is_so() -> bool:
        try:
            return ask()
        except AirflowRefused:
            return False

    return is_so


class RealAirflow:
    """Its four parts. Everything they start carries `mark` in its environment."""

    def __init__(self, settings: Settings, dags: Path, mark: str) -> None:
        self._settings = settings
        self._mark = mark
        self._environment = {
            **airflow_parts.environment(settings, mark, ports.free_port()),
            **IMPATIENT,
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        }
        self._parts: dict[str, Identity] = {}
        airflow_parts.prepare(settings, self._environment)
        access = AirflowAccess(
            self._environment["AIRFLOW__API__BASE_URL"], "admin", str(airflow_parts.password_file(settings))
        )
        self.api = AirflowApi.of(access)

    def start(self, *parts: str) -> None:
        """Start these parts, or all, and wait until they say that they are well."""
        started = time.time()
        names = parts or tuple(airflow_parts.PARTS)
        for part in names:
            log = airflow_parts.home(self._settings) / "logs" / f"{part}.log"
            self._parts[part] = processes.start(airflow_parts.command(part), log, self._environment, project_root())

        def are_well() -> bool:
            unhealthy = {name.replace("_", "-") for name in self.api.unhealthy(since=started)}
            return not unhealthy & set(names)

        assert wait_until(answered(are_well), 3 * READY_TIMEOUT_S, every_s=0.5), names

    def token(self, user: str) -> str:
        """A user's token, which a program sends as a bearer token and a browser as the cookie `_token`."""
        access = AirflowAccess(self.api.url, user, str(airflow_parts.password_file(self._settings)))
        return AirflowApi.of(access).log_in()

    def send(self, part: str, number: signal.Signals) -> None:
        """Signal a part and everything in its session: its workers, its runners."""
        leader = self._parts[part].pid
        for process in processes.carrying(self._mark):
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == leader:
                    process.send_signal(number)

    def kill(self, part: str) -> None:
        """SIGKILL a part with everything in its session."""
        self.send(part, signal.SIGKILL)
        assert wait_until(lambda: not self._parts[part].is_alive(), 60)

    def pid(self, part: str) -> int:
        """The id of a part's own process."""
        return self._parts[part].pid

    def is_alive(self, part: str) -> bool:
        """Whether the part's own process runs."""
        return self._parts[part].is_alive()

    def is_paused(self, dag_id: str) -> bool:
        """Whether the DAG is paused."""
        return bool(self.api.call("GET", f"/api/v2/dags/{dag_id}")["is_paused"])

    def newest_run(self, dag_id: str) -> dict[str, Any]:
        """The run that was made last, or an empty one."""
        runs = self.api.runs(dag_id)
        return runs[0] if runs else {}

    def await_task(self, dag_id: str, task_id: str, state: str, timeout_s: float = 180) -> None:
        """Wait until a task of the newest run is in a state."""

        def reached() -> bool:
            run = self.newest_run(dag_id)
            return bool(run) and self.api.task_states(dag_id, run["dag_run_id"]).get(task_id) == state

        assert wait_until(answered(reached), timeout_s, every_s=0.5), f"{task_id} did not become {state}"

    def tries(self, dag_id: str, run_id: str) -> int:
        """The number of tries so far of the task `instance` with map index 0."""
        said = self.api.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/instance/0")
        return int(said["try_number"])

    def task_log(self, dag_id: str, run_id: str, task_id: str, map_index: int, tries: int = 1) -> str:
        """What the page shows as the log of a task's try."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{tries}?map_index={map_index}"
        return str(self.api.call("GET", path)["content"])

    def xcom(self, dag_id: str, run_id: str, task_id: str, map_index: int, key: str) -> Any:
        """The value of a task's XCom, or None if there is none: Airflow deletes a task's XComs when it runs again."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}?map_index={map_index}"
        try:
            return self.api.call("GET", f"{path}&deserialize=true")["value"]
        except AirflowRefused as refused:
            if refused.status == 404:
                return None
            raise


@contextmanager
def real_airflow(settings: Settings, dags: Path, mark: str, *parts: str) -> Iterator[RealAirflow]:
    """Start Airflow, or only these parts of it, with the DAGs of a folder; at the end nothing of it is left."""
    with processes.guarded(mark):
        airflow = RealAirflow(settings, dags, mark)
        airflow.start(*parts)
        yield airflow
