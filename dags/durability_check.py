"""`durability_check`: checks what each application would lose, and what would stop, if brokers fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark_airflow.checks import check_dag

if TYPE_CHECKING:
    from tidemark.verdict import Finding

RUNBOOK = """\
### What it does
Checks every topic that an application needs, Kafka's own topics included: leaders, in-sync replicas, eligible leaders,
`min.insync.replicas` and unclean elections. Also checks the settings of the transaction log, and `acks` as the topology
declares it and as running instances use it. Reports what is lost if one broker fails, or all of them.

### When it fails
| message | what to do |
|---|---|
| have no leader | Start the broker that is named. Do **not** force another one to lead: what it lacks would be lost. |
| writes are refused | Start the broker that is named, or read in its log why it does not follow. The stream waits \
meanwhile. |
| do not wait for that | The instances run an earlier topology. Pause the DAG until they have ended, then unpause it. |
| unclean.leader.election.enable=true | Run the command in the message at once. |
| one replica, though there are more brokers | `tidemark kafka reassign-partitions --reassignment-json-file FILE --execute` |

For topics that will be created later, set `replication_factor`. With a single broker by design, what follows from that alone
is only a warning. *Skipped* means that no instance runs on this machine, so its `acks` is unknown, and that nothing worse was
found. docs/checks.md lists every verdict.
"""


def judge(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """Return one verdict per topic and per kind of failure."""
    from tidemark.checks.durability_sampling import check_durability
    from tidemark.settings import Settings
    from tidemark.topology_loader import load

    return check_durability(load(topology).plan(), Settings.load())


dag = check_dag(
    "durability",
    judge,
    description="Judges replicas and leaders, and what the loss of brokers would cost",
    use_when="Keep it unpaused: it runs hourly. Trigger it after a broker was lost, replaced or reconfigured, and before "
    "you take one down.",
    runbook=RUNBOOK,
    schedule="7 * * * *",
)
