"""Findings without keys and values of records, for those who may not see the data: pagers, task logs, pages for viewers."""

from __future__ import annotations

from dataclasses import replace

from tidemark.verdict import MESSAGE_WITHOUT_RECORDS, Finding

_RECORDS = frozenset({"examples", "first", "frequent_keys", "broken"})
"""Evidence that holds records, or marks a message that may. Whoever makes such a finding also words it without records."""


def redacted(finding: Finding) -> Finding:
    """Return the finding with its message without records, and without the records in its evidence.

    A finding that shows no records is returned as it is. If one shows records and has no message without them, nothing of its
    message is returned.
    """
    message = finding.evidence.get(MESSAGE_WITHOUT_RECORDS)
    if not message:
        if not any(finding.evidence.get(name) for name in _RECORDS):
            return finding
        message = "its message shows records, and is in the history of verdicts"
    hidden = _RECORDS | {MESSAGE_WITHOUT_RECORDS}
    evidence = {name: value for name, value in finding.evidence.items() if name not in hidden}
    return replace(finding, message=message, evidence=evidence)
