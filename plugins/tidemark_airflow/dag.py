"""The factory of the streams' DAGs, one per topology. `dags/streams.py` and `dags/unloadable_topologies.py` call it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowFailException

from tidemark.alerts import AlertKind, load_callback
from tidemark.errors import InvalidSettings, describe_error
from tidemark.settings import Settings
from tidemark.supervision.restart_policy import RestartBudget
from tidemark.topology_loader import load_all
from tidemark_airflow.alerting import AlertOnFailure
from tidemark_airflow.dag_kinds import DagKind, documented
from tidemark_airflow.operations import STREAM_PRIORITY, in_queue
from tidemark_airflow.stream_operator import StandbyOperator, StreamOperator

_BUDGET = RestartBudget()
_MAX_INSTANCES = 64

_USE_WHEN = """\
Unpause it to run the stream, and pause it to stop the stream. To restore its state use `restore_oncall`; to change the number
of tasks, the offsets or the topology's version use `rescale`, `reset` or `upgrade`.
"""
_RUNBOOK = """\
### What it does
Keeps `{application_id}` running: launches its instances and its standbys (`num_standby_replicas` of the topology), watches
them, and relaunches them when they end.

| to | do this |
|---|---|
| start | Unpause this DAG. |
| stop | **Pause** this DAG. Within a minute each instance commits its batch and ends. Unpausing launches it again. |
| stop now | Pause this DAG, then mark its run *failed*. |
| stop in one step | Mark every mapped `instance` and `standby` task *failed*: the run fails, and the DAG pauses itself. |
| restart | Mark the run *failed* or *success* and leave the DAG unpaused. |
| change the parameters | Trigger a run with them (it is queued), then mark the running one *success*. |
| restart one of several | Mark its mapped task *failed*, wait until its log says stopped, then clear it. |
| watch an instance again whose task has failed | Clear its mapped task: a live instance is adopted, not restarted. |

Clearing the task of an instance that is watched stops the instance and launches it again.

The DAG `stream_pauses` stops the instances of a paused DAG; keep it unpaused. When a run fails by itself, this DAG pauses
itself: read the last lines of the task's log, remove the cause, and unpause. While another instance or a standby of the run is
still up, the run goes on instead: remove the cause, and clear the failed task. See `docs/airflow.md`, and `docs/alerts.md` for
who gets an alert.

```
{description}
```
"""


class Described(Protocol):
    """The part of a topology that the factory needs."""

    @property
    def application_id(self) -> str:
        """The application's id."""

    @property
    def num_standby_replicas(self) -> int:
        """How many standbys run beside the instances."""

    def describe(self) -> str:
        """Return the topology as text."""


def stream_dag(
    name: str,
    topology: Described,
    script: str | None = None,
    dag_id: str | None = None,
    budget: RestartBudget = _BUDGET,
) -> DAG:
    """Return the DAG that keeps one topology running. `script` replaces the instance's program in tests.

    `budget` gives the defaults of the DAG's parameters. They cannot be changed afterwards: each task has copied them.
    The settings `instance_queue` and `standby_queue` of the process that parses the DAG choose who launches them.
    """
    dag_id = dag_id or f"stream__{name}"
    settings = Settings.load()
    with DAG(
        dag_id=dag_id,
        dag_display_name=DagKind.STREAM.display_name(dag_id),
        description=f"Keeps the stream {name} running",
        doc_md=documented(
            _USE_WHEN, _RUNBOOK.format(application_id=topology.application_id, description=topology.describe())
        ),
        # Unpausing is enough to launch, and Airflow starts a new run when one ends.
        schedule="@continuous",
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # A run that fails by itself needs a person: the next one would fail in the same way.
        max_consecutive_failed_dag_runs=1,
        is_paused_upon_creation=True,
        # A stream has no end, so there is no dagrun_timeout.
        default_args=_default_args(topology.application_id),
        params=_params(budget),
        tags=DagKind.STREAM.tags(topology.application_id),
        # `dags/unloadable_topologies.py` makes the DAGs as well, and must not be the file that Airflow has them from.
        auto_register=False,
    ) as dag:
        numbers = _instances()
        StreamOperator.partial(
            task_id="instance",
            topology=name,
            application_id=topology.application_id,
            script=script,
            map_index_template="{{ task.application_id }}-{{ task.instance }}",
            doc_md=f"One instance of `{topology.application_id}`. Mark it failed to stop this instance alone.",
            **in_queue(settings.instance_queue),
        ).expand(instance=numbers)
        if topology.num_standby_replicas:
            StandbyOperator.partial(
                task_id="standby",
                topology=name,
                application_id=topology.application_id,
                map_index_template="{{ task.application_id }}-standby-{{ task.instance }}",
                doc_md=f"One standby of `{topology.application_id}`. Mark it failed to stop this standby alone.",
                on_failure_callback=AlertOnFailure(AlertKind.STANDBY_FAILED, topology.application_id),
                **in_queue(settings.standby_queue or settings.instance_queue),
            ).expand(instance=list(range(topology.num_standby_replicas)))
    return dag


