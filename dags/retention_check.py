"""`retention_check`: is state kept as long as its windows need, and no longer?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark_airflow.checks import check_dag

if TYPE_CHECKING:
    from tidemark.checks.verdict import Finding

RUNBOOK = """\
### What it does
Compares each store's retention with what its windows need (size and grace) and with its changelog's settings; looks at the
segments on this machine's disk and at the beginning of each changelog for windows past retention, by the time in their keys.

### When it fails
| message | do |
|---|---|
| windows are dropped while records may still come | raise `retention=` in the topology |
| a restore lacks windows that are still live | `tidemark topics plan <name>`, then `tidemark topics apply <name>` |
| a restore loses keys | the same; for a table's own topic the command in the message |

Warnings leave the task green: a changelog that has lost its beginning (take a savepoint), expired segments on disk (does the
task commit?), a broker that does not delete (its log). *Skipped*: nothing has been committed yet. docs/checks.md has every
verdict.
"""


def judge(topology: str, params: Mapping[str, Any]) -> list[Finding]:
    """A verdict per store; and a sample of the stores' sizes for `tidemark stores --history`."""
    from tidemark.checks.retention_sampling import check_retention
    from tidemark.settings import Settings
    from tidemark.store_growth import sample_stores
    from tidemark.topology.load import load

    plan, settings = load(topology).plan(), Settings.load()
    sample_stores(plan, settings)
    return check_retention(plan, settings, topology)


dag = check_dag(
    "retention",
    judge,
    description="Verdicts on how long state is kept, on disk and in the changelogs",
    runbook=RUNBOOK,
    schedule="17 */6 * * *",
)
