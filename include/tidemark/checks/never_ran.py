"""The finding of every check on an application that has never run."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from tidemark.kafka.topics import partition_counts
from tidemark.names import commits_topic, topology_topic
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.verdict import Finding, Verdict


def never_ran(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> list[Finding]:
    """Return one finding if neither the commits topic nor the description exists, which the first start creates; else none.

    If only one of the two exists, the other was lost, which other checks report. Blocks.
    """
    app = plan.application_id
    if {commits_topic(app), topology_topic(app)} & partition_counts(admin, settings).keys():
        return []
    message = (
        f"has never run at {settings.bootstrap_servers}: there is no topic {commits_topic(app)}; start an instance"
    )
    return [Finding(app, Verdict.NOT_ENOUGH_EVIDENCE, message)]
