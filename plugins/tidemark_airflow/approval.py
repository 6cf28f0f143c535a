"""An approval whose answer is kept, also when it is a no."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator

from tidemark.settings import Settings

ANSWER = "answer"
"""The XCom that holds who answered what and when; `responded_by_user` is None where nobody did in time."""


def no_unless_answered(response_timeout: timedelta) -> dict[str, Any]:
    """What every approval here has in common: no answer in time means no."""
    return {
        "defaults": ApprovalOperator.REJECT,
        "response_timeout": response_timeout,
        "execution_timeout": timedelta(minutes=5),
    }


def approvers(settings: Settings) -> list[dict[str, str]] | None:
    """`assigned_users` of an approval: who alone may answer; None where `oncall_approvers` names nobody."""
    return [{"id": user, "name": user} for user in settings.oncall_approvers] or None


class KeptApproval(ApprovalOperator):
    """`ApprovalOperator` loses the answer of a rejection, as it ends by skipping what follows; this one pushes it first."""

    def execute_complete(self, context: Mapping[str, Any], event: dict[str, Any]) -> Any:
        """The answer is there, or the time is over."""
        if "error" not in event:
            answer = {
                "chosen_options": list(event["chosen_options"]),
                "responded_by_user": event["responded_by_user"],
                "responded_at": str(event["responded_at"]),
            }
            context["ti"].xcom_push(key=ANSWER, value=answer)
        return super().execute_complete(context=context, event=event)
