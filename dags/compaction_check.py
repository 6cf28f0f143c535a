"""`compaction_check`: are changelogs short enough to be read fast? Sets what the topology asks for, if told to and approved."""

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
    from tidemark.checks.verdict import Finding

RUNBOOK = """\
### What it does
Reads the newest part of each changelog and counts records that another of their key supersedes; estimates what a restore takes
now and after compaction; names the setting that holds the cleaner up. The dirty ratio is a lower bound from that scan, exact
with the parameter *log folder*.

### When it fails
| message | do |
|---|---|
| never compacted | `tidemark topics plan <name>`, then run this DAG with **apply** |
| look for the cleaner in the broker's log | a cleaner thread has died: restart that broker |

A warning names settings. Where the topology asks for them, run this DAG with **apply**: what would be set waits under
*Required actions* until somebody approves it (one of `oncall_approvers`, where any are named); no answer in an hour means no.
Else put them into the topology first (`topic_config=`, or `profile="aggressive_compaction"`). *Skipped*: an open transaction
hides the rest, see `lag_check`. The run fails where the check does, whatever was set behind it.
docs/checks.md has every verdict.
"""


def judge(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """A verdict per changelog."""
    from pathlib import Path

    from tidemark.checks.compaction_sampling import CompactionLook, check_compaction
    from tidemark.topology.load import load

    look = CompactionLook(params["scanned_offsets"], Path(params["log_dir"]) if params["log_dir"] else None)
    return check_compaction(load(topology).plan(), Settings.load(), topology, look)


dag = check_dag(
    "compaction",
    judge,
    description="Verdicts on how compacted changelogs are; sets topic settings after an approval",
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
            description="A broker's log folder on the worker's machine, for the cleaner's exact position; empty: an estimate.",
        ),
        "apply": Param(
            False,
            type="boolean",
            title="Apply",
            description="Set what the topology asks for on topics that differ from it, after somebody has approved it.",
        ),
    },
)

with dag:

    @task(trigger_rule="all_done")
    def differences(**context: Any) -> list[dict[str, str]]:
        """What `tidemark topics apply` would set; skipped where nobody asked for it, or nothing differs."""
        if not context["params"]["apply"]:
            raise AirflowSkipException("not asked to: the parameter apply is off")
        from dataclasses import asdict

        from tidemark_airflow.topic_settings import topic_settings_of

        found = topic_settings_of(context).plan()
        if not found:
            raise AirflowSkipException("every topic is as its topology asks for")
        return [asdict(change) for change in found]

    approval = PlanApprovalOperator(
        task_id="approval",
        subject="Set these topic settings?",
        response_timeout=timedelta(hours=1),
        is_about_topics=True,
    )

    @task
    def set_topics(**context: Any) -> int:
        """Set what was approved, and nothing else."""
        from tidemark.errors import StartRefused
        from tidemark_airflow.topic_settings import topic_settings_of

        try:
            return len(topic_settings_of(context).apply())
        except StartRefused as error:
            raise AirflowFailException(str(error)) from error

    @task
    def done() -> None:
        """Failed or skipped where the check was: the run ends as it did, though topics were set or nothing was asked for."""

    judged, found = dag.get_task("compaction"), differences()
    topics_set = set_topics()
    judged >> found >> approval >> topics_set
    [judged, topics_set] >> done()
