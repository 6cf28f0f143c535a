"""Findings of checks: the verdict on each subject, and the overall verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tidemark.errors import ExitCode


class Verdict(StrEnum):
    """From best to worst."""

    OK = "ok"
    NOT_ENOUGH_EVIDENCE = "not enough evidence"
    WARNING = "warning"
    FAILED = "failed"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ends with this verdict on everything that it compared."""
        return _EXIT_CODES.get(self, ExitCode.OK)


_EXIT_CODES = {Verdict.NOT_ENOUGH_EVIDENCE: ExitCode.RETRY, Verdict.FAILED: ExitCode.FAILED}
_RANK = {verdict: rank for rank, verdict in enumerate(Verdict)}


MESSAGE_WITHOUT_RECORDS = "message_without_records"
"""In the evidence of a finding whose message shows keys or values of records: the same message without them."""


@dataclass(frozen=True)
class Finding:
    """The verdict on one subject.

    `subject` names what was checked (a store, a topic, `topic[partition]`, a task). `message` is one line: the situation
    and, unless it is OK, what to do. `evidence` holds the figures it is based on, in types that JSON can represent.
    """

    subject: str
    verdict: Verdict
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict; NOT_ENOUGH_EVIDENCE if there are no findings."""
    return max((finding.verdict for finding in findings), key=_RANK.__getitem__, default=Verdict.NOT_ENOUGH_EVIDENCE)
