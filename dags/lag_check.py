"""`lag_check`: checks whether each application keeps up with its sources or is catching up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark_airflow.checks import check_dag

if TYPE_CHECKING:
    from tidemark.verdict import Finding

RUNBOOK = """\
### What it does
Takes a sample of every source partition (low watermark, last stable offset, end offset, committed offset), stores it in the
database of facts, and judges the samples of the last 30 minutes. Also lists the open transactions that hold readers back.

### When it fails
| message (the first that applies) | what to do |
|---|---|
| stopped | Nothing reads the partition. Unpause `stream__<name>`, or start an instance. |
| stalled | See `tidemark status` and the instance's log. Clear or unpause `stream__<name>`, then run \
`tidemark check lag <name>`. |
| no commit record has one | Do **not** start an instance: it is refused, or begins without state. Bring \
`<app>-commits` back, or give the topology another application id. |
| below the low watermark | Raise `retention.ms` of the source. To continue without the deleted records, run the command in \
the message. |
| committed offset is lost: the group | Start an instance: it continues from its last commit record, which the message names. |
| beyond the end | The source topic was created again or truncated. Bring the old one back, or run the command in the \
message for what happened. |
| open transaction | End the producer that is named, or run the command in the message. |

*Skipped* means that there are too few samples, in which case the next run is in five minutes, or that the database of facts
was not available. A warning (falls behind, went back) leaves the task green; it is in the log and in
`tidemark check lag <name> --history`. docs/checks.md lists every verdict.
"""


def judge(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """Take one sample and judge it with the stored ones."""
    from tidemark.checks.lag_sampling import check_lag
    from tidemark.settings import Settings
    from tidemark.topology_loader import load

    return check_lag(load(topology).plan(), Settings.load(), topology)


dag = check_dag(
    "lag",
    judge,
    description="Judges lag, open transactions and deleted input of every application",
    use_when="Keep it unpaused: it runs every 5 minutes. Trigger it when results are late: it finds open transactions and "
    "partitions without a leader.",
    runbook=RUNBOOK,
    schedule="*/5 * * * *",
)
