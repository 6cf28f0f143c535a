"""What a check says of one thing it looked at, and what all of it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """From best to worst."""

    OK = "ok"
    NOT_ENOUGH_EVIDENCE = "not enough evidence"
    WARNING = "warning"
    FAILED = "failed"


_RANK = {verdict: rank for rank, verdict in enumerate(Verdict)}


@dataclass(frozen=True)
class Finding:
    """One verdict.

    `subject` names what was looked at (a store, a topic, `topic[partition]`, a task). `message` is one line: what is so
    and, unless it is OK, what to do. `evidence` holds the figures it rests on, as JSON can hold them.
    """

    subject: str
    verdict: Verdict
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


def worst(findings: Iterable[Finding]) -> Verdict:
    """The worst of all; nothing looked at is NOT_ENOUGH_EVIDENCE."""
    return max((finding.verdict for finding in findings), key=_RANK.__getitem__, default=Verdict.NOT_ENOUGH_EVIDENCE)
