"""`changelog_repair`: what a right copy of a store holds is written to its changelog, or to a new one."""

from __future__ import annotations

from airflow.sdk import Param

from tidemark_airflow.change_dag import change_dag

RUNBOOK = """\
### What it does
For a changelog that was deleted, made again, truncated, or written to by somebody else. Shows which copy of each store says
what is right. Approved, it stops all instances, compares, and writes the keys that differ to the changelog, or the whole store
to a new one, and compares again. The stream DAG relaunches.

### When it fails
| task | do |
|---|---|
| preflight | nothing was stopped: another instance, restore or hold is named; end that first |
| plan | it is refused, nothing was stopped: no copy is level, or the last drill suspects it; choose a source, `source` \
computes the stores again |
| approval | nobody who may approve it did so within the hour: trigger it again |
| fence | nothing was stopped: this plan was not approved, or another topology was deployed since: trigger it again |
| change | trigger it again: what was committed is found, else it begins anew; the stream was relaunched meanwhile |
| relaunch | what is committed stays: the log of the instance says why it does not come; then unpause `stream__<name>` |
| drain | what is committed stays: `tidemark lag <name>`, the log of the instance |
| report | the run did not end as somebody chose: its page has the time line and the failure |
docs/restore.md says how a changelog is judged.
"""

dag = change_dag(
    "changelog_repair",
    description="Changelogs that were lost or tampered with, written from a right copy, after an approval",
    runbook=RUNBOOK,
    params={
        "stores": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Stores",
            description="One per line; empty: those whose changelog is damaged, or differed in the last drill.",
        ),
        "source": Param(
            "best",
            type="string",
            enum=["best", "local", "standby", "savepoint", "source"],
            title="Source",
            description="What is right. best: a copy that is level and that no drill suspects; source: computed again.",
        ),
    },
)
