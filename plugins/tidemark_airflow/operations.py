"""What the DAGs an operator runs have in common: how they are made, and how a task says its verdict."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.alerts.alert import AlertKind
from tidemark.topology.load import load, names
from tidemark_airflow.alerting import Alarm, AlertOnFailure, alert_on_deadline, alert_on_time_out

if TYPE_CHECKING:
    from tidemark.checks.verdict import Finding

log = logging.getLogger(__name__)

DEFAULT_POOL = "default_pool"
STREAM_PRIORITY = 100
"""Of launching, adopting and stopping a stream: a crashed one waits behind nothing else."""
CASE_PRIORITY = 50
"""Of what somebody asked for and waits for; a stream stands meanwhile."""
MAINTENANCE_PRIORITY = 1
"""Of what looks after streams by the clock."""

DRILL_AGE = "drill_age"
"""The check whose failure means: nobody knows any more whether a restore works."""


def operations_dag(
    dag_id: str,
    *,
    description: str,
    runbook: str,
    schedule: str | None,
    params: dict[str, Param],
    tags: Sequence[str] = (),
    timeout: timedelta = timedelta(hours=1),
    task_timeout: timedelta = timedelta(minutes=30),
    is_paused_upon_creation: bool = True,
    deadline: timedelta | None = None,
    pool: str = DEFAULT_POOL,
    priority: int = CASE_PRIORITY,
) -> DAG:
    """A DAG with the policy of all operations: one run at a time, a runbook, an owner, time-outs.

    `runbook` becomes its `doc_md`; `schedule` is a cron text, or None for a DAG that only a person triggers. A run that has
    not ended within `deadline` raises an alert, and goes on. `pool` bounds how many of its tasks run at a time; of those that
    wait for a worker the one with the highest `priority` is next.
    """
    return DAG(
        dag_id=dag_id,
        description=description,
        doc_md=runbook,
        schedule=schedule,
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        dagrun_timeout=timeout,
        is_paused_upon_creation=is_paused_upon_creation,
        default_args={
            "owner": "operations",
            "retries": 1,
            "retry_delay": timedelta(seconds=10),
            "execution_timeout": task_timeout,
            "pool": pool,
            "priority_weight": priority,
            "weight_rule": "absolute",
            "on_failure_callback": AlertOnFailure(AlertKind.OPERATION_FAILED),
        },
        on_failure_callback=alert_on_time_out,
        deadline=None if deadline is None else alert_on_deadline(deadline),
        params=params,
        tags=["tidemark", "operations", *tags],
    )


def topology_param() -> Param:
    """The one application an operation is about. None chosen by itself where there are several."""
    known = names()
    return Param(
        known[0] if len(known) == 1 else None,
        type="string",
        enum=known,
        title="Topology",
        description="Name of the topology, as in `include/topologies/` and in the id of its `stream__` DAG.",
    )


CASE_PARAMS = frozenset({"topology", "dry_run", "reason", "relaunch_timeout_s", "drain_timeout_s"})
"""Parameters of every operation that somebody approves. What else such an operation has is what it is asked for."""


def case_params(dry_run: str, relaunch_timeout: str, own: dict[str, Param]) -> dict[str, Param]:
    """`CASE_PARAMS` around an operation's `own`. The texts say what a dry run does, and what becomes of it when the
    instances are not back in time.
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
            description="Why, in a sentence: it is shown to whoever approves, and stands in the report.",
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
            description="If what waited is not committed by then, the run fails, but nothing is rolled back.",
        ),
    }


def topologies_param() -> Param:
    """The applications a check looks at; empty is every one."""
    return Param(
        [],
        type="array",
        items={"type": "string", "enum": names()},
        title="Topologies",
        description="Names of the topologies to look at, as in `include/topologies/`; none named is all of them.",
    )


def chosen(params: dict[str, Any]) -> list[str]:
    """Names of the topologies that `topologies_param` chose."""
    return list(params["topologies"]) or names()


def conclude(check: str, topology: str, findings: Sequence[Finding]) -> str:
    """Write the verdicts into their history, log each, and end the task as the worst of them says.

    Returns the verdict when nothing failed. Raises `Alarm` naming what failed and what to do, and
    `AirflowSkipException` when nothing was found wrong but the evidence was not enough to say it is right.
    """
    from tidemark.checks.verdict import Verdict, worst
    from tidemark.facts.verdicts import keep_verdicts
    from tidemark.settings import Settings

    for finding in findings:
        level = logging.INFO if finding.verdict is Verdict.OK else logging.WARNING
        log.log(level, "%s: %s: %s", finding.verdict, finding.subject, finding.message)
    application_id = load(topology).application_id
    if away := keep_verdicts(Settings.load(), application_id, check, findings):
        log.warning("%s; this verdict is in this log alone", away)
    verdict = worst(findings)
    if verdict is Verdict.FAILED:
        bad = [finding for finding in findings if finding.verdict is Verdict.FAILED]
        what = AlertKind.DRILL_TOO_OLD if check == DRILL_AGE else AlertKind.CHECK_FAILED
        raise Alarm(
            what, application_id, f"{check} of {topology}: " + "; ".join(f"{f.subject}: {f.message}" for f in bad)
        )
    if verdict is Verdict.NOT_ENOUGH_EVIDENCE:
        raise AirflowSkipException(f"{check} of {topology}: not enough evidence; see the lines above")
    return str(verdict)
