"""`durability_check`: what of each application is lost, or stands still, when brokers go?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark_airflow.checks import check_dag

if TYPE_CHECKING:
    from tidemark.checks.verdict import Finding

RUNBOOK = """\
### What it does
Looks at every topic an application stands on, Kafka's own among them: leaders, replicas in sync, eligible leaders,
`min.insync.replicas`, unclean elections; at the settings of the transaction log; at `acks` that the topology states and running
instances have. Says what is lost if one broker, or all, go.

### When it fails
| message | do |
|---|---|
| have no leader | start the broker that is named. Do **not** force another to lead: what it lacks is lost |
| writes are refused | start the broker that is named, or read in its log why it does not follow; the stream waits meanwhile |
| do not wait for that | the instances run an earlier topology: pause the DAG until they are gone, then unpause it |
| unclean.leader.election.enable=true | the command in the message, at once |
| one replica, though there are more brokers | `tidemark kafka reassign-partitions --reassignment-json-file FILE --execute` |

For topics to come, set `replication_factor`. One broker by design: what follows from that alone is a warning. *Skipped*: no
instance runs on this machine, so its `acks` is not known, and nothing worse was found. docs/checks.md has every verdict.
"""


def judge(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """A verdict per topic and per kind of accident."""
    from tidemark.checks.durability_sampling import check_durability
    from tidemark.settings import Settings
    from tidemark.topology.load import load

    return check_durability(load(topology).plan(), Settings.load())


dag = check_dag(
    "durability",
    judge,
    description="Verdicts on replicas, leaders and what the loss of brokers would cost",
    runbook=RUNBOOK,
    schedule="7 * * * *",
)
