"""`lag_check`: is each application level with its sources, or coming nearer?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark_airflow.checks import check_dag

if TYPE_CHECKING:
    from tidemark.checks.verdict import Finding

RUNBOOK = """\
### What it does
Takes a sample of every source partition (low watermark, last stable offset, end, committed offset), keeps it in the
database of facts, and judges the samples of the last 30 minutes. Asks which open transactions hold readers back.

### When it fails
| message | do |
|---|---|
| stopped | nobody reads the partition: unpause `stream__<name>`, or start an instance |
| stalled | `tidemark status`, the log of the instance; clear or unpause `stream__<name>`, then `tidemark check lag <name>` |
| below the low watermark | raise the `retention.ms` of the source; to go on without the deleted: the command in the message |
| committed offset is lost | start an instance: it goes on from its last commit record, which the message names |
| beyond the end | the source topic was made anew: bring it back, or give the topology another application id |
| open transaction | end the producer that is named, or run the command in the message |

*Skipped* means that too few samples exist: it is run again in five minutes; or the database of facts was away. A warning (falls
behind, went back) leaves the task green; it is in the log and in `tidemark check lag <name> --history`. docs/checks.md has all.
"""


def judge(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """One look, and the verdict over those kept."""
    from tidemark.checks.lag_sampling import check_lag
    from tidemark.settings import Settings
    from tidemark.topology.load import load

    return check_lag(load(topology).plan(), Settings.load(), topology)


dag = check_dag(
    "lag",
    judge,
    description="Verdicts on lag, open transactions and deleted input of every application",
    runbook=RUNBOOK,
    schedule="*/5 * * * *",
)
