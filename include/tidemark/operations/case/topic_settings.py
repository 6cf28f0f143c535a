"""Changing topics to the settings that their topologies ask for, once a user has approved the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tidemark.errors import StartRefused
from tidemark.kafka.clients import librdkafka_config
from tidemark.operations.case.approval import PlanApproval
from tidemark.operations.case.case import CaseFolder
from tidemark.operations.case.plan import tail
from tidemark.operations.case.plan_hash import canonical, differences
from tidemark.operations.topic_changes import TopicChange, apply_changes, plan_changes
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

CASES_FOLDER = "topic-settings"
"""The name of these cases' folder below `<var_dir>/oncall`, where other cases have that of their application."""


@dataclass(frozen=True)
class TopicSettingsChange:
    """One case about the topics of some applications."""

    topologies: Sequence[TopologyPlan]
    settings: Settings
    folder: CaseFolder

    @property
    def approval(self) -> PlanApproval:
        """The approval of this case."""
        return PlanApproval(self.folder, self.settings)

    def plan(self) -> list[TopicChange]:
        """Return what would be set, and store it, unless nothing differs or the work has begun. Blocks."""
        found = self._found()
        if found and not self.approval.is_used:
            content = {"kind": CASES_FOLDER, "changes": canonical(found)}
            lines = [f"- `{c.topic}`: {c.setting} from {c.found or 'not set'} to {c.wanted}" for c in found]
            self.folder.write("plan.json", {"summary": "\n".join([*lines, *tail(content)]), "content": content})
        return found

    def apply(self) -> list[TopicChange]:
        """Set what was approved, and nothing else. Uses the kept answer. Returns what was set. Blocks.

        If it was killed half way, running it again sets the rest; if it is done, it does nothing. Raises `StartRefused`
        if this list was not approved, or a topic now differs from it.
        """
        approval = self.approval
        if approval.is_done:
            return []
        answer_before = approval.require()
        approved = self.folder.read("plan.json")["content"]["changes"]
        found = self._found()
        left = [change for change in found if canonical(change) in approved]
        if len(left) < len(approved) and not approval.is_used:
            summary = "; ".join(differences(approved, canonical([c for c in found if c.topic in _topics(approved)])))
            raise StartRefused(f"topics differ from what {answer_before.who} approved: {summary}. Trigger a new run")
        approval.use()
        apply_changes(left, self.settings, self._admin())
        approval.finish()
        return left

    def _found(self) -> list[TopicChange]:
        admin = self._admin()
        return [change for plan in self.topologies for change in plan_changes(plan, self.settings, admin)]

    def _admin(self) -> AdminClient:
        return AdminClient(librdkafka_config(self.settings))


def _topics(changes: Sequence[dict[str, str]]) -> set[str]:
    return {change["topic"] for change in changes}
