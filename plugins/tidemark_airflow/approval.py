"""The approval of a plan: Airflow asks and records, the case keeps the answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException

from tidemark.errors import StartRefused
from tidemark.settings import Settings
from tidemark_airflow.alerting import PlanWaits

if TYPE_CHECKING:
    from tidemark.oncall.approval import PlanApproval


class PlanApprovalOperator(ApprovalOperator):
    """Shows the plan that its case holds, and keeps the answer in that case, bound to the plan's hash.

    `execute_complete` gets the answer from Airflow's record of the human response, and runs only when there is one: a task that
    is marked successful keeps nothing. No answer in time means no. `oncall_approvers` are assigned by user id, as the auth
    manager gives it. Nobody is asked again once the answer was used. The case is that of a restore or a change of one
    application, or with `is_about_topics` that of `compaction_check`.
    """

    def __init__(self, *, response_timeout: timedelta, is_about_topics: bool = False, **kwargs: Any) -> None:
        super().__init__(
            defaults=ApprovalOperator.REJECT,
            response_timeout=response_timeout,
            execution_timeout=timedelta(minutes=5),
            assigned_users=[{"id": user, "name": user} for user in Settings.load().oncall_approvers] or None,
            notifiers=[PlanWaits(response_timeout)],
            **kwargs,
        )
        self.is_about_topics = is_about_topics

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Ask."""
        try:
            shown = self._approval(context).ask()
        except StartRefused as error:
            raise AirflowFailException(str(error)) from error
        if shown is None:
            self.log.info("the answer that this run has was used already: nobody is asked again")
            return None
        # An XCom can be changed through Airflow's API, and the approver would read another plan than the case holds.
        self.body = shown
        return super().execute(context)

    def execute_complete(self, context: Mapping[str, Any], event: dict[str, Any]) -> Any:
        """Keep the answer, or the no of a time that is over. A yes that does not count fails here, nothing being stopped."""
        # It loads clients, which a DAG file that is parsed must not.
        from tidemark.oncall.case import FAILED, SAID

        if "error" not in event:
            approval = self._approval(context)
            try:
                answer = approval.keep(
                    ", ".join(event["chosen_options"]),
                    event["responded_by_user"],
                    str(event["responded_at"]),
                    context["dag_run"].triggering_user_name,
                )
                approval.folder.note("approval", SAID, f"{answer.who} answered {answer.chosen}")
                if answer.is_yes:
                    approval.require()
            except StartRefused as error:
                approval.folder.note("approval", FAILED, str(error))
                raise AirflowFailException(str(error)) from error
        return super().execute_complete(context=context, event=event)

    def _approval(self, context: Mapping[str, Any]) -> PlanApproval:
        # These load clients, which a DAG file that is parsed must not.
        if self.is_about_topics:
            from tidemark_airflow.topic_settings import topic_settings_of

            return topic_settings_of(context).approval
        from tidemark_airflow.cases import approval_of

        return approval_of(context)
