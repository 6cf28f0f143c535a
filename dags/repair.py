"""`repair`: write the contents of a correct copy of a store to its changelog, or to a new changelog."""

from __future__ import annotations

from airflow.sdk import Param

from tidemark_airflow.change_dag import change_dag

RUNBOOK = """\
### What it does
Repairs a changelog that was deleted, created again, truncated, or written to by another program. The plan names the copy of
each store that is taken as correct. After the approval, the DAG stops all instances, compares each copy with its changelog,
writes the keys that differ (or the whole store to a new changelog), and compares again. Then the stream's DAG starts the
instances again.

### When it fails
| task | what to do |
|---|---|
| preflight | Nothing was stopped. The message names another instance, restore or hold; end that first. |
| plan | The plan is refused; nothing was stopped. No copy is up to date, or the last drill found a fault in it. Choose \
another source; `source` computes the stores again. |
| approval | The plan was not approved within the hour. Trigger the DAG again. |
| fence | Nothing was stopped. This plan was not approved, another topology was deployed after it, or a restore or a rewind \
was left unfinished since: then finish that first, as the message says. Trigger the DAG again. |
| change | Trigger the DAG again: it finds what was committed, or starts from the beginning. The stream runs again \
meanwhile. |
| relaunch | What is committed stays. Read in the instance's log why it does not start; then unpause `stream__<name>`. |
| drain | What is committed stays. See `tidemark lag <name>` and the instance's log. |
| report | The run did not end as requested. Its page has the time line and the failure. |
docs/restore.md explains how a changelog is judged.
"""

dag = change_dag(
    "repair",
    description="Writes lost or damaged changelogs again from a correct copy, after an approval",
    use_when="A changelog was deleted, created again, truncated, or written to by another program. If the changelog is "
    "right and the state is wrong, use `restore_oncall`.",
    runbook=RUNBOOK,
    params={
        "stores": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Stores",
            description="One per line. Empty: all stores whose changelog is damaged or differed in the last drill.",
        ),
        "source": Param(
            "best",
            type="string",
            enum=["best", "local", "standby", "savepoint", "source"],
            title="Source",
            description="The copy to take as correct. best: an up-to-date copy in which no drill found a fault; "
            "source: compute the stores again.",
        ),
    },
)
