"""Findings without keys and values of records, for those who may not see the data: pagers, task logs, pages for viewers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidemark.verdict import Finding

_COORDINATES = ("task", "batch", "topic", "partition", "offset")
_RECORDS = frozenset({"examples", "first", "frequent_keys"})


def redacted(finding: Finding, application_id: str, topology: str) -> Finding:
    """Return the finding with counts and coordinates in place of records, and where the records are.

    Only findings of an audit, of a drill and of the skew of keys show records. Others are returned as they are.
    """
    message = _message(finding.evidence, application_id, topology)
    if message is None:
        return finding
    evidence = {name: value for name, value in finding.evidence.items() if name not in _RECORDS}
    return replace(finding, message=message, evidence=evidence)


def _message(found: Mapping[str, Any], application_id: str, topology: str) -> str | None:
    if "examples" in found:
        return (
            f"{found['unexpected']} of {found['rows']} rows break this expectation{_first(found['examples'])}; the rows are in "
            f"audit/{application_id}/quarantine under var_dir, and on the page of the audit"
        )
    if found.get("first"):
        return (
            f"{found['differing']} keys differ from savepoint {found['savepoint_id']} ({found['altered']} altered, "
            f"{found['missing']} missing, {found['extra']} extra): the store or its changelog is wrong, so do not restore from "
            f"the changelog alone; the keys are in `tidemark drill history {topology} --json`"
        )
    if shares := found.get("frequent_keys"):
        return (
            f"one key has {max(shares.values()):.0%} of the newest {found['read_records']:,} records; `tidemark check skew "
            f"{topology}` names it"
        )
    return None


def _first(examples: Sequence[Mapping[str, Any]]) -> str:
    if not examples:
        return ""
    shown = [f"{name} {examples[0][name]}" for name in _COORDINATES if examples[0].get(name) is not None]
    return f", the first at {', '.join(shown)}" if shown else ""
