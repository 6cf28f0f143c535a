"""The text of a failed finding in an alert. It goes to a pager, so it has no key and no value of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.verdict import Finding

_COORDINATES = ("task", "batch", "topic", "partition", "offset")


def alarm_text(findings: Sequence[Finding], var_dir: Path, application_id: str, topology: str) -> str:
    """Return all failed findings of a check in one line, and where the keys and values are that they leave out.

    The findings of an audit and of a drill show records in their messages. Of these, the text has the counts and the
    coordinates.
    """
    texts = [_text(finding, var_dir / "audit" / application_id / "quarantine", topology) for finding in findings]
    return "; ".join(texts)


def _text(finding: Finding, quarantine: Path, topology: str) -> str:
    found = finding.evidence
    if "examples" in found:
        unexpected, first = f"{found['unexpected']} of {found['rows']}", _first(found["examples"])
        return (
            f"{finding.subject}: {unexpected} rows break this expectation{first}; the rows are in {quarantine} and on the page "
            "of the audit"
        )
    if found.get("first"):
        return (
            f"{finding.subject}: {found['differing']} keys differ from savepoint {found['savepoint_id']} ({found['altered']} "
            f"altered, {found['missing']} missing, {found['extra']} extra): the store or its changelog is wrong, so do not "
            f"restore from the changelog alone; the keys are in `tidemark drill history {topology} --json`"
        )
    return f"{finding.subject}: {finding.message}"


def _first(examples: Sequence[Mapping[str, Any]]) -> str:
    if not examples:
        return ""
    shown = [f"{name} {examples[0][name]}" for name in _COORDINATES if examples[0].get(name) is not None]
    return f", the first at {', '.join(shown)}" if shown else ""
