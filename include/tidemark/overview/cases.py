"""Restores and changes of an application: their outcome, their time line, and who still has to answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import TidemarkError
from tidemark.operations.case.approval import response_ms
from tidemark.operations.case.case import BEGUN, CaseFolder, Note
from tidemark.operations.workspace import is_id
from tidemark.settings import Settings

REPORT_PAGE = "report.html"
_SHOWN = 5


@dataclass(frozen=True)
class CaseView:
    """One case. `outcome` is None until its report was written; `approvers` may be empty: anybody who may run the DAG.

    `answer_until_ms` is set while the plan waits for an answer.
    """

    case_id: str
    kind: str
    topology: str
    reason: str
    is_dry_run: bool
    asked_ms: int
    outcome: str | None
    is_as_wanted: bool
    answered_by: str | None
    answer_until_ms: int | None
    approvers: tuple[str, ...]
    notes: tuple[Note, ...]
    has_report: bool

    @property
    def waits_for_answer(self) -> bool:
        """Whether a person has to answer now."""
        return self.answer_until_ms is not None

    @property
    def step(self) -> str | None:
        """The step that a running case has begun last."""
        begun = [note.step for note in self.notes if note.what == BEGUN]
        return begun[-1] if begun and self.outcome is None else None


def read_cases(settings: Settings, application_id: str, now_ms: int, limit: int = _SHOWN) -> list[CaseView]:
    """Return the newest cases first. Reads small files; a case that cannot be read is left out."""
    folder = settings.var_dir / "oncall" / application_id
    names = sorted((path.name for path in folder.glob("*") if is_id(path.name)), reverse=True)[:limit]
    views = (_case(settings, application_id, name, now_ms) for name in names)
    return [view for view in views if view is not None]


def report_page(settings: Settings, application_id: str, case_id: str) -> Path | None:
    """Return the page of a case's report; None if there is none, or if `case_id` is not the id of a case."""
    path = settings.var_dir / "oncall" / application_id / case_id / REPORT_PAGE
    return path if is_id(case_id) and path.is_file() else None


def _case(settings: Settings, application_id: str, case_id: str, now_ms: int) -> CaseView | None:
    folder = CaseFolder.of(settings.var_dir, application_id, case_id, lambda: now_ms)
    try:
        case = folder.case()
        report = folder.read("report.json") if folder.holds("report.json") else None
        answer = folder.read("answer.json") if folder.holds("answer.json") else None
        return CaseView(
            case_id=case.case_id,
            kind=case.kind,
            topology=case.topology,
            reason=case.reason,
            is_dry_run=case.dry_run,
            asked_ms=case.asked_ms,
            outcome=None if report is None else str(report["outcome"]),
            is_as_wanted=report is not None and bool(report["is_as_wanted"]),
            answered_by=None if answer is None else answer["user_name"] or answer["user_id"],
            answer_until_ms=_answer_until_ms(folder, settings, now_ms) if report is None and answer is None else None,
            approvers=tuple(settings.oncall_approvers),
            notes=tuple(folder.notes()),
            has_report=folder.holds(REPORT_PAGE),
        )
    except (TidemarkError, OSError, json.JSONDecodeError, KeyError, TypeError):
        return None


def _answer_until_ms(folder: CaseFolder, settings: Settings, now_ms: int) -> int | None:
    """Return until when the plan may be answered; None if it was not shown, or if the time is over."""
    if not folder.holds("asked.json"):
        return None
    asked_ms = int((folder.folder / "asked.json").stat().st_mtime * 1000)
    until_ms = asked_ms + response_ms(folder.case().kind, settings)
    return until_ms if now_ms < until_ms else None


def waiting_cases(cases: Sequence[CaseView]) -> list[CaseView]:
    """Return the cases whose plan waits for an answer."""
    return [case for case in cases if case.waits_for_answer]
