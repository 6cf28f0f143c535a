"""`upgrade`: move an application from the topology version that ran to the deployed one, and keep its state."""

from __future__ import annotations

from airflow.sdk import Param

from tidemark_airflow.change_dag import change_dag

RUNBOOK = """\
### What it does
Compares the deployed topology with the version that wrote the application's state, and shows what happens to each store.
After the approval, the DAG stops all instances, rewrites the stores whose layout changes, and commits state, offsets and
commit records in one transaction. Then the stream's DAG starts the instances again.

### When it fails
| task | what to do |
|---|---|
| preflight | Nothing was stopped. The message names another instance, restore or hold; end that first. |
| plan | The plan is refused; nothing was stopped. The message names each store and what to declare or to change back. |
| approval | The plan was not approved within the hour. Trigger the DAG again. |
| fence | Nothing was stopped. This plan was not approved, another topology was deployed after it, or a restore or a rewind \
was left unfinished since: then finish that first, as the message says. Trigger the DAG again. |
| change | Run it again: it finds what was committed, or starts from the beginning. The stream runs again meanwhile. |
| relaunch | What is committed stays. Read in the instance's log why it does not start; then unpause `stream__<name>`. |
| drain | What is committed stays. See `tidemark lag <name>` and the instance's log. |
| report | The run did not end as requested. Its page has the time line and the failure. |
docs/upgrade.md lists every case.
"""


def texts(title: str, description: str) -> Param:
    """Return a list parameter that is empty by default."""
    return Param([], type="array", items={"type": "string"}, title=title, description=description)


dag = change_dag(
    "upgrade",
    description="Moves an application to another version of its topology with its state, after an approval",
    use_when="You have deployed another version of the topology, and the stream refuses to start with the state of the old"
    " one.",
    runbook=RUNBOOK,
    params={
        "rename": texts("Renamed stores", "OLD=NEW, one per line: the store has a new name."),
        "drop": texts("Dropped", "STORE or STORE.FIELD of the old version, one per line: its contents are discarded."),
        "add": texts(
            "New fields",
            "STORE.FIELD or STORE.FIELD=JSON, one per line. Existing keys get null, or the given value.",
        ),
    },
)
