"""An audit as a run event of OpenLineage: how many records of each topic were read, and which expectations held for it.

The facets are `dataQualityMetrics` and `dataQualityAssertions` of its specification (openlineage.io/spec/facets).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidemark.audit.contracts import contracts
from tidemark.audit.derivable import derivable
from tidemark.audit.expectations import BY_NAME, Check
from tidemark.topology.plan import TopologyPlan
from tidemark.verdict import Finding, Verdict

_SPEC = "https://openlineage.io/spec"
_PRODUCER = "urn:tidemark:audit"
_WRITTEN = frozenset(["sink", "changelog"])
_LOOKS_AT = {
    "commits": frozenset(["source"]),
    "accounts": frozenset(["source"]),
    "letters": frozenset(["source"]),
    "savepoints": frozenset(["changelog"]),
    "placement": frozenset(["source", *_WRITTEN]),
    "ends": frozenset(["dlq", *_WRITTEN]),
}
_COMPUTED = frozenset(["results", "lasts", "updates"])


@dataclass(frozen=True)
class TopicRead:
    """The records that an audit read of a topic. `role`: source, sink, changelog or dlq."""

    role: str
    records: int


def run_event(
    plan: TopologyPlan,
    audit_id: str,
    time_ms: int,
    broker: str,
    topics: Mapping[str, TopicRead],
    findings: Sequence[Finding],
    quarantined: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Return the event, as JSON types. `broker` is a host and port. An expectation without enough evidence asserts nothing."""
    ruled = {check.name: check for contract in contracts(plan) for check in contract.checks}
    checks = {**BY_NAME, **ruled}
    computed = {t for d in derivable(plan).derived for t in (d.changelog, *d.update_sinks, *d.final_sinks)}
    asserted: dict[str, list[dict[str, Any]]] = {topic: [] for topic in topics}
    for finding in findings:
        check = checks.get(finding.subject)
        if check is None or finding.verdict is Verdict.NOT_ENOUGH_EVIDENCE:
            continue
        rows = quarantined.get(check.name, ())
        blamed = {row.get("topic" if check.rule is None else "__topic") for row in rows} - {None}
        is_all = len(rows) >= finding.evidence.get("unexpected", 0)
        for topic, read in topics.items():
            if _looks_at(check, topic, read.role, topic in computed):
                holds = finding.verdict is Verdict.OK or (bool(blamed) and is_all and topic not in blamed)
                column = {"column": check.rule.column} if check.rule else {}
                asserted[topic].append({"assertion": check.name, "success": holds, **column})
    return {
        "eventType": "COMPLETE",
        "eventTime": datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(),
        "producer": _PRODUCER,
        "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{_PRODUCER}:{plan.application_id}:{audit_id}"))},
        "job": {"namespace": "tidemark", "name": f"{plan.application_id}.audit"},
        "inputs": [
            {"namespace": f"kafka://{broker}", "name": topic, "inputFacets": _facets(read.records, asserted[topic])}
            for topic, read in topics.items()
        ],
        "outputs": [],
    }


def _looks_at(check: Check, topic: str, role: str, is_computed: bool) -> bool:
    if check.rule is not None:
        return check.asset == f"contract of {topic}"
    if check.asset in _COMPUTED:
        return is_computed
    return role in _LOOKS_AT.get(check.asset, _WRITTEN)


def _facets(records: int, assertions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metrics = _facet("1-0-2/DataQualityMetricsInputDatasetFacet", rowCount=records, columnMetrics={})
    asserted = _facet("1-0-1/DataQualityAssertionsDatasetFacet", assertions=list(assertions))
    return {"dataQualityMetrics": metrics, "dataQualityAssertions": asserted}


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    return {"_producer": _PRODUCER, "_schemaURL": f"{_SPEC}/facets/{schema}.json", **fields}
