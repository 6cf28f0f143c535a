"""Stops the streams whose DAG is paused. A trigger cannot see that its DAG is paused, so a DAG checks once a minute."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING

from airflow.sdk import DAG, task

from tidemark.settings import Settings
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import STREAM_PRIORITY, in_queue, operations_dag

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

log = logging.getLogger(__name__)

_RUNBOOK = """\
### What it does
Stops the instances and standbys of every `stream__<name>` DAG that is paused, within a minute. Each instance commits its
batch, takes a last savepoint (setting `last_savepoint_timeout_ms`), and ends; nothing is lost. Unpausing the DAG launches them
again in the same run.

An application that several DAGs name is stopped only if all of them are paused. A DAG whose module is gone, or is a copy whose
application belongs to another module, does not count: if the module of a running stream is renamed, its new DAG is created
paused, so the stream is stopped until that is unpaused.
Instances and standbys that were started by hand are not stopped. While **this** DAG is paused, pausing a stream stops nothing.
A task stops what runs on the machine of its worker. If standbys have a queue of their own (setting `standby_queue`), the task
`stop_paused_standbys` runs in it; while no stream is paused it is skipped, so that a run needs no worker there.
"""


def pauses_dag(streams: Callable[[], Mapping[str, str | None]]) -> DAG:
    """Return the DAG that stops paused streams.

    `streams` returns application ids by the ids of their DAGs, and None for a DAG whose topology does not load.
    """
    with operations_dag(
        "stream_pauses",
        kind=DagKind.OPERATION,
        description="Stops the streams whose DAG is paused",
        use_when="You never trigger it: it runs once a minute, and must stay unpaused.",
        runbook=_RUNBOOK,
        schedule="* * * * *",
        params={},
        tags=["maintenance"],
        timeout=timedelta(minutes=2),
        task_timeout=timedelta(minutes=1),
        is_paused_upon_creation=False,
        priority=STREAM_PRIORITY,
    ) as dag:

        @task.short_circuit(
            doc_md="Asks the instances and standbys of paused streams that run on its machine to stop. Returns their DAGs."
        )
        def stop_paused(ti: RuntimeTaskInstanceProtocol | None = None) -> list[str]:
            settings = Settings.load()
            stopping = {} if ti is None else applications_to_stop(ti, streams())
            for application_id in sorted(set(stopping.values())):
                stop_launched(settings, application_id)
            return list(stopping)

        stopped = stop_paused()
        parsed_with = Settings.load()
        if parsed_with.has_own_standby_queue:
            there = stop_paused.override(task_id="stop_paused_standbys", **in_queue(parsed_with.standby_queue))
            stopped >> there()
    return dag


def applications_to_stop(ti: RuntimeTaskInstanceProtocol, streams: Mapping[str, str | None]) -> dict[str, str]:
    """Return by the ids of paused DAGs the applications that no unpaused DAG names.

    `streams` has the application ids by the ids of their DAGs. None stands for a module that does not load: the application of
    its DAG is known by the tags that the DAG had when Airflow read it last. A DAG that Airflow has not read yet counts as none.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError

    paused: dict[str, str] = {}
    named: set[str | None] = set()
    for dag_id, application_id in streams.items():
        try:
            dag = ti.get_dag(dag_id)
        except AirflowRuntimeError as error:
            log.info("failed to read whether the DAG %s is paused, so it stops no stream: %s", dag_id, error)
            if (error.error.detail or {}).get("status_code") != HTTPStatus.NOT_FOUND:
                named.add(application_id)
            continue
        if not dag.is_paused:
            named |= set(dag.tags) if application_id is None else {application_id}
        elif application_id is not None:
            paused[dag_id] = application_id
    for dag_id, application_id in paused.items():
        if application_id in named:
            log.warning(
                "the DAG %s is paused, but another DAG of %s is not, so nothing is stopped", dag_id, application_id
            )
    return {dag_id: application_id for dag_id, application_id in paused.items() if application_id not in named}


def stop_launched(settings: Settings, application_id: str) -> list[str]:
    """Ask every instance and standby of an application that Airflow launched on this machine to stop. Does not wait.

    The pause is also recorded for one that waits for its first launch or for a relaunch, also if another machine runs it, and
    again by each later call. Returns the names of those that were asked.
    """
    from tidemark.supervision.instance_files import known_instances, known_standbys
    from tidemark.supervision.liveness import Liveness, observe
    from tidemark.supervision.stop import ask_to_leave, record_pause, renew_pause, was_paused

    asked: list[str] = []
    known = known_instances(settings.var_dir, application_id) + known_standbys(settings.var_dir, application_id)
    for files in known:
        seen = observe(files)
        if seen.launch is None and seen.liveness is not Liveness.GONE:
            continue  # it was started by hand
        if was_paused(files, seen.launch_id):
            renew_pause(files)
        else:
            record_pause(files, seen.launch_id, is_running=seen.liveness is not Liveness.GONE)
        if seen.liveness.is_alive_here:
            ends = "" if files.key.is_standby else ": it commits its batch and ends"
            log.info("stopping %s %s, because its DAG is paused%s", files.key.kind, files.key, ends)
            ask_to_leave(files, seen, settings)
            asked.append(str(files.key))
    return asked
