"""`reset`: move an application's offsets back or forward, and empty or keep its state."""

from __future__ import annotations

from airflow.sdk import Param

from tidemark_airflow.change_dag import change_dag

RUNBOOK = """\
### What it does
The plan shows for each partition what the new offsets mean. After the approval, the DAG stops all instances and commits
offsets, commit records and the changed state in one transaction. Then the stream's DAG starts the instances again.

### When it fails
| task | what to do |
|---|---|
| preflight | Nothing was stopped. The message names another instance, restore or hold; end that first. |
| plan | The plan is refused; nothing was stopped. The message names the offset that does not exist, or the contradiction. |
| approval | The plan was not approved within the hour. Trigger the DAG again. |
| fence | Nothing was stopped. This plan was not approved, another topology was deployed after it, or a restore or a rewind \
was left unfinished since: then finish that first, as the message says. Trigger the DAG again. |
| change | A retry of the task finds what was committed. If it failed for good, the stream runs again meanwhile, and another \
run would be another reset: read `tidemark lag <name>` and a dry run before you trigger one. |
| relaunch | What is committed stays. Read in the instance's log why it does not start; then unpause `stream__<name>`. |
| drain | What is committed stays. See `tidemark lag <name>` and the instance's log. |
| report | The run did not end as requested. Its page has the time line and the failure. |
docs/offsets.md explains each choice.
"""

dag = change_dag(
    "reset",
    description="Moves an application's offsets together with its state and commit records, after an approval",
    use_when="Records must be read again or skipped: the offsets move, and the state with them. To go back to an earlier "
    "state as it was, use `restore_oncall` with a target.",
    runbook=RUNBOOK,
    params={
        "to": Param(
            "earliest",
            type="string",
            enum=["earliest", "latest", "time", "offsets"],
            title="To",
            description="The new offset of every source partition.",
        ),
        "time": Param(
            "",
            type="string",
            title="Time",
            description="For time: 2026-08-01T12:00:00Z, epoch milliseconds, or -10m (before the run was triggered).",
        ),
        "offsets": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Offsets",
            description="For offsets: TOPIC:PARTITION=OFFSET, one line for each partition.",
        ),
        "state": Param(
            "empty",
            type="string",
            enum=["empty", "keep"],
            title="State",
            description="empty: every store starts empty. keep: records that are read again count twice.",
        ),
    },
)
