"""`exactly_once_audit`: in what each application did since last time, is nothing lost, doubled, wrong or hanging?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, task

from tidemark_airflow.operations import chosen, conclude, operations_dag, topologies_param

RUNBOOK = """\
### What it does
For each application: takes the commit records since the audit before, reads source, sinks, changelogs and dead letters of those
batches with a Spark job on one core, computes the results again from the source, and runs the expectations of docs/audit.md.

### When it fails
| expectation | do |
|---|---|
| ranges…, batches… | another writer uses this group or transactional id: stop it |
| …lost, every…, the_last_value…, finals… | `tidemark restore plan <name>`; rewind to before the batch in the message |
| …doubled, …twice, one_final…, updates… | a foreign writer: look at the quarantined coordinates |
| no_transaction_hangs | `tidemark kafka transactions find-hanging`, then `abort` |

Unexpected rows lie in `var/audit/<app>/quarantine/` with topic, partition and offset; the page in `var/audit/<app>/pages/`. A
range that was audited is not read again; `tidemark audit <name> --whole` does. *Skipped*: no new batch, or a check that broke.
"""

with operations_dag(
    "exactly_once_audit",
    description="Each application's batches since the last audit, against an independent recomputation",
    runbook=RUNBOOK,
    schedule="*/15 * * * *",
    tags=["check"],
    timeout=timedelta(hours=2),
    task_timeout=timedelta(hours=1),
    params={
        "topologies": topologies_param(),
        "batches": Param(
            2000,
            type="integer",
            minimum=1,
            title="Batches",
            description="How many batches of each task one run looks at; what is left is for the next run.",
        ),
    },
) as dag:

    @task
    def topologies(params: dict[str, Any] | None = None) -> list[str]:
        """The applications to look at."""
        return chosen(params or {})

    @task(map_index_template="{{ task.op_kwargs['topology'] }}")
    def audit(topology: str, params: dict[str, Any] | None = None) -> str:
        """Run the Spark job, write the verdicts into their history."""
        from tidemark.quality.job import run_audit
        from tidemark.quality.suites import NOT_COMPUTED
        from tidemark.settings import Settings

        result = run_audit(topology, Settings.load(), batches=(params or {})["batches"])
        for found in result.findings:
            if found.evidence.get(NOT_COMPUTED):
                print(f"{found.subject}: {found.message}")
        return conclude("audit", topology, [f for f in result.findings if not f.evidence.get(NOT_COMPUTED)])

    audit.expand(topology=topologies())
