"""The approval of a plan: Airflow asks a person and records the answer, and the case stores it with the plan's hash."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException

from tidemark.errors import StartRefused
from tidemark.settings import Settings
from tidemark_airflow.alerting import PlanWaits

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.operations.case.approval import PlanApproval


class PlanApprovalOperator(ApprovalOperator):
    """Shows the plan of a case, and stores the answer in that case together with the plan's hash.

    `execute_complete` gets the answer from Airflow's record of the human response and runs only if there is one: marking the
    task as successful approves nothing. No answer in time means no. The users of `oncall_approvers` are assigned by user id,
    as the auth manager knows them. Once an answer was used, it is not requested again. The case is that of a restore or a
    change of one application, or with `is_about_topics` that of `compaction_check`.
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

    def execute(self, context: Context) -> Any:
        """Show the plan and ask for the answer. Raises `AirflowFailException` if the plan is refused."""
        try:
            shown = self._approval(context).ask()
        except StartRefused as error:
            raise AirflowFailException(str(error)) from error
        if shown is None:
            self.log.info("the answer of this run was used already: it is not requested again")
            return None
        # Not from an XCom: XComs can be changed through Airflow's API, and the approver would read another plan.
        self.body = shown
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Store the answer; no answer in time counts as no.

        Raises `AirflowFailException` if the answer is a yes that is not valid. Nothing has been stopped by then.
        """
        # Imported here because it loads clients, which the parsing of a DAG file must not do.
        from tidemark.operations.case.case import FAILED, SAID

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

    def _approval(self, context: Context) -> PlanApproval:
        # Imported here because they load clients, which the parsing of a DAG file must not do.
        if self.is_about_topics:
            from tidemark_airflow.topic_settings import topic_settings_of

            return topic_settings_of(context).approval
        from tidemark_airflow.cases import approval_of

        return approval_of(context)
