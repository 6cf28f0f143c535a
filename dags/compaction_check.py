"""`compaction_check`: checks whether changelogs are compacted well enough to be read fast.

On request, and after an approval, it also sets topic settings to what the topology asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.settings import Settings
from tidemark_airflow.approval import PlanApprovalOperator
from tidemark_airflow.checks import check_dag

if TYPE_CHECKING:
    from tidemark.verdict import Finding

RUNBOOK = """\
### What it does
Reads the newest part of each changelog and counts the records that a later record of the same key supersedes. Estimates how
long a restore takes now and after compaction, and names the setting that delays the log cleaner. The dirty ratio is a lower
bound from this scan; with the parameter *log folder* it is exact.

### When it fails
| message | what to do |
|---|---|
| never compacted | Run `tidemark topics plan <name>`, then this DAG with **apply**. |
| look for the cleaner in the broker's log | A cleaner thread has died. Restart that broker. |

A warning names settings. If the topology asks for them, run this DAG with **apply**: the changes wait under *Required
actions* until a person approves them (one of `oncall_approvers`, if any are set). No answer within an hour means no.
Otherwise put the settings into the topology first (`topic_config=`, or `profile="aggressive_compaction"`). *Skipped* means
that an open transaction hides the rest of the topic; see `lag_check`. The run fails if the check fails, whatever was set
after it. docs/checks.md lists every verdict.
"""


def judge(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """Return one verdict per changelog."""
    from pathlib import Path

    from tidemark.checks.compaction_sampling import CompactionLook, check_compaction
    from tidemark.topology_loader import load

    look = CompactionLook(params["scanned_offsets"], Path(params["log_dir"]) if params["log_dir"] else None)
    return check_compaction(load(topology).plan(), Settings.load(), topology, look)


dag = check_dag(
    "compaction",
    judge,
    description="Judges how well changelogs are compacted; sets topic settings after an approval",
    use_when="Keep it unpaused: it runs every 6 hours. Trigger it when restores or starts take long, or with **apply** to "
    "set topics as the topology asks.",
    runbook=RUNBOOK,
    schedule="37 */6 * * *",
    timeout=timedelta(hours=3),
    params={
        "scanned_offsets": Param(
            200_000,
            type="integer",
            minimum=1,
            title="Offsets to scan",
            description="How many of the newest offsets of each changelog partition are read.",
        ),
        "log_dir": Param(
            "",
            type="string",
            title="Log folder",
            description="A broker's log folder on the worker's machine, which holds the cleaner's exact position. "
            "Empty: the position is estimated.",
        ),
        "apply": Param(
            False,
            type="boolean",
            title="Apply",
            description="Set what the topology asks for on topics that differ from it, after a person has approved it.",
        ),
    },
)

with dag:

    @task(trigger_rule="all_done")
    def differences(**context: Any) -> list[dict[str, str]]:
        """List what `tidemark topics run` would set. Skipped if `apply` is off or nothing differs."""
        if not context["params"]["apply"]:
            raise AirflowSkipException("no topic is changed: the parameter apply is off")
        from dataclasses import asdict

        from tidemark_airflow.topic_settings import topic_settings_of

        found = topic_settings_of(context).plan()
        if not found:
            raise AirflowSkipException("every topic has the settings that its topology asks for")
        return [asdict(change) for change in found]

    approval = PlanApprovalOperator(
        task_id="approval",
        subject="Set these topic settings?",
        response_timeout=timedelta(hours=1),
        is_about_topics=True,
    )

    @task
    def set_topics(**context: Any) -> int:
        """Set what was approved and nothing else."""
        from tidemark.errors import StartRefused
        from tidemark_airflow.topic_settings import topic_settings_of

        try:
            return len(topic_settings_of(context).apply())
        except StartRefused as error:
            raise AirflowFailException(str(error)) from error

    @task
    def done() -> None:
        """Give the run the result of the check: failed or skipped if the check was, whatever the other tasks did."""

    judged, found = dag.get_task("compaction"), differences()
    topics_set = set_topics()
    judged >> found >> approval >> topics_set
    [judged, topics_set] >> done()