@dataclass(frozen=True)
class StreamDags:
    """The DAGs of the topologies that have one, and for each other topology a message that everybody may read.

    Airflow shows the import error of a file without DAGs to all who may see import errors, whichever DAGs they may see. So the
    error of a module, which may quote it, is only on the page of all streams, for those who may see the DAG.
    """

    dags: tuple[DAG, ...]
    faults: tuple[str, ...]


def stream_dags() -> StreamDags:
    """Load every topology and return the streams' DAGs. Airflow finds those that are global names of a DAG file."""
    dags, faults = [], []
    for name, loaded in load_all().items():
        if isinstance(loaded, Exception):
            faults.append(f"topologies/{name}.py has no DAG: the page of all streams says why")
            continue
        try:
            dags.append(stream_dag(name, loaded))
        except Exception as error:  # noqa: BLE001 - a topology is user code, and the others must still have their DAGs
            faults.append(f"topologies.{name}: {describe_error(error)}")
    return StreamDags(tuple(dags), tuple(faults))


@task(task_id="instances", doc_md="Numbers the instances: 0, 1, …")
def _instances(params: dict[str, Any] | None = None) -> list[int]:
    try:
        # An invalid alert callback must fail here, not when the first alert is raised.
        load_callback(Settings.load())
    except InvalidSettings as error:
        raise AirflowFailException(str(error)) from error
    return list(range(int((params or {})["instances"])))


def _default_args(application_id: str) -> dict[str, Any]:
    return {
        "owner": "streams",
        # Retries are for failures of workers, not of instances: a retry adopts the live instance.
        "retries": 20,
        "retry_delay": timedelta(seconds=5),
        # The limit of one launch or one decision; the first launch may download jars. Watching has no limit.
        "execution_timeout": timedelta(minutes=15),
        "priority_weight": STREAM_PRIORITY,
        "weight_rule": "absolute",
        "on_failure_callback": AlertOnFailure(AlertKind.STREAM_FAILED, application_id),
    }


def _params(budget: RestartBudget) -> dict[str, Param]:
    return {
        "instances": Param(
            1,
            type="integer",
            minimum=1,
            maximum=_MAX_INSTANCES,
            title="Instances",
            description="How many instances share the partitions. Instances beyond the number of partitions stay idle.",
        ),
        "max_restarts": Param(
            budget.max_restarts,
            type="integer",
            minimum=0,
            title="Restarts",
            description="How often an instance may be relaunched within the window below before its task fails.",
        ),
        "restart_window_s": Param(
            int(budget.window_s),
            type="integer",
            minimum=1,
            title="Restart window (seconds)",
            description="Relaunches older than this no longer count.",
        ),
        "backoff_max_s": Param(
            int(budget.backoff_max_s),
            type="integer",
            minimum=0,
            title="Longest backoff (seconds)",
            description="After short runs in a row, a relaunch waits for 10, 20, 40, … s, at most this long.",
        ),
    }
