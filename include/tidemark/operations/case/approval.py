"""The answer of a user to one plan, as the case keeps it: bound to the plan's hash, and used once.

The task that received the answer from Airflow's own record of the human response writes it to `answer.json` in the
folder of the case. The state of that task or an XCom does not count, because both can be set through Airflow's API. See
invariant: approval of one plan.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from tidemark.errors import StartRefused
from tidemark.operations.case.case import RESTORE, Case, CaseFolder
from tidemark.operations.case.plan_hash import SHORT, canonical, differences, plan_hash
from tidemark.operations.case.response_time import CHANGE_RESPONSE_MS
from tidemark.operations.times import format_time
from tidemark.settings import Settings
from tidemark.supervision.hold import read_hold
from tidemark.topology.plan import TopologyPlan

APPROVE = "Approve"
_ANSWER, _ASKED, _PLAN = "answer.json", "asked.json", "plan.json"


class AnswerState(StrEnum):
    """The state of an answer. Once it is used, only the same case may continue with it, until its work is done or given up."""

    KEPT = "kept"
    USED = "used"
    DONE = "done"
    CLOSED = "closed"


@dataclass(frozen=True)
class PlanAnswer:
    """An answer: who gave it, to which plan, and when.

    `user_id` and `user_name` are those of Airflow's auth manager, None if no user answered in time. `asked_by` is the
    name of the user who triggered the run. `used_ms` is when the work began (epoch milliseconds), 0 before that.
    """

    case_id: str
    plan_hash: str
    chosen: str
    user_id: str | None
    user_name: str | None
    answered_at: str
    asked_by: str | None
    state: AnswerState = AnswerState.KEPT
    used_ms: int = 0

    @property
    def is_yes(self) -> bool:
        """Whether a user approved the plan."""
        return self.chosen == APPROVE and self.user_id is not None

    @property
    def who(self) -> str:
        """The name of the user who answered, for messages."""
        return self.user_name or self.user_id or "nobody"

    @property
    def answered_ms(self) -> int:
        """The time of the answer in epoch milliseconds."""
        return int(datetime.fromisoformat(self.answered_at).timestamp() * 1000)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> PlanAnswer:
        """Read the result of `dataclasses.asdict`."""
        return cls(**{**body, "state": AnswerState(body["state"])})


def response_ms(kind: str, settings: Settings) -> int:
    """Return how long the plan of this kind of case may be answered, and an answer that was not used is valid."""
    return settings.oncall_response_timeout_ms if kind == RESTORE else CHANGE_RESPONSE_MS


def refusal(
    answer: PlanAnswer | None, case: Case, wanted_hash: str, settings: Settings, now_ms: int, *, is_held: bool
) -> str | None:
    """Return why an answer does not allow the plan with that hash to be carried out, and what to do; None if it does. Pure.

    An unused answer expires. `is_held` is whether the case holds its application: then the answer was accepted in time, and
    the work continues.
    """
    case_id = case.case_id
    if answer is None:
        return (
            f"no user has answered for the plan of case {case_id} (marking the task as successful is not an answer): clear "
            "the task `approval`, and answer under Required actions"
        )
    again = "trigger a new run"
    if answer.case_id != case_id:
        return f"the answer kept for case {case_id} was given for case {answer.case_id}: {again}"
    if answer.user_id is None:
        return f"no user answered for the plan of case {case_id} in time, which means no: {again}"
    if not answer.is_yes:
        return f"{answer.who} answered {answer.chosen} at {answer.answered_at}: {again}"
    if answer.plan_hash != wanted_hash:
        return (
            f"{answer.who} approved plan {answer.plan_hash[:SHORT]} at {answer.answered_at}, but the plan of case {case_id} is "
            f"{wanted_hash[:SHORT]} now: {again}, which plans again"
        )
    if settings.oncall_approvers and answer.user_id not in settings.oncall_approvers:
        return (
            f"user {answer.who} (id {answer.user_id}) approved the plan but is not in the setting oncall_approvers: {again}, "
            "and let one of its users answer"
        )
    if settings.approval_by_another and answer.asked_by is None:
        return (
            "the user who triggered this run is not known, and the setting approval_by_another requires another user to "
            "approve it: trigger it in Airflow's UI or through its API"
        )
    if settings.approval_by_another and answer.asked_by in (answer.user_id, answer.user_name):
        return (
            f"{answer.who} triggered this run and approved it, which the setting approval_by_another forbids: {again}, and let "
            "another user answer"
        )
    valid_ms = response_ms(case.kind, settings)
    if answer.state is AnswerState.KEPT and not is_held and now_ms - answer.answered_ms > valid_ms:
        return (
            f"{answer.who} approved the plan at {answer.answered_at}, more than {valid_ms / 1000:.0f} s ago, and the answer "
            f"was not used: {again}"
        )
    if answer.state in (AnswerState.DONE, AnswerState.CLOSED):
        what = "done" if answer.state is AnswerState.DONE else "given up"
        return (
            f"the approval of {answer.who} was used at {format_time(answer.used_ms)}, and its work is {what}: {again}"
        )
    return None


@dataclass(frozen=True)
class PlanApproval:
    """The approval of one case, in its folder. Processes that change it wait for each other."""

    folder: CaseFolder
    settings: Settings

    def ask(self) -> str | None:
        """Note which plan is shown to the approver, and discard an earlier answer that was not used.

        Returns the Markdown to show, or None if an answer was used already: then nobody is asked again. Raises
        `StartRefused` if this case has asked about another plan, because Airflow keeps showing the text of its first
        question.
        """
        with self._locked():
            answer = self.answer
            if answer is not None and answer.state is not AnswerState.KEPT:
                return None
            planned = self.folder.read(_PLAN)
            shown = plan_hash(planned["content"])
            if self.folder.holds(_ASKED) and self.folder.read(_ASKED)["plan_hash"] != shown:
                raise StartRefused(
                    f"case {self.folder.folder.name} has asked about another plan before, and Airflow keeps showing that "
                    "one: trigger a new run"
                )
            self.folder.write(_ASKED, {"plan_hash": shown})
            (self.folder.folder / _ANSWER).unlink(missing_ok=True)
            return str(planned["summary"])

    def keep(self, chosen: str, user: Mapping[str, Any] | None, answered_at: str, asked_by: str | None) -> PlanAnswer:
        """Keep an answer to the plan that was shown. `user` has `id` and `name`.

        Raises `StartRefused` if one was used already.
        """
        with self._locked():
            before = self.answer
            if before is not None and before.state is not AnswerState.KEPT:
                raise StartRefused(f"the answer of {before.who} was used already: trigger a new run")
            answer = PlanAnswer(
                self.folder.case().case_id,
                str(self.folder.read(_ASKED)["plan_hash"]),
                chosen,
                None if user is None else str(user["id"]),
                None if user is None else str(user["name"]),
                answered_at,
                asked_by,
            )
            self._write(answer)
        return answer

    @property
    def answer(self) -> PlanAnswer | None:
        """The answer that is kept; None before there is one."""
        return PlanAnswer.from_dict(self.folder.read(_ANSWER)) if self.folder.holds(_ANSWER) else None

    @property
    def is_used(self) -> bool:
        """Whether the approved work has begun, whatever its result."""
        return self._state not in (None, AnswerState.KEPT)

    @property
    def is_done(self) -> bool:
        """Whether the approved work is done."""
        return self._state is AnswerState.DONE

    @property
    def is_closed(self) -> bool:
        """Whether the approved work was given up, and the earlier state is back."""
        return self._state is AnswerState.CLOSED

    def require(self) -> PlanAnswer:
        """Return the answer that allows the plan of this case. Raises `StartRefused`, which says why there is none."""
        answer = self.answer
        case, wanted = self.folder.case(), plan_hash(self._content)
        hold = read_hold(self.settings.var_dir, case.application_id)
        is_held = hold is not None and hold.by == case.case_id
        why = refusal(answer, case, wanted, self.settings, self.folder.clock(), is_held=is_held)
        if why is not None or answer is None:
            raise StartRefused(f"not approved, nothing was changed: {why}")
        return answer

    def require_topology(self, deployed: TopologyPlan) -> None:
        """Raise `StartRefused` if another topology is deployed than the one that was planned for."""
        self._require_equal(self._content["topology"], canonical(deployed), "topology")

    def require_content(self, now: Mapping[str, Any]) -> None:
        """Raise `StartRefused` if the present plan differs from the one that was approved."""
        self._require_equal(self._content, now, "plan")

    def use(self) -> PlanAnswer:
        """Mark the answer as used, before anything is changed, and return it.

        The same case may continue with it until `finish` or `close`. Raises `StartRefused` as `require` does.
        """
        with self._locked():
            answer = self.require()
            if answer.state is AnswerState.KEPT:
                answer = replace(answer, state=AnswerState.USED, used_ms=self.folder.clock())
                self._write(answer)
            return answer

    def finish(self) -> None:
        """Note that the work is done: the answer no longer allows anything."""
        self._end(AnswerState.DONE)

    def close(self) -> None:
        """Note that the work that was begun is given up: the answer no longer allows anything. An unused answer stays."""
        self._end(AnswerState.CLOSED)

    def _end(self, state: AnswerState) -> None:
        with self._locked():
            answer = self.answer
            if answer is not None and answer.state is not AnswerState.KEPT:
                self._write(replace(answer, state=state))

    @property
    def _state(self) -> AnswerState | None:
        answer = self.answer
        return None if answer is None else answer.state

    @property
    def _content(self) -> Mapping[str, Any]:
        content: Mapping[str, Any] = self.folder.read(_PLAN)["content"]
        return content

    def _require_equal(self, approved: Any, now: Any, what: str) -> None:
        if plan_hash({what: approved}) != plan_hash({what: now}):
            summary = "; ".join(differences({what: approved}, {what: now}))
            raise StartRefused(
                f"the {what} is not the one that was approved: {summary}. Trigger a new run, which plans again"
            )

    def _write(self, answer: PlanAnswer) -> None:
        self.folder.write(_ANSWER, asdict(answer))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder.folder / "answer.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
