"""`retention_check`: checks that state is kept as long as its windows need, and no longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark_airflow.checks import check_dag

if TYPE_CHECKING:
    from tidemark.verdict import Finding

RUNBOOK = """\
### What it does
Compares each store's retention with what its windows need (size and grace) and with the settings of its changelog. Looks for
windows past their retention in the segments on this machine's disk and at the beginning of each changelog, by the time in the
keys.

### When it fails
| message | what to do |
|---|---|
| windows are dropped while records may still come | Raise `retention=` in the topology. |
| a restore lacks windows that are still live | `tidemark topics plan <name>`, then `tidemark topics run <name>` |
| a restore loses keys | The same. For a table's own source topic, run the command in the message. |

Warnings leave the task green: a changelog has lost its beginning (take a savepoint), expired segments are on disk (check
whether the task commits), a broker does not delete (read its log). *Skipped* means that nothing has been committed yet.
docs/checks.md lists every verdict.
"""


def judge(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """Return one verdict per store. Also record the stores' sizes for `tidemark stores --history`."""
    from tidemark.checks.retention_sampling import check_retention
    from tidemark.checks.store_growth import sample_stores
    from tidemark.settings import Settings
    from tidemark.topology_loader import load

    plan, settings = load(topology).plan(), Settings.load()
    sample_stores(plan, settings)
    return check_retention(plan, settings, topology)


dag = check_dag(
    "retention",
    judge,
    description="Judges how long state is kept, on disk and in the changelogs",
    use_when="Keep it unpaused: it runs every 6 hours. Trigger it after you have changed a window, its grace or its retention.",
    runbook=RUNBOOK,
    schedule="17 */6 * * *",
)
