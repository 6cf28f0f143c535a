"""`exactly_once_audit`: checks that no application has lost, doubled or miscalculated anything since the last audit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, task

from tidemark.names import MAINTENANCE_POOL
from tidemark.settings import Settings
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import MAINTENANCE_PRIORITY, chosen, conclude, operations_dag, topologies_param

RUNBOOK = """\
### What it does
For each application: takes the commit records since the last audit; reads the sources, sinks, changelogs and dead letters of
those batches with a Spark job on one core; computes the results again from the sources; and checks the expectations of
docs/audit.md.

### When it fails
| expectation | what to do |
|---|---|
| ranges…, batches…, stream_time_never… | Another writer uses this group or transactional id. Stop it. |
| outputs_are_not_lost | Run `tidemark rewind run <name> --to TIME`, with a time before the batch in the message. |
| changelogs…, every_update…, the_last_value…, finals… | `tidemark restore plan <name>`, `run`; or the rewind above. |
| outputs_are_not_doubled, no_update…, one_final…, updates… | Another program writes here. See the quarantined rows. |
| no_transaction_hangs | `tidemark check lag <name>` prints the command that aborts the transaction. |
| any other | Do what the message says. |

Unexpected rows are in `var/audit/<app>/quarantine/` with topic, partition and offset; the page is in
`var/audit/<app>/pages/`. A range that was audited is not read again, except by `tidemark audit run <name> --whole`. *Skipped*
means that the evidence does not suffice: there was no new batch, a check itself broke, or records were gone; see the log.
"""

with operations_dag(
    "exactly_once_audit",
    kind=DagKind.CHECK,
    description="Compares each application's batches since the last audit with an independent recomputation",
    use_when="Keep it unpaused: it runs every 15 minutes. Trigger it after a restore, an upgrade or a fault, or when you "
    "doubt a result.",
    runbook=RUNBOOK,
    schedule="*/15 * * * *",
    tags=["audit"],
    timeout=timedelta(hours=2),
    task_timeout=timedelta(hours=1),
    params={
        "topologies": topologies_param(),
        "batches": Param(
            Settings.load().audit_batches,
            type="integer",
            minimum=1,
            title="Batches",
            description="How many batches of each task one run checks. The next run continues with the rest.",
        ),
    },
    pool=MAINTENANCE_POOL,
    priority=MAINTENANCE_PRIORITY,
) as dag:

    @task
    def topologies(params: dict[str, Any] | None = None) -> list[str]:
        """Return the topologies to audit."""
        return chosen(params or {})

    @task(map_index_template="{{ task.op_kwargs['topology'] }}")
    def audit(topology: str, params: dict[str, Any] | None = None) -> str:
        """Run the Spark job and write the verdicts to their history."""
        from tidemark.audit.job import run_audit
        from tidemark.audit.suites import NOT_COMPUTED

        result = run_audit(topology, Settings.load(), batches=(params or {})["batches"])
        for found in result.findings:
            if found.evidence.get(NOT_COMPUTED):
                print(f"{found.subject}: {found.message}")
        return conclude("audit", topology, [f for f in result.findings if not f.evidence.get(NOT_COMPUTED)])

    audit.expand(topology=topologies())
