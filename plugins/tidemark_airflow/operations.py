"""The common parts of the DAGs that operators run: the DAG itself, its parameters, and the end of a task by its verdict."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.alerts import AlertKind
from tidemark.errors import ApplicationIdTaken
from tidemark.settings import Settings
from tidemark.topology_loader import load, load_all, names
from tidemark_airflow.alerting import Alarm, AlertOnFailure, alert_on_deadline, alert_on_time_out
from tidemark_airflow.dag_kinds import DagKind, documented

if TYPE_CHECKING:
    from tidemark.verdict import Finding

log = logging.getLogger(__name__)

DEFAULT_POOL = "default_pool"
STREAM_PRIORITY = 100
"""The priority of launching, adopting and stopping a stream: a crashed stream waits for no other task."""
CASE_PRIORITY = 50
"""The priority of a run that a person triggered and waits for; a stream may be stopped meanwhile."""
MAINTENANCE_PRIORITY = 1
"""The priority of scheduled maintenance."""

DRILL_AGE = "drill_age"
"""The check that fails when no recent drill shows that a restore works."""


def operations_dag(
    dag_id: str,
    *,
    kind: DagKind,
    description: str,
    use_when: str,
    runbook: str,
    schedule: str | None,
    params: dict[str, Param],
    tags: Sequence[str] = (),
    timeout: timedelta = timedelta(hours=1),
    task_timeout: timedelta = timedelta(minutes=30),
    is_paused_upon_creation: bool | None = None,
    deadline: timedelta | None = None,
    pool: str = DEFAULT_POOL,
    priority: int = CASE_PRIORITY,
) -> DAG:
    """Return a DAG with the policy of all operations: one run at a time, a runbook, an owner, time limits.

    `use_when` and `runbook` become its `doc_md`. `schedule` is a cron expression, or None for a DAG that only a person
    triggers: such a DAG is created unpaused, because a run of a paused DAG would wait when it is needed most. A DAG with a
    schedule is created paused, unless `is_paused_upon_creation` says otherwise. A run that has not ended within `deadline`
    raises an alert and continues. Its tasks run where instances do (`instance_queue`), because they read and stop local
    processes. `pool` limits how many of its tasks run at a time. Among the tasks that wait for a worker,
    the one with the highest `priority` is next.
    """
    return DAG(
        dag_id=dag_id,
        dag_display_name=kind.display_name(dag_id),
        description=description,
        doc_md=documented(use_when, runbook),
        schedule=schedule,
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        dagrun_timeout=timeout,
        is_paused_upon_creation=schedule is not None if is_paused_upon_creation is None else is_paused_upon_creation,
        default_args={
            "owner": "operations",
            "retries": 1,
            "retry_delay": timedelta(seconds=10),
            "execution_timeout": task_timeout,
            "pool": pool,
            "priority_weight": priority,
            "weight_rule": "absolute",
            "on_failure_callback": AlertOnFailure(AlertKind.OPERATION_FAILED),
            **in_queue(Settings.load().instance_queue),
        },
        on_failure_callback=alert_on_time_out,
        deadline=None if deadline is None else alert_on_deadline(deadline),
        params=params,
        tags=kind.tags(*tags),
    )


def in_queue(queue: str) -> dict[str, Any]:
    """Return the argument of a task that only workers of this queue run. An empty name is Airflow's default queue."""
    return {"queue": queue} if queue else {}


def topology_param() -> Param:
    """Return the parameter for the one application of an operation. It has no default if there are several topologies."""
    known = names()
    return Param(
        known[0] if len(known) == 1 else None,
        type="string",
        enum=known,
        title="Topology",
        description="Name of the topology, as in `include/topologies/` and in the id of its DAG `stream__<name>`.",
    )


CASE_PARAMS = frozenset({"topology", "dry_run", "reason", "relaunch_timeout_s", "drain_timeout_s"})
"""The parameters of every operation that needs an approval. Its other parameters describe the request itself."""


def case_params(dry_run: str, relaunch_timeout: str, own: dict[str, Param]) -> dict[str, Param]:
    """Return `CASE_PARAMS` together with an operation's `own` parameters.

    `dry_run` and `relaunch_timeout` are the descriptions of these two parameters.
    """
    return {
        "topology": topology_param(),
        **own,
        "dry_run": Param(True, type="boolean", title="Dry run", description=dry_run),
        "reason": Param(
            None,
            type="string",
            minLength=3,
            maxLength=500,
            title="Reason",
            description="Why you run this, in a sentence. It is shown to the approver and is part of the report.",
        ),
        "relaunch_timeout_s": Param(
            300,
            type="integer",
            minimum=10,
            title="Longest wait for the instances (seconds)",
            description=relaunch_timeout,
        ),
        "drain_timeout_s": Param(
            1800,
            type="integer",
            minimum=10,
            title="Longest wait for the lag (seconds)",
            description="If the records that waited are not committed by then, the run fails; nothing is rolled back.",
        ),
    }


def topologies_param() -> Param:
    """Return the parameter for the topologies that a check covers. Empty means all of them."""
    return Param(
        [],
        type="array",
        items={"type": "string", "enum": names()},
        title="Topologies",
        description="Names of the topologies to check, as in `include/topologies/`. Empty: all of them.",
    )


def chosen(params: dict[str, Any]) -> list[str]:
    """Return the names of the topologies that were chosen with `topologies_param`, one for each application.

    Without a choice, a module whose application id belongs to another one is left out. Raises `ApplicationIdTaken` if such a
    module was chosen. Loads every module.
    """
    taken = {name: error for name, error in load_all().items() if isinstance(error, ApplicationIdTaken)}
    for name in params["topologies"]:
        if name in taken:
            raise taken[name]
    return list(params["topologies"]) or [name for name in names() if name not in taken]


def conclude(check: str, topology: str, findings: Sequence[Finding]) -> str:
    """Write the verdicts to their history, log each, and end the task as the worst of them requires.

    The log and the alarm contain no keys and values of records, because everybody who may read the DAG can read both. Returns
    the verdict if nothing failed. Raises `Alarm`, which says what failed, and `AirflowSkipException` if nothing was found
    wrong but the evidence does not suffice for an OK.
    """
    from tidemark.checks.verdict_table import keep_verdicts
    from tidemark.redaction import redacted
    from tidemark.verdict import Verdict, worst

    application_id, settings = load(topology).application_id, Settings.load()
    shown = [redacted(finding) for finding in findings]
    for finding in shown:
        level = logging.INFO if finding.verdict is Verdict.OK else logging.WARNING
        log.log(level, "%s: %s: %s", finding.verdict, finding.subject, finding.message)
    if away := keep_verdicts(settings, application_id, check, findings):
        log.warning("%s; this verdict is only in this log", away)
    verdict = worst(findings)
    if verdict is Verdict.FAILED:
        what = AlertKind.DRILL_TOO_OLD if check == DRILL_AGE else AlertKind.CHECK_FAILED
        text = "; ".join(f"{bad.subject}: {bad.message}" for bad in shown if bad.verdict is Verdict.FAILED)
        raise Alarm(what, application_id, f"{check} of {topology}: {text}")
    if verdict is Verdict.NOT_ENOUGH_EVIDENCE:
        raise AirflowSkipException(f"{check} of {topology}: not enough evidence; see the lines above")
    return str(verdict)
