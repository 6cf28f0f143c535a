"""`rescale`: another number of tasks, with the state of each key where its records go."""

from __future__ import annotations

from airflow.sdk import Param

from tidemark_airflow.change_dag import change_dag

RUNBOOK = """\
### What it does
Shows what another number of tasks moves. Approved, it stops all instances, sends the sources through topics with as many
partitions, moves every key's state to the task that owns it, and commits all in one transaction. The stream DAG relaunches.
Needed, too, when a stream is refused as its source has got more partitions.

### When it fails
| task | do |
|---|---|
| preflight | nothing was stopped: another instance, restore or hold is named; end that first |
| plan | it is refused, nothing was stopped: the message says which store or expression stands against it |
| approval | nobody who may approve it did so within the hour: trigger it again |
| fence | nothing was stopped: this plan was not approved, or another topology was deployed since: trigger it again |
| change | run it again: what was committed is found, else it begins anew; the stream was relaunched meanwhile |
| relaunch | what is committed stays: the log of the instance says why it does not come; then unpause `stream__<name>` |
| drain | what is committed stays: `tidemark lag <name>`, the log of the instance |
| report | the run did not end as somebody chose: its page has the time line and the failure |
docs/rescale.md says what it means for the outputs.
"""

dag = change_dag(
    "rescale",
    description="Another number of tasks with the state of each key, after an approval",
    runbook=RUNBOOK,
    params={
        "tasks": Param(
            8, type="integer", minimum=1, title="Tasks", description="How many tasks each sub-topology gets."
        ),
    },
)
