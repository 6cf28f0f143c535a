"""Answers of persons to plans, for tests that need one."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemark.operations.case.approval import APPROVE, PlanAnswer, PlanApproval
from tidemark.operations.case.case import CaseFolder
from tidemark.settings import Settings


def answered(
    folder: CaseFolder,
    settings: Settings,
    chosen: str = APPROVE,
    user: str | None = "grace",
    asked_by: str | None = "ada",
) -> PlanAnswer:
    """Show the plan of a case and keep an answer to it that was given just now, as the task that asks does."""
    at = str(datetime.fromtimestamp(folder.clock() / 1000, UTC))
    approval = PlanApproval(folder, settings)
    approval.ask()
    return approval.keep(chosen, None if user is None else {"id": user, "name": user.title()}, at, asked_by)
