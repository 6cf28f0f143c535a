"""The stream, Airflow and its users, as the scenarios of `make oncall` use them."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from tests.support.airflow.real_airflow import RealAirflow
from tests.support.alert_notes import NOTES_FILE, noted
from tests.support.truth.topics import committed_offsets, end_offsets, partitions
from tests.system.crash.bench import Bench
from tests.system.crash.nodes import contents
from tests.system.oncall.probe import ARM_FILE

from tidemark import processes
from tidemark.alerts import AlertKind
from tidemark.devstack import airflow_parts
from tidemark.devstack.airflow import AirflowApi, AirflowRefused
from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.topics import user_topics
from tidemark.names import endpoints_topic, events_topic
from tidemark.operations.workspace import workspaces
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.hold import read_hold
from tidemark.supervision.run_file import read_run_file, recorded_process, run_file_path

if TYPE_CHECKING:
    from tests.system.oncall.deployed import Clicks

RESTORE = "restore_oncall"
RESET = "reset"
STREAM = "stream__patient_monitoring"
RESPONSE_S = 90
_READING_S = 10.0
_LOOK_S = 0.5
_HITL = "/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/approval/-1/hitlDetails"


class Wrong(Exception):
    """Something is not as it must be."""


def expect(is_so: object, what: str) -> None:
    """Raise `Wrong` where it is not."""
    if not is_so:
        raise Wrong(what)


class Ward(Bench):
    """Patient monitoring, its instance launched by its DAG."""

    def committed(self) -> dict[tuple[str, int], int | None]:
        """The group's committed offset in every source partition."""
        places = [(t, p) for s in self.plan.subtopologies for t in s.source_topics for p in range(self.partitions)]
        found = committed_offsets(self.bootstrap, self.application_id, places)
        return {place: found.get(place) for place in places}

    def wait_drained(self, timeout_s: float = 180) -> None:
        """Until the group's committed offsets are the sources' ends."""

        def drained() -> bool:
            found = self.committed()
            return found == end_offsets(self.bootstrap, list(found), "read_uncommitted")

        expect(wait_until(drained, timeout_s, every_s=0.5), f"not everything is committed after {timeout_s} s")


