"""`rescale`: change the number of tasks, and move the state of each key to the task that gets its records."""

from __future__ import annotations

from airflow.sdk import Param

from tidemark_airflow.change_dag import change_dag

RUNBOOK = """\
### What it does
The plan shows what the new number of tasks moves. After the approval, the DAG stops all instances, routes the sources through
repartition topics with that number of partitions, moves the state of every key to the task that owns it, and commits all of
it in one transaction. Then the stream's DAG starts the instances again. A rescale is also needed when a stream refuses to
start because a source has got more partitions.

### When it fails
| task | what to do |
|---|---|
| preflight | Nothing was stopped. The message names another instance, restore or hold; end that first. |
| plan | The plan is refused; nothing was stopped. The message names the store or expression that cannot be rescaled. |
| approval | The plan was not approved within the hour. Trigger the DAG again. |
| fence | Nothing was stopped. This plan was not approved, another topology was deployed after it, or a restore or a rewind \
was left unfinished since: then finish that first, as the message says. Trigger the DAG again. |
| change | Run it again: it finds what was committed, or starts from the beginning. The stream runs again meanwhile. |
| relaunch | What is committed stays. Read in the instance's log why it does not start; then unpause `stream__<name>`. |
| drain | What is committed stays. See `tidemark lag <name>` and the instance's log. |
| report | The run did not end as requested. Its page has the time line and the failure. |
docs/rescale.md explains what a rescale means for the outputs.
"""

dag = change_dag(
    "rescale",
    description="Changes the number of tasks and moves the state of each key, after an approval",
    use_when="An application needs more or fewer tasks, or refuses to start because a source has got more partitions. For "
    "more processes on the same tasks, raise **Instances** of the stream's DAG.",
    runbook=RUNBOOK,
    params={
        "tasks": Param(
            8, type="integer", minimum=1, title="Tasks", description="How many tasks each sub-topology gets."
        ),
    },
)
