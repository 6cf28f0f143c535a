"""Answers of persons to plans, for tests that need one."""

from __future__ import annotations

from tidemark.operations.case.approval import APPROVE, PlanAnswer, PlanApproval
from tidemark.operations.case.case import CaseFolder
from tidemark.settings import Settings

AT = "2026-11-21 03:00:00+00:00"


def answered(
    folder: CaseFolder,
    settings: Settings,
    chosen: str = APPROVE,
    user: str | None = "grace",
    asked_by: str | None = "ada",
) -> PlanAnswer:
    """Show the plan of a case and keep an answer to it, as the task that asks does."""
    approval = PlanApproval(folder, settings)
    approval.ask()
    return approval.keep(chosen, None if user is None else {"id": user, "name": user.title()}, AT, asked_by)
