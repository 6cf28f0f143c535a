"""A DAG per topology, made from the topology: the factory that `dags/streams.py` calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowFailException

from tidemark.alerts.alert import AlertKind
from tidemark.alerts.raising import load_callback
from tidemark.errors import InvalidSettings, InvalidTopology
from tidemark.settings import Settings
from tidemark_airflow.alerting import AlertOnFailure
from tidemark_airflow.operations import STREAM_PRIORITY
from tidemark_airflow.policy import RestartBudget
from tidemark_airflow.stream_operator import StreamOperator

_BUDGET = RestartBudget()
_MAX_INSTANCES = 64

_RUNBOOK = """\
Runs `{application_id}` for ever: launches its instances, watches them, relaunches them.

| to | do |
|---|---|
| start | unpause this DAG |
| stop | **pause** this DAG: within a minute each instance commits its batch and ends; unpausing launches it again |
| stop now | pause this DAG, then mark its run *failed* |
| stop, shorter | mark every mapped `instance` task *failed*: the run fails, and the DAG pauses itself |
| restart | mark the run *failed* or *success* and leave the DAG unpaused |
| change the parameters | trigger a run with them (it queues), then mark the running one *success* |
| restart one of several | mark its mapped task *failed*, then clear it; clearing a living one adopts it |

The DAG `stream_pauses` does the stopping; keep it unpaused. When a run fails by itself the DAG pauses itself: read
the task's last lines, remove the cause, unpause. `docs/airflow.md` says more, `docs/alerts.md` who is told.

```
{description}
```
"""


class Described(Protocol):
    """What the factory needs of a topology."""

    @property
    def application_id(self) -> str:
        """Name of the application."""

    def describe(self) -> str:
        """The topology as text."""


def stream_dag(name: str, topology: Described, script: str | None = None, dag_id: str | None = None) -> DAG:
    """The DAG that keeps one topology running. `script` replaces the instance's program; tests use it."""
    with DAG(
        dag_id=dag_id or f"stream__{name}",
        description=f"Keeps the stream {name} running",
        doc_md=_RUNBOOK.format(application_id=topology.application_id, description=topology.describe()),
        # Unpausing is enough to launch, and a run that ended is followed by another.
        schedule="@continuous",
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # A run that fails by itself needs a person: the next one would fail the same way.
        max_consecutive_failed_dag_runs=1,
        is_paused_upon_creation=True,
        # A stream has no end, so there is no dagrun_timeout.
        default_args=_default_args(topology.application_id),
        params=_params(),
        tags=["tidemark", "stream", topology.application_id],
    ) as dag:
        numbers = _instances()
        StreamOperator.partial(
            task_id="instance",
            topology=name,
            application_id=topology.application_id,
            script=script,
            map_index_template="{{ task.application_id }}-{{ task.instance }}",
            doc_md=f"One instance of `{topology.application_id}`. Mark it failed to stop this instance alone.",
        ).expand(instance=numbers)
    return dag


def unloadable_dag(name: str, error: Exception) -> DAG:
    """A DAG that Airflow refuses with the topology's error, so that the others in the file still show."""
    return _Unloadable(
        dag_id=f"stream__{name}",
        schedule=None,
        description=f"topologies.{name}: {type(error).__name__}: {error}",
        default_args={"owner": "streams"},
    )


class _Unloadable(DAG):
    def validate(self) -> None:
        """Refuse; the message becomes the import error of the file."""
        raise InvalidTopology(self.description or self.dag_id)


@task(task_id="instances", doc_md="Numbers the instances: 0, 1, …")
def _instances(params: dict[str, Any] | None = None) -> list[int]:
    try:
        # Found now, and not when there is something to tell.
        load_callback(Settings.load())
    except InvalidSettings as error:
        raise AirflowFailException(str(error)) from error
    return list(range(int((params or {})["instances"])))


def _default_args(application_id: str) -> dict[str, Any]:
    return {
        "owner": "streams",
        # For what happens to workers, not to instances: a retry adopts what lives.
        "retries": 20,
        "retry_delay": timedelta(seconds=5),
        # Of one launch or one decision; the first launch may fetch jars. Watching is not limited.
        "execution_timeout": timedelta(minutes=15),
        "priority_weight": STREAM_PRIORITY,
        "weight_rule": "absolute",
        "on_failure_callback": AlertOnFailure(AlertKind.STREAM_FAILED, application_id),
    }


def _params() -> dict[str, Param]:
    return {
        "instances": Param(
            1,
            type="integer",
            minimum=1,
            maximum=_MAX_INSTANCES,
            title="Instances",
            description="How many instances share the partitions. More than there are partitions stay idle.",
        ),
        "max_restarts": Param(
            _BUDGET.max_restarts,
            type="integer",
            minimum=0,
            title="Restarts",
            description="How often one instance may be relaunched within the window below before the task fails.",
        ),
        "restart_window_s": Param(
            int(_BUDGET.window_s),
            type="integer",
            minimum=1,
            title="Restart window (seconds)",
            description="Relaunches older than this no longer count.",
        ),
        "backoff_max_s": Param(
            int(_BUDGET.backoff_max_s),
            type="integer",
            minimum=0,
            title="Longest backoff (seconds)",
            description="The first relaunch comes at once, then after 10, 20, 40, … seconds, at most this long.",
        ),
    }
