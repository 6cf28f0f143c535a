"""`offsets_reset`: an application reads again, or passes over, with its state emptied or kept."""

from __future__ import annotations

from airflow.sdk import Param

from tidemark_airflow.change_dag import change_dag

RUNBOOK = """\
### What it does
Shows partition by partition what moving the offsets means. Approved, it stops all instances and commits offsets, commit
records and what becomes of the state in one transaction. The stream DAG relaunches.

### When it fails
| task | do |
|---|---|
| preflight | nothing was stopped: another instance, restore or hold is named; end that first |
| plan | it is refused, nothing was stopped: the message says which offset is not there, or what contradicts it |
| approval | nobody who may approve it did so within the hour: trigger it again |
| fence | nothing was stopped: this plan was not approved, or another topology was deployed since: trigger it again |
| change | tried again by itself, it finds what was committed. Failed for good, the stream was relaunched meanwhile: before \
another run, which is another reset, read `tidemark lag <name>` and a dry run |
| relaunch | what is committed stays: the log of the instance says why it does not come; then unpause `stream__<name>` |
| drain | what is committed stays: `tidemark lag <name>`, the log of the instance |
| report | the run did not end as somebody chose: its page has the time line and the failure |
docs/offsets.md says what each choice means.
"""

dag = change_dag(
    "offsets_reset",
    description="Moves an application's offsets with its state and commit records, after an approval",
    runbook=RUNBOOK,
    params={
        "to": Param(
            "earliest",
            type="string",
            enum=["earliest", "latest", "time", "offsets"],
            title="To",
            description="Where every source partition goes.",
        ),
        "time": Param(
            "",
            type="string",
            title="Time",
            description="For time: 2026-08-01T12:00:00Z, epoch milliseconds, or -10m before the run was asked for.",
        ),
        "offsets": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Offsets",
            description="For offsets: TOPIC:PARTITION=OFFSET, one per line, of every partition.",
        ),
        "state": Param(
            "empty",
            type="string",
            enum=["empty", "keep"],
            title="State",
            description="empty: every store begins anew. keep: what is read again counts twice.",
        ),
    },
)
