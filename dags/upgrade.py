"""`upgrade`: from the version of a topology that ran to the one that is deployed, with the state that carries over."""

from __future__ import annotations

from airflow.sdk import Param

from tidemark_airflow.change_dag import change_dag

RUNBOOK = """\
### What it does
Compares the deployed topology with what the application's state was written by, and shows what becomes of each store.
Approved, it stops all instances, writes what changes its form anew, and commits state, offsets and commit records in one
transaction. The stream DAG relaunches.

### When it fails
| task | do |
|---|---|
| preflight | nothing was stopped: another instance, restore or hold is named; end that first |
| plan | it is refused, nothing was stopped: the message names each store and what to declare, or to change back |
| approval | nobody who may approve it did so within the hour: trigger it again |
| fence | nothing was stopped: this plan was not approved, or another topology was deployed since: trigger it again |
| change | run it again: what was committed is found, else it begins anew; the stream was relaunched meanwhile |
| relaunch | what is committed stays: the log of the instance says why it does not come; then unpause `stream__<name>` |
| drain | what is committed stays: `tidemark lag <name>`, the log of the instance |
| report | the run did not end as somebody chose: its page has the time line and the failure |
docs/upgrade.md has every case.
"""


def texts(title: str, description: str) -> Param:
    """A list of declarations, empty by itself."""
    return Param([], type="array", items={"type": "string"}, title=title, description=description)


dag = change_dag(
    "upgrade",
    description="Another version of a topology with the state that carries over, after an approval",
    runbook=RUNBOOK,
    params={
        "rename": texts("Renamed stores", "OLD=NEW, one per line: the store has another name."),
        "drop": texts("Dropped", "STORE or STORE.FIELD of the old version, one per line: its contents are given up."),
        "add": texts(
            "New fields",
            "STORE.FIELD or STORE.FIELD=JSON, one per line; keys that exist get null, or that.",
        ),
    },
)
