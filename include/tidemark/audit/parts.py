"""Joins the findings of the parts of an audit, which examines a long range in several parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from tidemark.verdict import Finding, worst

_COUNTS = ("rows", "unexpected")


def joined(parts: Iterable[Sequence[Finding]]) -> list[Finding]:
    """Return one finding for each expectation: that of the part with the worst verdict, with the rows of all parts.

    A part without rows to check counts only if there are none in any part. A finding on anything else is kept once for each of
    its messages.
    """
    found: dict[tuple[str, str], list[Finding]] = {}
    for finding in chain.from_iterable(parts):
        is_expectation = "expectation" in finding.evidence
        found.setdefault((finding.subject, "" if is_expectation else finding.message), []).append(finding)
    return [_joined(findings) for findings in found.values()]


def _joined(findings: Sequence[Finding]) -> Finding:
    checked = [finding for finding in findings if finding.evidence.get("rows") or finding.evidence.get("broken")]
    verdict = worst(checked or findings)
    shown = next(finding for finding in checked or findings if finding.verdict is verdict)
    counts = {name: sum(f.evidence.get(name, 0) for f in findings) for name in _COUNTS if name in shown.evidence}
    return replace(shown, evidence={**shown.evidence, **counts})
