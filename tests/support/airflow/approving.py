"""The approval of a run as Airflow handles it: the operator runs, and the answer has the form of a HITL detail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.hitl import HITLDetail
from airflow.providers.standard.operators import hitl
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import TaskAwaitingInput

from tidemark_airflow.approval import PlanApprovalOperator

RESTORE_ASKED = {
    "topology": "shopping",
    "source": "fastest",
    "target": "latest",
    "dry_run": False,
    "reason": "the disk died",
}
"""Parameters of a run of `restore_oncall`."""


def run_of(dag_id: str, minutes: int = 0, asked_by: str | None = "ada") -> SimpleNamespace:
    """A run that a user triggered so many minutes after midnight."""
    when = datetime(2026, 11, 21, tzinfo=UTC) + timedelta(minutes=minutes)
    return SimpleNamespace(dag_id=dag_id, run_id=f"run-{minutes}", run_after=when, triggering_user_name=asked_by)


def operator(**given: Any) -> PlanApprovalOperator:
    """The task `approval`, outside of a DAG."""
    return PlanApprovalOperator(task_id="approval", subject="Do it?", response_timeout=timedelta(hours=1), **given)


def ask(context: dict[str, Any], **given: Any) -> dict[str, Any] | None:
    """Run the approval until it waits; what Airflow is told to show, None where it does not wait."""
    shown: dict[str, Any] = {}
    task = operator(**given)
    ti = SimpleNamespace(id="1", map_index=-1, dag_id=context["dag_run"].dag_id, run_id="run", task_id="approval")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExecutorSafeguard, "test_mode", True)
        patch.setattr(hitl, "upsert_hitl_detail", lambda **detail: shown.update(detail))
        try:
            task.execute({**context, "task": task, "ti": ti, "task_instance": ti})
        except TaskAwaitingInput:
            return shown
    return None


def answer(context: dict[str, Any], option: str = "Approve", user: str | None = "grace", **given: Any) -> None:
    """Give the approval the response that Airflow has recorded; `user` None: the time is over."""
    by = None if user is None else {"id": user, "name": user}
    detail = HITLDetail(chosen_options=[option], responded_by=by, responded_at=datetime.now(UTC), params_input={})
    operator(**given).execute_complete(context, detail.as_resume_event_payload(timedout=user is None))


def approve(context: dict[str, Any], **given: Any) -> None:
    """Ask, and have somebody say yes."""
    assert ask(context, **given) is not None
    answer(context, **given)