class Scene:
    """The stream, Airflow, its users, and what a scenario asks of them. `clicks` is the same of another stream."""

    def __init__(
        self,
        bench: Ward | Clicks,
        settings: Settings,
        airflow: RealAirflow,
        console: Console,
        clicks: Scene | None = None,
    ) -> None:
        self.bench = bench
        self.clicks = clicks
        self.settings = settings
        self.airflow = airflow
        self.console = console
        passwords = json.loads(airflow_parts.password_file(settings).read_text())
        self.users = {user: AirflowApi(airflow.api.url, user, passwords[user]) for user in passwords}
        self.arm_file = Path(os.environ[ARM_FILE])
        self.notes = Path(os.environ[NOTES_FILE])

    def trigger(self, user: str = "oncall", dag_id: str = RESTORE, **conf: Any) -> str:
        """Start a restore, or a change, as a user; the run's id."""
        body = {"topology": self.bench.topology, "reason": "the test asks for it", "relaunch_timeout_s": 120, **conf}
        return self.users[user].trigger(dag_id, body)

    def asked(self, run_id: str, timeout_s: float = 120, dag_id: str = RESTORE) -> dict[str, Any]:
        """Wait until the approval is asked for; what is shown."""
        found: list[dict[str, Any]] = []

        def is_asked() -> bool:
            try:
                found.append(self.airflow.api.call("GET", _HITL.format(dag=dag_id, run=run_id.replace("+", "%2B"))))
            except AirflowRefused:
                return False
            return True

        expect(wait_until(is_asked, timeout_s, every_s=1.0), "nobody was asked to approve")
        # Nobody reads a plan faster; and an answer before the worker has reported that it waits is asked for once more.
        threading.Event().wait(_READING_S)
        return found[0]

    def answer(self, run_id: str, user: str, option: str, dag_id: str = RESTORE) -> None:
        """Answer the approval as a user. Raises `AirflowRefused`."""
        path = _HITL.format(dag=dag_id, run=run_id.replace("+", "%2B"))
        self.users[user].call("PATCH", path, {"chosen_options": [option], "params_input": {}})

    def run_ended(self, run_id: str, timeout_s: float = 300, dag_id: str = RESTORE) -> dict[str, Any]:
        """Wait for the run's end; its state, and its tasks'."""

        def is_over() -> bool:
            try:
                return self.airflow.api.run_state(dag_id, run_id) in ("success", "failed")
            except AirflowRefused:
                return False

        expect(wait_until(is_over, timeout_s, every_s=1.0), f"the run has not ended after {timeout_s} s")
        states = self.airflow.api.task_states(dag_id, run_id)
        return {"state": self.airflow.api.run_state(dag_id, run_id), "tasks": states}

    def mark(self, run_id: str, user: str, task_id: str, dag_id: str) -> None:
        """Mark a task successful as a user, as its page does."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id.replace('+', '%2B')}/taskInstances/{task_id}"
        self.users[user].call("PATCH", path, {"new_state": "success"})

    def clear(self, run_id: str, user: str, dag_id: str, tasks: Sequence[str] = ()) -> None:
        """Clear tasks of a run as a user, every one where none is named, so that they run again."""
        body: dict[str, Any] = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True}
        if tasks:
            body["task_ids"] = list(tasks)
        self.users[user].call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", body)

    def ended(self, run_id: str, timeout_s: float = 300, dag_id: str = RESTORE) -> dict[str, Any]:
        """Wait for the end of a restore or a change; its report, with the run's and the tasks' states."""
        how = self.run_ended(run_id, timeout_s, dag_id)
        folders = sorted((self.settings.var_dir / "oncall" / self.bench.application_id).iterdir())
        report: dict[str, Any] = json.loads((folders[-1] / "report.json").read_text())
        expect((folders[-1] / "report.html").exists(), "there is no page")
        return {**report, **how}

    def standing(self) -> dict[str, Any]:
        """What must not change where nothing may: the instance's process, its folders, holds, restores."""
        said = read_run_file(run_file_path(self.bench.var_dir, self.bench.application_id, 0)) or {}
        state_dir, app = self.settings.state_dir, self.bench.application_id
        folders = sorted((state_dir / "0" / app).glob("*/rocksdb/*"))
        return {
            "process": recorded_process(said),
            "stores": {str(folder): folder.stat().st_ino for folder in folders},
            "hold": read_hold(self.settings.var_dir, app),
            "restores": [w.folder.name for w in workspaces(state_dir, app)],
            "starts": len(list((self.settings.var_dir / "log" / "instances").glob("*"))),
        }

    def world(self) -> dict[str, Any]:
        """All of that, and what Kafka and the stores hold; to be asked for while nothing arrives."""
        app, admin = self.bench.application_id, self.bench.admin
        own = {t for t in admin.list_topics(timeout=15).topics if t.startswith(f"{app}-")} - {
            events_topic(app),
            endpoints_topic(app),
        }
        topics = sorted(own | set(user_topics(self.bench.plan)))
        ends = end_offsets(self.bench.bootstrap, partitions(self.bench.bootstrap, topics), "read_uncommitted")
        configs = topic_configs(admin, topics, self.settings)
        return {
            **self.standing(),
            "committed": self.bench.committed(),
            "ends": ends,
            "configs": {topic: _own_settings(found) for topic, found in configs.items()},
            "contents": {store: _digest(Path(store)) for store in self.standing()["stores"]},
        }

    def drivers(self) -> list[int]:
        """Every living driver of the stream, whoever launched it."""
        parents = {}
        for process in processes.carrying(os.environ[processes.MARK]):
            with suppress(psutil.Error):
                line = process.cmdline()
                if (
                    line
                    and "python" in Path(line[0]).name
                    and any(part.endswith("stream_instance.py") for part in line[1:3])
                ):
                    parents[process.pid] = process.ppid()
        # What a driver starts looks like the driver itself until it has become the other program.
        return [pid for pid, parent in parents.items() if parent not in parents]

    def await_running(self, timeout_s: float = 120) -> None:
        """Until the instance runs."""

        def runs() -> bool:
            said = read_run_file(run_file_path(self.bench.var_dir, self.bench.application_id, 0)) or {}
            process = recorded_process(said)
            return said.get("state") == "RUNNING" and process is not None and process.is_alive()

        expect(wait_until(runs, timeout_s, every_s=0.5), "the instance does not run")

    def task_id(self, dag_id: str, task_id: str) -> str:
        """What Airflow's workers call a task of the newest run."""
        run_id = self.airflow.newest_run(dag_id)["dag_run_id"].replace("+", "%2B")
        found = self.airflow.api.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")
        return str(next(task["id"] for task in found["task_instances"] if task["task_id"] == task_id))

    @contextmanager
    def never_two(self) -> Iterator[None]:
        """There is at most one instance at any time of the block."""
        stop, looks = threading.Event(), 0
        together: set[tuple[int, ...]] = set()

        def look() -> None:
            nonlocal looks
            while not stop.wait(_LOOK_S):
                looks, found = looks + 1, self.drivers()
                if len(found) > 1:
                    together.add(tuple(found))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(30)
        expect(looks > 0 and not together, f"there were several instances at a time, by pid: {sorted(together)}")

    def commits_on(self, timeout_s: float = 60) -> None:
        """Until something is committed that was not."""
        before = self.bench.committed()
        expect(wait_until(lambda: self.bench.committed() != before, timeout_s, every_s=0.5), "nothing is committed")

    def alerts(self, what: AlertKind, since: int = 0) -> list[str]:
        """Messages of the alerts of a kind, `since` that many of all kinds."""
        return [alert["message"] for alert in noted(self.notes)[since:] if alert["what"] == what]

    def require_exact(self) -> None:
        """Everything that went in was counted once, in outputs, changelogs, offsets and stores."""
        self.await_running()
        self.bench.wait_drained()
        missing, duplicated, wrong, report = self.bench.differences()
        expect((missing, duplicated, wrong) == (0, 0, 0) and not report, f"not exactly once: {report[:5]}")


def _own_settings(config: dict[str, str]) -> dict[str, str]:
    return {
        name: config[name] for name in sorted(config) if name.split(".")[0] in ("cleanup", "min", "retention", "delete")
    }


def _digest(folder: Path) -> str:
    """Of the keys and values of a store that its instance has open."""
    found = hashlib.sha256()
    for key, value in sorted(contents(folder).items()):
        found.update(len(key).to_bytes(4) + key + value)
    return found.hexdigest()


def differing(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What is another in two worlds, in short; empty where nothing is."""
    return "; ".join(
        f"{name}: {before[name]} and now {after[name]}"[:600] for name in before if before[name] != after[name]
    )


@contextmanager
def refused(what: str) -> Iterator[None]:
    """The block must end with 403."""
    try:
        yield
    except AirflowRefused as error:
        expect(error.status == 403, f"{what}: {error}")
        return
    raise Wrong(what)
